"""The temporary memory of operators, measured: the same whatever is going on around."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from functorch.compile import default_partition, nop
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch.fx import GraphModule

import dtr_fx
from dtr_fx.costs import workspaces as workspace


class Upsampled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.interpolate(x, scale_factor=2, mode="bilinear").exp()


def live_bytes(gm: GraphModule) -> dict[str, int]:
    _, report = dtr_fx.transform(gm, 1.0)
    return {point.name: point.live for point in report.before}


def test_an_operator_takes_as_much_while_a_compiler_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where AOTAutograd asks for a plan, the operator would run decomposed, on several times the memory."""
    x = torch.ones(2, 8, 64, 64)
    exported = torch.export.export(Upsampled(), (x,)).module()
    found: list[dict[str, int]] = []

    def partition(joint: GraphModule, inputs: Any, **facts: Any) -> Any:
        found.append(live_bytes(exported))
        return default_partition(joint, inputs, **facts)

    monkeypatch.setattr(workspace, "_measured", {})
    backend = aot_autograd(fw_compiler=nop, partition_fn=partition)
    torch.compile(lambda x: x * 2, backend=backend)(torch.ones(3, requires_grad=True))
    monkeypatch.setattr(workspace, "_measured", {})
    outside = live_bytes(exported)
    assert found == [outside]
    peak = dtr_fx.measure_peak(exported, x)
    assert max(outside.values()) == pytest.approx(x.nbytes + peak, rel=0.01)


@torch.library.custom_op("dtr_test::wide", mutates_args=())
def wide(x: Tensor) -> Tensor:
    """Sixteen times its result, for a moment."""
    return torch.stack([x.sin()] * 16).sum(0)


@wide.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(8, 16, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.cells(x)[0].sin().sum()


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (Recurrent(), (16, 4, 8)),
        (lambda x: F.cosine_similarity(x.sin().unsqueeze(0), x.cos().unsqueeze(1), -1).sum(), (32, 32)),
        (lambda x: wide(x.cos()).sum(), (64, 64)),
    ],
    ids=["a module", "a function", "a custom operator"],
)
def test_what_is_no_operator_of_pytorchs_is_measured(function: Any, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    gm = torch.fx.symbolic_trace(function)
    rewritten, report = dtr_fx.transform(gm, 1.0, example_inputs=[x])
    held = sum(tensor.nbytes for tensor in (x, *gm.parameters()))
    with torch.no_grad():
        assert held + dtr_fx.measure_peak(rewritten, x) == report.planned_peak
