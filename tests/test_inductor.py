"""Inductor as the executor: the peak that is measured is within the budget, and results are Inductor's own.

Each model's kernels are such that Inductor's fusion would undo a plan, if it were left alone.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import dtr_fx
from dtr_fx import OptionError, Report, measure_peak

WIDTH = 256


class Residual(nn.Module):
    """x + inner(x), some times."""

    def __init__(self, make: Callable[[], nn.Module], count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(make() for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x.square().mean()


class Attention(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.inward, self.outward = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.inward(self.norm(x)).view(8, -1, 3, 4, WIDTH // 4).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(-1, WIDTH)
        return F.dropout(self.outward(mixed), self.dropout, self.training)


def norms() -> nn.Module:
    return nn.Sequential(nn.LayerNorm(WIDTH), nn.Tanh())


def norm_and_matmul() -> nn.Module:
    return nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH))


def gelu_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))


def dropouts() -> nn.Module:
    return Attention(dropout=0.2)


def gradients(model: nn.Module, step: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    torch.manual_seed(0)
    loss = step(x)
    loss.backward()
    found = [loss.detach(), *(parameter.grad for parameter in model.parameters())]
    model.zero_grad(set_to_none=True)
    return found


@pytest.mark.parametrize("make", [norms, norm_and_matmul, gelu_mlp, Attention, dropouts])
def test_the_measured_peak_is_within_the_budget(make):
    torch.manual_seed(0)
    model, x = Residual(make, 6), torch.randn(2048, WIDTH)
    expected = gradients(model, torch.compile(model), x)
    reports: list[Report] = []
    torch._dynamo.reset()
    options = {"budget": "50%", "executor": "inductor", "on_report": reports.append}
    step = torch.compile(model, backend="dtr", options=options)
    torch.testing.assert_close(gradients(model, step, x), expected)
    [report] = reports
    assert report.recomputes
    held = x.nbytes + sum(parameter.nbytes for parameter in model.parameters())
    measured = held + measure_peak(gradients, model, step, x)
    print(make.__name__, report.baseline_peak, report.budget, report.planned_peak, measured)
    assert measured <= 0.5 * report.baseline_peak
