"""Suites of strangers: random models, and PyTorch's own operators, modules and higher-order operators.

A few of each; ``random_models.py`` and ``strangers.py`` run them all.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import pytest
import random_steps
import torch
from against_eager import check
from random_models import case_of, write_source
from strangers import SUITES
from torch import nn

from dtr_fx import InfeasibleBudgetError, Report, measure_peak
from dtr_fx.runtime import Program
from dtr_fx.runtime.program import Call, Constant, Keep, Output
from dtr_fx.search import execute_order

pytestmark = pytest.mark.little_effort


@pytest.mark.parametrize(
    "seed",
    [
        1,
        4,
        10,
        214,
        *(pytest.param(seed, marks=pytest.mark.slow) for seed in (2, 3, 6, 9, 11, 100, 250, 518)),
    ],
)
def test_a_random_model_trains_as_in_eager(seed: int) -> None:
    outcome = check(case_of(write_source(seed)))
    assert outcome.verdict != "failed", outcome.detail
    assert outcome.budgets or outcome.verdict == "refused"


@pytest.mark.parametrize("seed", [6, 13])
def test_a_random_model_trains_in_whole_steps_as_in_eager(seed: int) -> None:
    assert random_steps.check(seed) == "equal"


@functools.cache
def strangers() -> dict[str, Any]:
    return dict(itertools.chain(*(suite() for suite in SUITES.values())))


@pytest.mark.parametrize(
    "name",
    [
        "op_db/chunk/float32/0",  # tangents in one storage
        "op_db/linalg.qr/complex64/0",
        "op_db/linalg.svd/complex64/0",  # which no backend traces
        "op_db/tensor_split/float32/1",  # nor this
        "op_db/kron/complex64/0",  # products of complex numbers in slices
        "op_db/quantile/float32/1",  # of a few bytes
        "op_db/nn.functional.dropout/float32/0",
        "op_db/index_put/float32/0",
        "module_db/nn.BatchNorm2d/0",
        "hop_db/cond.simple/float32/0",
    ],
)
def test_a_stranger_trains_as_in_eager(name: str) -> None:
    outcome = check(strangers()[name]())
    assert outcome.verdict == "equal", outcome.detail
    assert outcome.budgets[-1] == "100%"


class WritesARow(nn.Module):
    """Writes a part of a buffer: of a view, PyTorch's ``copy`` allocates the whole storage."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = nn.Buffer(torch.zeros(256, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.cache[:4] = x[:4]
        return x.view(-1)


class GivesADetachedValue(nn.Module):
    """Returns a value that the backward pass reads, detached."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(16, 16)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a = x.tanh()
        b = self.cell(a.square().neg().exp())
        return (a * a.sin()).mean() + (b * b.sin()).mean(), self.view(b)

    def view(self, b: torch.Tensor) -> torch.Tensor:
        return b.detach()


class GivesAView(GivesADetachedValue):
    """Returns a value that the backward pass reads, as a view of it."""

    def view(self, b: torch.Tensor) -> torch.Tensor:
        return b.view_as(b)


@pytest.mark.parametrize("make", [WritesARow, GivesADetachedValue, GivesAView])
def test_the_smallest_budget_is_kept(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model, x = make(), torch.randn(256, 16)

    def step(compiled: Any) -> None:
        outputs = compiled(x)
        if isinstance(outputs, tuple):
            outputs[0].backward()

    budget: Any = 1
    for _ in range(2):
        torch._dynamo.reset()
        reports: list[Report] = []
        options = {"budget": budget, "plan_seconds": 0.02, "on_report": reports.append}
        compiled = torch.compile(model, backend="dtr", options=options)
        try:
            step(compiled)
        except InfeasibleBudgetError as error:
            budget = error.smallest
    [report] = reports
    model.zero_grad()
    assert measure_peak(lambda: step(compiled)) <= report.budget - report.constants


def test_a_view_that_is_taken_twice_is_not_deferred() -> None:
    def call(name: str, inputs: tuple[int, ...], output: Output, *, may_defer: bool = False) -> Call:
        return Call(name, inputs, (output,), cost=1.0, workspace=0, may_defer=may_defer)

    program = Program(
        "views",
        (
            Constant(0, 4),
            call("made", (0,), Output(1, 4)),
            call("starts", (0,), Output(2, 4)),
            call("view", (1,), Output(3, 0, 1), may_defer=True),
            call("read", (3,), Output(4, 4)),
            Keep(4),
        ),
        1,
    )
    plan = execute_order(program, [0, 1, 2, 3, 2, 3])
    assert plan.peak >= 12
