"""What a graph costs in how much memory: the smallest budget, and the whole curve of budget and overhead."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx import GraphModule

from dtr_fx.options import Options, parse_budget, resolve_budget
from dtr_fx.passes.propagate import propagate
from dtr_fx.planning import Planning
from dtr_fx.search import Run

PERCENTS = tuple(f"{percent}%" for percent in range(95, 0, -5))


@dataclass(frozen=True)
class CurvePoint:
    """A plan: the budget it was made for and the peak that it reaches, in bytes, and its extra compute.

    ``overhead`` is a share of the graph's own compute: 0.1 is 10% more.
    """

    budget: int
    peak: int
    overhead: float


@dataclass(frozen=True)
class Curve:
    """The plans of one graph, from the largest budget down.

    ``baseline_peak`` is the peak of the graph as it is, ``constants`` its inputs and parameters and
    ``lower_bound`` what no plan can do without, all in bytes; ``base_cost`` are the seconds of the graph.
    A larger budget never costs more.
    """

    points: tuple[CurvePoint, ...]
    baseline_peak: int
    constants: int
    lower_bound: int
    base_cost: float

    def within(self, max_overhead: float) -> CurvePoint:
        """The point of the lowest peak whose overhead is not above ``max_overhead``."""
        return min(
            (point for point in self.points if point.overhead <= max_overhead), key=lambda point: point.peak
        )


def sweep(
    gm: GraphModule,
    budgets: Iterable[float | int | str] | None = None,
    *,
    options: Mapping[str, Any] | None = None,
    example_inputs: Sequence[Any] | None = None,
    watch: Callable[[int, int], None] | None = None,
) -> Curve:
    """Plan a graph for many budgets, and leave it as it is.

    Parameters
    ----------
    gm:
        As for ``transform``.
    budgets:
        As for ``transform``; 95%, 90%, … of the graph's own peak if None.  Those that no plan fits are left
        out.  The graph as it is and the smallest budget that is found are always there.
    options:
        As for the backend, without a budget.
    example_inputs:
        As for ``transform``.
    watch:
        Called with how many budgets are done, and how many there are.

    Raises
    ------
    OptionError, GraphError
        As ``transform`` does.

    Examples
    --------
    >>> import torch, dtr_fx
    >>> gm = torch.fx.symbolic_trace(lambda x: x.sin().cos().exp().sum() + x.sin().sum())
    >>> dtr_fx.sweep(gm, example_inputs=[torch.ones(1024)]).points[0].overhead
    0.0
    """
    planning = _planning(gm, options, example_inputs)
    asked = {_bytes(planning, budget) for budget in (PERCENTS if budgets is None else budgets)}
    wanted = sorted((budget for budget in asked if budget < planning.baseline_peak), reverse=True)
    lowest = planning.planner.smallest()
    runs = {lowest.runtime.peak: lowest}
    for number, budget in enumerate(wanted):
        if budget > lowest.runtime.peak:
            runs[budget] = planning.planner.plan(budget)
        if watch is not None:
            watch(number + 1, len(wanted))
    return Curve(
        points=tuple(_points(planning, runs)),
        baseline_peak=planning.baseline_peak,
        constants=planning.program.constant_bytes,
        lower_bound=planning.need.nbytes,
        base_cost=planning.program.base_cost,
    )


def smallest_budget(
    gm: GraphModule,
    *,
    max_overhead: float | str | None = None,
    options: Mapping[str, Any] | None = None,
    example_inputs: Sequence[Any] | None = None,
) -> int:
    """The smallest budget, in bytes, that a plan is found for: at any overhead, or at most at ``max_overhead``.

    Parameters
    ----------
    max_overhead:
        Extra compute as a share of the graph's own: 0.1 or ``"10%"``.

    Raises
    ------
    OptionError, GraphError
        As ``transform`` does.
    """
    given = dict(options or {})
    if max_overhead is not None:
        given["max_overhead"] = max_overhead
    planning = _planning(gm, given, example_inputs)
    run = planning.least_memory()
    return planning.baseline_peak if run is None else run.runtime.peak


def _planning(
    gm: GraphModule, options: Mapping[str, Any] | None, example_inputs: Sequence[Any] | None
) -> Planning:
    chosen = Options.from_mapping(options)
    graph = GraphModule(gm, copy.deepcopy(gm.graph))
    propagate(graph, example_inputs)
    return Planning(graph, chosen)


def _bytes(planning: Planning, budget: float | int | str) -> int:
    held = planning.program.constant_bytes
    return resolve_budget(
        parse_budget(budget), planning.baseline_peak, planning.program.device, already_held=held
    )


def _points(planning: Planning, runs: Mapping[int, Run]) -> Iterable[CurvePoint]:
    """From the largest budget down; a plan for less memory that costs less serves a larger budget, too."""
    base = planning.program.base_cost
    points = [CurvePoint(planning.baseline_peak, planning.baseline_peak, 0.0)]
    cheapest: Run | None = None
    upwards = []
    for budget, run in sorted(runs.items()):
        if cheapest is None or run.cost < cheapest.cost:
            cheapest = run
        overhead = cheapest.cost / base if base else 0.0
        upwards.append(CurvePoint(budget, cheapest.runtime.peak, overhead))
    return points + upwards[::-1]
