"""A plan handed to PyTorch's own partitioner as tags."""

from __future__ import annotations

import importlib
from typing import Any

import pytest
import torch
from functorch.compile import aot_module, make_boxed_func, min_cut_rematerialization_partition
from model_parts import Part
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import must_recompute
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

import dtr_fx
from dtr_fx import Report, measure_peak

pytestmark = pytest.mark.little_effort


def step(model: nn.Module, x: Tensor, budget: str | None) -> tuple[int, list[Tensor], Report | None]:
    """Peak above parameters and batch, gradients, and the report, under PyTorch's partitioner."""
    reports: list[Report] = []

    def partition(joint: GraphModule, inputs: Any, **facts: Any) -> Any:
        if budget is not None:
            reports.append(dtr_fx.tag(joint, budget, planner="online"))
        return min_cut_rematerialization_partition(joint, inputs, **facts)

    compiled = aot_module(model, dtr_fx.boxed_compiler, dtr_fx.boxed_compiler, partition_fn=partition)

    def run() -> None:
        model.zero_grad()
        torch.manual_seed(1)
        compiled(x).square().mean().backward()

    run()  # compiles
    model.zero_grad()
    peak = dtr_fx.measure_peak(run)
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return peak, gradients, reports[0] if reports else None


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_the_partitioner_obeys_the_plan(dropout: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(3) for layer in (Part(64), nn.Dropout(dropout))))
    x = torch.randn(512, 64)
    as_it_is, expected, _ = step(model, x, None)
    tagged, found, report = step(model, x, "60%")
    assert all(map(torch.equal, found, expected))
    assert report is not None
    assert report.recomputes > 0
    assert tagged < as_it_is


def test_a_budget_that_no_plan_reaches_is_an_error_and_tags_nothing() -> None:
    tagged: list[GraphModule] = []

    def partition(joint: GraphModule, inputs: Any, **facts: Any) -> Any:
        tagged.append(joint)
        dtr_fx.tag(joint, "1%")

    model = Part(64)
    compiled = aot_module(model, dtr_fx.boxed_compiler, dtr_fx.boxed_compiler, partition_fn=partition)
    with pytest.raises(dtr_fx.InfeasibleBudgetError):
        compiled(torch.randn(64, 64))
    assert not any("recompute" in node.meta for node in tagged[0].graph.nodes)


def test_a_graph_without_a_backward_pass_is_refused() -> None:
    traced = make_fx(lambda x: x.sin().cos().exp(), tracing_mode="fake")(torch.ones(64))
    with pytest.raises(dtr_fx.GraphError, match=r"dtr_fx\.transform plans any graph"):
        dtr_fx.tag(traced, "60%")
    assert not any("recompute" in node.meta for node in traced.graph.nodes)


@pytest.mark.skipif(torch.__version__ < "2.13", reason="PyTorch marks a traced backward pass from 2.13 on")
def test_a_graph_with_its_own_backward_pass_is_tagged_in_its_forward_pass() -> None:
    """As torchtitan's graph trainer has it: its pass recomputes what is tagged."""
    remat = "torch._functorch._activation_checkpointing.remat_using_tags_for_fwd_loss_bwd_graph_pass"
    remat_using_tags_for_fwd_loss_bwd_graph = importlib.import_module(
        remat
    ).remat_using_tags_for_fwd_loss_bwd_graph
    torch.manual_seed(0)
    model = nn.Sequential(*(Part(64) for _ in range(3)))
    graphs: list[GraphModule] = []
    reports: list[Report] = []

    def tagged(graph: GraphModule, _: Any) -> Any:
        reports.append(dtr_fx.tag(graph, "60%", planner="online"))
        graphs.append(graph)
        return make_boxed_func(graph.forward)

    @torch.compile(backend=aot_autograd(fw_compiler=tagged, inference_compiler=tagged))
    def step(x: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(model(x).square().mean(), tuple(model.parameters()))

    with torch._dynamo.config.patch(trace_autograd_ops=True):
        step(torch.randn(512, 64))
    [graph], [report] = graphs, reports
    again = [node for node in graph.graph.nodes if must_recompute(node)]
    assert again
    assert not any(node.meta.get("autograd_backward") for node in again)
    assert report.sane_from is None
    inputs = [torch.randn(node.meta["val"].shape) for node in graph.graph.find_nodes(op="placeholder")]
    expected, as_it_is = graph(*inputs), measure_peak(lambda: graph(*inputs))
    tagged = remat_using_tags_for_fwd_loss_bwd_graph(graph)
    assert all(map(torch.equal, tagged(*inputs), expected))
    assert measure_peak(lambda: tagged(*inputs)) < 0.8 * as_it_is
