"""The extra compute of a graph in less memory: the smallest budget, and the curve of budget and overhead."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch.fx import GraphModule

from dtr_fx.errors import OptionError
from dtr_fx.inspect.views import Report
from dtr_fx.planning.options import Options, parse_budget
from dtr_fx.planning.planning import Planning
from dtr_fx.planning.slices import Alternatives
from dtr_fx.planning.transform import Laps, carry_out, readable_copy, without_guards
from dtr_fx.report import Curve, CurvePoint
from dtr_fx.runtime import collector_paused

PERCENTS = tuple(f"{percent}%" for percent in range(95, 0, -5))


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
    gm, example_inputs:
        As for ``transform``, whose errors are raised.
    budgets:
        As for ``transform``; 95%, 90%, … of the graph's own peak if None.  Those that no plan fits are left
        out.  The graph as it is and the smallest budget that is found are always there.
    options:
        As for the backend, without ``budget``, ``max_overhead`` and ``on_report``.
    watch:
        Called with how many budgets are done, and how many there are.

    >>> import torch, dtr_fx
    >>> gm = torch.fx.symbolic_trace(lambda x: x.sin().cos().exp().sum() + x.sin().sum())
    >>> dtr_fx.sweep(gm, example_inputs=[torch.ones(1024)]).points[0].overhead
    0.0
    """
    specs = [parse_budget(budget) for budget in (PERCENTS if budgets is None else budgets)]
    graph, chosen = readable_copy(gm, example_inputs), _options(options)
    with collector_paused(), without_guards(graph):
        planning = Planning(graph, chosen)
        alternatives = Alternatives(planning)
        smallest = alternatives.least_memory()
        least, whole = smallest[1], planning.baseline_peak
        wanted = sorted({least, *map(planning.in_bytes, specs)}, reverse=True)
        points = [CurvePoint(whole, whole, 0.0)]
        for number, budget in enumerate(wanted, 1):
            if least <= budget < whole:
                found, _, plan = smallest if budget == least else alternatives.plan_at(budget)
                points.append(CurvePoint(budget, found.peak(plan), found.overhead(plan)))
            if watch is not None:
                watch(number, len(wanted))
    return Curve(
        points=tuple(points),
        baseline_peak=whole,
        constants=planning.graph.constant_bytes,
        lower_bound=min(each.planner.need.nbytes for each in (planning, alternatives.least) if each),
        base_cost=planning.graph.base_cost,
    )


def smallest_budget(
    gm: GraphModule,
    *,
    max_overhead: float | str | None = None,
    options: Mapping[str, Any] | None = None,
    example_inputs: Sequence[Any] | None = None,
) -> int:
    """The smallest budget, in bytes, that a plan is found for: at any overhead, or within ``max_overhead``.

    ``max_overhead`` is extra compute as a share of the graph's own: 0.1 or ``"10%"``.  ``transform`` finds a
    plan for the budget, within the overhead; it is the graph's own peak where none is below.  The rest is as
    for ``sweep``.
    """
    given = dict(options or {})
    if max_overhead is not None:
        given["max_overhead"] = max_overhead
    graph, chosen = readable_copy(gm, example_inputs), _options(given, may="max_overhead")
    with collector_paused(), without_guards(graph):
        planning = Planning(graph, chosen)
        return min(Alternatives(planning).least_memory()[1], planning.baseline_peak)


def smallest_plan(gm: GraphModule, options: Options) -> Report:
    """The plan for ``smallest_budget``'s bytes, which is ``transform``'s."""
    graph = readable_copy(gm, None)
    with collector_paused(), without_guards(graph):
        planning, budget, plan = Alternatives(Planning(graph, options)).least_memory()
        if options.max_overhead is None:
            planning.options = replace(options, budget=parse_budget(budget))
        return carry_out(graph, planning, budget, plan, Laps())


def _options(given: Mapping[str, Any] | None, may: str = "") -> Options:
    for name in ("budget", "max_overhead", "watch", "report", "on_report"):
        if given and name in given and name != may:
            raise OptionError(f"options={{{name!r}: ...}} belongs to one plan: leave it out here")
    return Options.from_mapping(given)
