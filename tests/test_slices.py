"""Operators in slices: below the lower bound of the graph as it is, with the same results."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from steps import bits
from torch import Tensor, nn
from torch._functorch.aot_autograd import aot_export_joint_simple
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

import dtr_fx
from dtr_fx import InfeasibleBudgetError, OptionError, Report, measure_peak

pytestmark = pytest.mark.little_effort

WORDS, WIDTH, BATCH, LENGTH = 1024, 16, 4, 64


class Words(nn.Module):
    """A language model whose logits and loss weigh most."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.layer = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU())
        self.head = nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.embedding(x)
        logits = self.head(h + self.layer(h))
        return F.cross_entropy(logits.view(-1, WORDS), y.view(-1))


class Images(nn.Module):
    """Convolutions without a norm, so that images do not mix before the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
        self.last = nn.Linear(8, 2)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.second(self.first(x).relu()).relu()
        return F.cross_entropy(self.last(h.mean((2, 3))), y)


def words() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    return Words(), (torch.randint(WORDS, (BATCH, LENGTH)), torch.randint(WORDS, (BATCH, LENGTH)))


def images() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    torch.manual_seed(0)
    return Images(), (torch.randn(16, 3, 24, 24), torch.randint(2, (16,)))


def step(model: nn.Module, inputs: Any, forward: Any) -> list[Tensor]:
    """The loss and the gradients of a step."""
    model.zero_grad()
    loss = forward(*inputs)
    loss.backward()
    return [loss.detach(), *(parameter.grad.clone() for parameter in model.parameters())]


def compiled(model: nn.Module, reports: list[Report], **options: Any) -> Any:
    torch._dynamo.reset()
    given = {"cache": False, "executor": "eager", "on_report": reports.append, **options}
    return torch.compile(model, backend="dtr", options=given)


def smallest(model: nn.Module, inputs: Any, slices: str) -> int:
    """The smallest budget, as the error for a budget that is too small names it."""
    with pytest.raises(InfeasibleBudgetError) as raised:
        step(model, inputs, compiled(model, [], budget="5%", slices=slices))
    return raised.value.smallest


def peak(model: nn.Module, inputs: Any, forward: Any) -> int:
    """Bytes of a step, with parameters and inputs; gradients are new."""
    model.zero_grad()
    held = sum(tensor.nbytes for tensor in (*model.parameters(), *inputs))
    return held + measure_peak(lambda: forward(*inputs).backward())


@pytest.mark.parametrize("make", [words, images])
@pytest.mark.parametrize("slices", ["exact", "summed"])
def test_a_step_fits_where_none_did(make: Any, slices: str) -> None:
    model, inputs = make()
    expected = step(model, inputs, compiled(model, [], budget="100%"))
    least, reports = smallest(model, inputs, slices), []
    whole = smallest(model, inputs, "off")
    if make is words:
        assert least <= (0.45 if slices == "exact" else 0.3) * whole
    assert least <= whole
    forward = compiled(model, reports, budget=least, slices=slices)
    found = step(model, inputs, forward)
    assert peak(model, inputs, forward) <= least
    if slices == "exact":
        assert [bits(each) for each in found] == [bits(each) for each in expected]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-7)
    [report] = reports
    assert report.verdict == "fits"
    assert all(region.exact for region in report.slices) or slices == "summed"
