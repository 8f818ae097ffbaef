"""Higher-order operators in a training step: one operator each, costed from inside, recomputed when pure."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from steps import Function, chain, check, job
from torch import Tensor, nn
from torch._higher_order_ops import scan, while_loop

import dtr_fx
from dtr_fx import Report

WIDTH = 16


def branch(x: Tensor, layer: nn.Module) -> Tensor:
    y = chain(layer(x))
    z = torch.cond(x.sum() > 0, lambda y: (y @ y.t()).sin() @ y, lambda y: y.cos() * 2, (y,))
    return chain(layer(chain(z)))


def over_rows(x: Tensor, layer: nn.Module) -> Tensor:
    y = chain(layer(x))
    last, each = scan(lambda c, row: ((c * row).sin(), (c + row).cos()), y[0].clone(), y)
    return chain(layer(chain(each))) + last


def until_done(x: Tensor, layer: nn.Module) -> Tensor:
    y = chain(layer(x))
    with torch.no_grad():
        start = (torch.zeros((), dtype=torch.int64), y.detach())
        _, scale = while_loop(lambda i, _: i < 4, lambda i, s: (i + 1, s.sin() * 1.1), start)
    return chain(layer(chain(y * scale)))


def noisy_branch(x: Tensor, layer: nn.Module) -> Tensor:
    y = chain(layer(x))
    z = torch.cond(x.sum() > 0, lambda y: F.dropout(y.sin(), 0.5), lambda y: y.cos() * 2, (y,))
    return chain(layer(chain(z)))


FUNCTIONS = {f.__name__: f for f in (branch, over_rows, until_done, noisy_branch)}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_it_trains_as_under_aot_eager(name: str) -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(WIDTH, WIDTH), torch.randn(24, WIDTH)
    _, small = check(lambda: job(Function(FUNCTIONS[name], layer), x))
    assert small.changes > 0


def recomputed(function: Callable[..., Tensor]) -> set[str]:
    torch._dynamo.reset()
    layer, x, reports = nn.Linear(WIDTH, WIDTH), torch.ones(24, WIDTH), []

    def step(budget: float | int) -> Report:
        options = {"budget": budget, "planner": "online", "on_report": reports.append}
        torch.compile(lambda x: function(x, layer).sum(), backend="dtr", options=options)(x).backward()
        return reports[-1]

    with pytest.raises(dtr_fx.InfeasibleBudgetError) as caught:
        step(1)
    report = step(caught.value.smallest)
    return {event.origin.partition("_")[0] for event in report.events if event.kind == "recompute"}


def test_only_a_pure_one_is_run_again() -> None:
    assert "cond" in recomputed(branch)
    assert "cond" not in recomputed(noisy_branch)


def test_costs_and_peaks_are_those_of_the_inside() -> None:
    def cost_and_live(turns: int) -> tuple[float, int]:
        torch._dynamo.reset()
        reports: list[Report] = []

        def rows(x: Tensor, w: Tensor) -> Tensor:
            _, each = scan(lambda c, row: ((c + row @ w @ w).sin(), c * row), x[0].clone(), x)
            return each

        step = torch.compile(rows, backend="dtr", options={"on_report": reports.append})
        step(torch.randn(turns, 64, 64), torch.randn(64, 64))
        (event,) = (event for event in reports[0].events if event.origin == "scan")
        return event.cost, event.live - event.nbytes

    short, few = cost_and_live(4)
    long, many = cost_and_live(40)
    assert long == pytest.approx(10 * short, rel=0.2)
    matrix = 64 * 64 * 4
    # Two products, the sum, its sine and the product of a turn, of which three are alive at once or more.
    assert few - 4 * matrix >= 4 * matrix
    assert many - 40 * matrix == few - 4 * matrix


def test_an_exported_branch_takes_example_inputs() -> None:
    class Branch(nn.Module):
        def forward(self, flag: Tensor, x: Tensor) -> Tensor:
            return torch.cond(flag, lambda x: x.sin().cos(), lambda x: x.exp(), (x,)) * x.tanh()

    flag, x = torch.tensor(True), torch.randn(64, 32)
    gm = torch.export.export(Branch(), (flag, x)).module()
    rewritten, report = dtr_fx.transform(gm, 1.0, example_inputs=[flag, x])
    assert torch.equal(rewritten(flag, x), gm(flag, x))
    assert report.base_cost == dtr_fx.transform(gm, 1.0)[1].base_cost
