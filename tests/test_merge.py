"""Operators that compute the same twice, and attention that draws nothing."""

from __future__ import annotations

import operator

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from dtr_fx.compiler.explain import plan_step
from dtr_fx.lab import baselines
from dtr_fx.passes.split import MergeDuplicates
from dtr_fx.passes.tensors import storage_keys
from dtr_fx.planning.options import Options

pytestmark = pytest.mark.little_effort


def graph_of(function: object, *inputs: Tensor) -> GraphModule:
    return make_fx(function, tracing_mode="fake")(*inputs)


def count(gm: GraphModule, target: object) -> int:
    return len(gm.graph.find_nodes(op="call_function", target=target))


def test_what_is_computed_twice_is_computed_once():
    def twice(x: Tensor) -> Tensor:
        return (x.sin().max(1)[0] * x.sin().max(1)[0]).cos() + x.sum(1).sin()

    x = torch.randn(4, 8)
    gm = graph_of(twice, x)
    MergeDuplicates().call(gm)
    gm.recompile()
    assert (count(gm, torch.ops.aten.sin.default), count(gm, torch.ops.aten.max.dim)) == (2, 1)
    assert torch.equal(gm(x), twice(x))


def test_draws_and_results_stay_apart():
    def draws(x: Tensor) -> tuple[Tensor, ...]:
        return torch.rand_like(x) - torch.rand_like(x), x.sin(), x.sin(), x.pow(2) + x.pow(2.0)

    x = torch.randn(4)
    gm = graph_of(draws, x)
    MergeDuplicates().call(gm)
    gm.recompile()
    difference, one, other, _ = gm(x)
    assert difference.ne(0).all()
    assert one.untyped_storage()._cdata != other.untyped_storage()._cdata
    assert count(gm, torch.ops.aten.pow.Tensor_Scalar) == 2


def test_results_among_several_outputs_stay_apart():
    gm = graph_of(lambda x: (x.max(1)[0], x.max(1)[0], x.max(1)[1].sum()), torch.randn(4, 8))
    MergeDuplicates().call(gm)
    gm.recompile()
    one, other, _ = gm(torch.randn(4, 8))
    assert one.untyped_storage().data_ptr() != other.untyped_storage().data_ptr()


def test_a_detached_tensor_is_the_tensor():
    def detached(x: Tensor) -> tuple[Tensor, ...]:
        y = x.sin()
        return y.detach().detach().cos() + x.detach(), y, y.detach()

    x = torch.randn(4)
    gm = graph_of(detached, x)
    MergeDuplicates().call(gm)
    gm.recompile()
    assert all(map(torch.equal, gm(x), detached(x)))
    _, y, other = gm(x)
    assert y is not other


def test_dropout_at_zero_takes_no_memory() -> None:
    def peak(module: nn.Module) -> int:
        layers = (layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.Tanh(), module))
        [report] = plan_step(nn.Sequential(*layers), (torch.randn(512, 64),), Options())
        return report.unconstrained_peak

    assert peak(nn.Dropout(0.0)) == peak(nn.Dropout().eval()) == peak(nn.Identity()) < peak(nn.Dropout(0.1))


@pytest.mark.parametrize("options", [None, {"budget": "90%"}])
def test_a_copy_of_what_the_caller_writes_is_a_copy(options: object) -> None:
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        h = x.sin()
        copied = h.clone()
        return (copied.exp() * copied).view(-1).cos().sum(), h

    gradients = []
    for function in (forward, torch.compile(forward, backend="dtr", options=options)):
        x = torch.linspace(0, 1, 4096).view(64, 64).requires_grad_()
        total, h = function(x)
        h.detach().zero_()
        total.backward()
        gradients.append(x.grad)
    assert torch.equal(*gradients)


def test_views_of_what_is_merged_share_its_memory():
    def twice(x: Tensor) -> tuple[Tensor, Tensor]:
        one, other = x.sin(), x.sin()
        return one.sum(), other.t()[:2].unbind()[0].cos()

    gm = graph_of(twice, torch.randn(4, 8))
    MergeDuplicates().call(gm)
    [sine] = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.sin.default)
    views = [node for node in gm.graph.nodes if node.target in _VIEWS]
    assert len(views) > 2
    assert {key for node in views for key in storage_keys(node)} == {*storage_keys(sine)}


_VIEWS = (torch.ops.aten.t.default, torch.ops.aten.slice.Tensor, torch.ops.aten.unbind.int, operator.getitem)


def test_a_pass_keeps_its_own():
    """What the backward pass computes itself is not kept for it."""
    gm = graph_of(lambda x: x.sin() * 2 + x.sin(), torch.randn(4))
    for node in gm.graph.nodes:
        node.meta["partitioner_tag"] = "is_forward"
    gm.graph.find_nodes(op="call_function", target=torch.ops.aten.sin.default)[-1].meta["partitioner_tag"] = (
        "is_backward"
    )
    MergeDuplicates().call(gm)
    assert count(gm, torch.ops.aten.sin.default) == 2


class Attention(nn.Module):
    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(16, 16) for _ in range(6))
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = nn.functional.scaled_dot_product_attention(*[layer(x)] * 3, dropout_p=self.dropout)
        return x.sum()


@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_only_attention_with_dropout_needs_saved_states(dropout: float) -> None:
    [report] = plan_step(Attention(dropout), (torch.randn(1, 2, 64, 16),), Options(budget="80%"))
    assert any(event.kind == "recompute" for event in report.events)
    assert (dropout > 0) == any("rng" in storage.kind for storage in report.storages)


def test_recomputed_attention_runs_once_where_it_stands() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        joint = baselines.trace(Attention(0.0), (torch.randn(1, 2, 64, 16),))
    pair, report = baselines.planned(joint, Options(budget="60%"))
    attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    runs = [event for event in report.events if event.kind != "drop" and event.name.startswith("_scaled_dot")]
    for gm, phase in zip(pair, ("forward", "backward")):
        again = [event for event in runs if event.kind == "recompute" and event.phase == phase]
        assert count(gm, attend) == len(again) + (6 if phase == "forward" else 0)


def test_merged_steps_have_the_same_gradients():
    class Repeats(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(64, 64))

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(6):
                x = (x @ self.weight.sin()).tanh()
            return x.sum()

    torch.manual_seed(0)
    model, x = Repeats(), torch.randn(64, 64)
    gradients = []
    for compiled in (model, torch.compile(model, backend="dtr", options={"budget": "70%"})):
        compiled(x).backward()
        gradients.append(model.weight.grad)
        model.weight.grad = None
    assert torch.equal(*gradients)
