"""What a graph costs in how much memory: the smallest budget, and the whole curve of budget and overhead."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch.fx import GraphModule

from dtr_fx.errors import OptionError
from dtr_fx.passes.propagate import propagate
from dtr_fx.planning.options import Budget, Options, parse_budget, resolve_budget
from dtr_fx.planning.planning import Planning
from dtr_fx.planning.transform import forget_earlier_rewrite, without_guards
from dtr_fx.runtime import collector_paused
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
        """The point of the lowest peak whose overhead is not above ``max_overhead``, 0 or more."""
        if not max_overhead >= 0:
            raise OptionError(f"max_overhead={max_overhead!r}: write a share of the graph's own compute, 0.1")
        points = (point for point in self.points if point.overhead <= max_overhead)
        return min(points, key=lambda point: point.peak)


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
        As for the backend, without ``budget``, ``max_overhead`` and ``on_report``.
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
    specs = [parse_budget(budget) for budget in (PERCENTS if budgets is None else budgets)]
    graph, chosen = _copy(gm, example_inputs), _options(options)
    with collector_paused(), without_guards(graph):
        planning = Planning(graph, chosen)
        wanted = sorted({_bytes(planning, spec) for spec in specs}, reverse=True)
        runs = _runs(planning, wanted, watch or _nobody)
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
    """The smallest budget, in bytes, that a plan is found for: at any overhead, or within ``max_overhead``.

    Parameters
    ----------
    max_overhead:
        Extra compute as a share of the graph's own: 0.1 or ``"10%"``.

    Returns
    -------
    int
        The graph's own peak where none is below.  A budget: ``transform`` finds a plan for it, within the
        overhead.

    Raises
    ------
    OptionError, GraphError
        As ``transform`` does.
    """
    given = dict(options or {})
    if max_overhead is not None:
        given["max_overhead"] = max_overhead
    graph, chosen = _copy(gm, example_inputs), _options(given, may="max_overhead")
    with collector_paused(), without_guards(graph):
        planning = Planning(graph, chosen)
        run = planning.least_memory()
        if run is None or run.runtime.peak >= planning.baseline_peak:
            return planning.baseline_peak
        # Of two plans that fit a budget, a search may miss either.
        again = planning.planner.plan(run.runtime.peak)
        return run.runtime.peak if planning.keeps_overhead(again) else int(run.runtime.budget)


def _options(given: Mapping[str, Any] | None, may: str = "") -> Options:
    for name in ("budget", "max_overhead", "watch", "report", "on_report"):
        if given and name in given and name != may:
            raise OptionError(f"options={{{name!r}: ...}} belongs to one plan: leave it out here")
    return Options.from_mapping(given)


def _copy(gm: GraphModule, example_inputs: Sequence[Any] | None) -> GraphModule:
    with warnings.catch_warnings():
        # What torch itself deprecates is in the copy.
        warnings.simplefilter("ignore", FutureWarning)
        graph = GraphModule(gm, copy.deepcopy(gm.graph))
    forget_earlier_rewrite(graph)
    propagate(graph, example_inputs)
    return graph


def _bytes(planning: Planning, spec: Budget) -> int:
    program = planning.program
    return resolve_budget(spec, planning.baseline_peak, program.device, already_held=program.constant_bytes)


def _nobody(done: int, of: int) -> None: ...


def _runs(planning: Planning, wanted: Sequence[int], watch: Callable[[int, int], None]) -> dict[int, Run]:
    """Plans by their budgets, that of the smallest budget among them."""
    lowest = planning.planner.smallest
    runs = {lowest.runtime.peak: lowest}
    for number, budget in enumerate(wanted, 1):
        if lowest.runtime.peak < budget < planning.baseline_peak:
            runs[budget] = planning.planner.plan(budget)
        watch(number, len(wanted))
    return {budget: run for budget, run in runs.items() if budget < planning.baseline_peak}


def _points(planning: Planning, runs: Mapping[int, Run]) -> list[CurvePoint]:
    """From the largest budget down; a plan for less memory that costs less serves a larger budget, too."""
    base = planning.program.base_cost
    best: tuple[float, int] | None = None
    upwards = []
    for budget, run in sorted(runs.items()):
        found = planning.extra(run), run.runtime.peak
        best = found if best is None or found[0] < best[0] else best
        upwards.append(CurvePoint(budget, best[1], best[0] / base if base else 0.0))
    return [CurvePoint(planning.baseline_peak, planning.baseline_peak, 0.0), *reversed(upwards)]
