"""No question to the planner takes more than four times the effort of one search, counted in work."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._functorch.aot_autograd import aot_export_joint_simple
from torch.fx import GraphModule

import dtr_fx
from dtr_fx import InfeasibleBudgetError
from dtr_fx.planning.curve import smallest_plan
from dtr_fx.planning.options import Options
from dtr_fx.search.walk import _Walk

SECONDS = 0.1
EFFORT: dict[str, Any] = {"plan_seconds": SECONDS}
PASSES = sys.modules["dtr_fx.search.search"]  # the module, not the function of its name


def tangled() -> GraphModule:
    """Some 25 operators, of which the smallest budget is far above the lower bound."""

    def step(x: Tensor, *weights: Tensor) -> tuple[Tensor]:
        h = x.tanh()
        k = (h @ weights[0]).tanh()
        return ((((k @ weights[1]).sin() * k).exp() @ weights[2]).sin().sum(),)

    return _joint(step, 3)


def layers() -> GraphModule:
    def step(x: Tensor, *weights: Tensor) -> tuple[Tensor]:
        for weight in weights:
            x = torch.nn.functional.gelu(x @ weight)
        return (x.square().sum(),)

    return _joint(step, 12)


def _joint(step: Callable[..., Any], count: int) -> GraphModule:
    weights = [torch.randn(16, 16, requires_grad=True) for _ in range(count)]
    return aot_export_joint_simple(step, (torch.randn(64, 16), *weights), trace_joint=True)


by_graph = pytest.mark.parametrize("make", [tangled, layers])


@pytest.fixture
def efforts(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], float]:
    """How many searches' effort something takes."""
    done = 0.0
    run_policy, find = PASSES.run_policy, _Walk.find

    def counted_pass(*arguments: Any, **options: Any) -> Any:
        nonlocal done
        run = run_policy(*arguments, **options)
        done += PASSES._work(run) / PASSES._OPERATORS_PER_SECOND
        return run

    def counted_walk(self: _Walk, *arguments: Any) -> Any:
        nonlocal done
        found = find(self, *arguments)
        done += self._spent()
        return found

    monkeypatch.setattr(PASSES, "run_policy", counted_pass)
    monkeypatch.setattr(_Walk, "find", counted_walk)

    def count(question: Callable[[], object]) -> float:
        before = done
        question()
        return (done - before) / SECONDS

    return count


def refuse(gm: GraphModule, budget: int) -> None:
    with pytest.raises(InfeasibleBudgetError):
        dtr_fx.transform(gm, budget, **EFFORT)


@by_graph
def test_a_search_takes_its_effort_or_less(make: Callable[[], GraphModule], efforts: Any) -> None:
    """Less, where the cheapest plan by then costs hardly more than any could."""
    assert 0 < efforts(lambda: dtr_fx.transform(make(), "90%", **EFFORT)) < 1.2


def test_a_search_takes_its_effort_where_there_is_much_to_gain(efforts: Any) -> None:
    assert 0.5 < efforts(lambda: dtr_fx.transform(tangled(), "70%", **EFFORT)) < 1.2


@by_graph
def test_to_say_that_nothing_fits_takes_at_most_four(make: Callable[[], GraphModule], efforts: Any) -> None:
    gm = make()
    with pytest.raises(InfeasibleBudgetError) as told:
        dtr_fx.transform(gm, 1, **EFFORT)
    error = told.value
    for budget in {1, error.lower_bound, (error.lower_bound + error.smallest) // 2, error.smallest - 1}:
        if budget < error.smallest:
            assert efforts(lambda budget=budget: refuse(gm, budget)) <= 4
    assert efforts(lambda: dtr_fx.transform(gm, error.smallest, **EFFORT)) <= 4


@by_graph
@pytest.mark.parametrize(
    "limit", [0, "30%", *(pytest.param(limit, marks=pytest.mark.slow) for limit in ("5%", "60%", "1000%"))]
)
def test_an_overhead_takes_at_most_four(make: Callable[[], GraphModule], limit: Any, efforts: Any) -> None:
    gm, reports = make(), []
    assert efforts(lambda: reports.append(dtr_fx.transform(gm, max_overhead=limit, **EFFORT)[1])) <= 4
    [report] = reports
    assert report.overhead <= (float(limit.strip("%")) / 100 if limit else 0)
    smallest = dtr_fx.smallest_budget(gm, max_overhead=limit, options=EFFORT)
    assert smallest == report.budget
    assert dtr_fx.transform(gm, smallest, **EFFORT)[1].overhead == pytest.approx(report.overhead)


@by_graph
def test_the_smallest_budget_takes_at_most_four_and_has_one_plan(
    make: Callable[[], GraphModule], efforts: Any
) -> None:
    gm, found = make(), []
    assert efforts(lambda: found.append(smallest_plan(gm, Options(**EFFORT)))) <= 4
    assert efforts(lambda: found.append(dtr_fx.sweep(gm, [], options=EFFORT).points[-1])) <= 4
    report, point = found
    again = dtr_fx.transform(gm, report.budget, **EFFORT)[1]
    assert dtr_fx.smallest_budget(gm, options=EFFORT) == report.budget == point.budget == again.budget
    assert [event.name for event in again.events] == [event.name for event in report.events]
    assert point.overhead == pytest.approx(again.overhead) == pytest.approx(report.overhead)


def test_a_sweep_takes_at_most_four_for_a_budget_and_looks_for_the_smallest_once(efforts: Any) -> None:
    gm = layers()
    least = efforts(lambda: dtr_fx.smallest_budget(gm, options=EFFORT))
    total = efforts(lambda: dtr_fx.sweep(gm, ["90%", "80%", "70%"], options=EFFORT))
    assert total <= least + 4 * 1.2 + 1.2  # of the smallest, from where its search starts again


def test_an_interrupt_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    gm = layers()
    before, wanted = gm.code, dtr_fx.transform(gm, "60%", **EFFORT)[0].code

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as interrupted:
        interrupted.setattr(_Walk, "_change", stop)
        with pytest.raises(KeyboardInterrupt):
            dtr_fx.transform(gm, "60%", **EFFORT)
    assert gm.code == before
    assert dtr_fx.transform(gm, "60%", **EFFORT)[0].code == wanted
