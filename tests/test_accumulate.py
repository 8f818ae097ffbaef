"""Gradients of one value are added up in place, as eager PyTorch does it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

import dtr_fx
from dtr_fx.lab import baselines
from dtr_fx.passes.accumulate import AccumulateInPlace, AccumulateOutOfPlace
from dtr_fx.planning.options import Options
from dtr_fx.planning.planning import Planning

pytestmark = pytest.mark.little_effort

_WIDTH = 512  # a square of this in single precision is 1 MiB


class Repeated(nn.Module):
    """One weight, applied again and again: its gradient is a sum of as many as it is large."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(_WIDTH, _WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(4):
            x = self.linear(x).tanh()
        return x.sum()


def step(run: Callable[..., Tensor], model: nn.Module, x: Tensor) -> list[Tensor]:
    model.zero_grad()
    run(x).backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize("options", [{}, {"budget": "100%"}])
def test_a_gradient_that_is_a_sum_takes_two_tensors(options: dict[str, Any]) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x = Repeated(), torch.randn(16, _WIDTH)
    compiled = torch.compile(model, backend="dtr", options=options)
    assert all(map(torch.equal, step(compiled, model, x), step(model, model, x)))
    model.zero_grad()
    mebibytes = dtr_fx.measure_peak(lambda: compiled(x).backward(), device="cpu") / 2**20
    assert 2 <= mebibytes < 2.5


def test_a_sum_in_place_costs_what_it_cost() -> None:
    joint = baselines.trace(Repeated(), (torch.randn(16, _WIDTH),))
    traced, planned = (Planning(gm, Options()).base_cost for gm in (joint.graph, joint.planned))
    assert planned == pytest.approx(traced)


def sums_in_place(function: Callable[[Tensor], Tensor]) -> int:
    """How many sums are written in place if all of a function is a backward pass; it computes the same."""
    x = torch.randn(4, 4)
    gm = make_fx(function, tracing_mode="fake")(x)
    for node in gm.graph.nodes:
        if node.op == "call_function":
            node.meta["partitioner_tag"] = "is_backward"
    AccumulateInPlace().call(gm)
    gm.recompile()
    before = x.clone()
    assert torch.equal(gm(x), function(x))
    assert torch.equal(x, before)
    in_place = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.add_.Tensor)
    assert AccumulateOutOfPlace().call(gm) == bool(in_place)
    gm.recompile()
    assert torch.equal(gm(x), function(x))
    made = [node.meta["val"].untyped_storage()._cdata for node in gm.graph.nodes if "val" in node.meta]
    views = [node for node in gm.graph.nodes if node.target is torch.ops.aten.t.default]
    assert len({*made}) == len(made) - len(views)
    return len(in_place)


def test_a_sum_of_several_terms_is_one_tensor() -> None:
    assert sums_in_place(lambda x: (x.sin() + x.cos()) + x.tanh() + x.exp()) == 3
    assert sums_in_place(lambda x: (x.sin().t() + x.cos().t()) + x.tanh().t()) == 2


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + x.t(),  # inputs
        lambda x: ((s := x.sin()) + x) * s,  # read elsewhere
        lambda x: (s := x.sin()).t() @ (s + x.t()),  # through a view, too
        lambda x: x.sum(0) + x,  # of another shape
        lambda x: x + x.sin().t(),  # laid out otherwise
        lambda x: x.to(torch.float64).sin().to(torch.float32).half() + x,  # of another type
        lambda x: x.sin() + 1,
    ],
)
def test_what_is_read_or_laid_out_otherwise_is_not_written(function: Callable[[Tensor], Tensor]) -> None:
    assert sums_in_place(function) == 0
