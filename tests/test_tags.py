"""A plan handed to PyTorch's own partitioner as tags."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from functorch.compile import aot_module, min_cut_rematerialization_partition
from model_parts import Part
from torch import Tensor, nn
from torch.fx import GraphModule

import dtr_fx
from dtr_fx import Report

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
