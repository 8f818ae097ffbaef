"""The extra compute of a graph in less memory: the smallest budget, and the curve of budget and overhead."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch.fx import GraphModule

from dtr_fx.errors import OptionError
from dtr_fx.inspect.views import Report
from dtr_fx.planning.alternatives import Alternatives, Chosen
from dtr_fx.planning.options import PERCENTS, Options, parse_budget
from dtr_fx.planning.planning import Planning, copy_of
from dtr_fx.planning.rewrite import Laps, carry_out, without_guards
from dtr_fx.planning.transform import readable_copy
from dtr_fx.report.curve import Curve, CurvePoint
from dtr_fx.runtime import Plan, collector_paused
from dtr_fx.search import execute_order


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
        As for ``transform``; 95%, 90%, … of the graph's own peak if None.  Left out are those that no plan
        fits, and those above a budget whose plan costs less.  The graph as it is and the smallest budget
        that is found are always there.
    options:
        As for the backend, without ``budget``, ``max_overhead`` and ``on_report``.
    watch:
        Called with how many budgets are done, and how many there are.

    >>> import torch, dtr_fx
    >>> gm = torch.fx.symbolic_trace(lambda x: x.sin().cos().exp().sum() + x.sin().sum())
    >>> dtr_fx.sweep(gm, example_inputs=[torch.ones(1024)]).points[0].overhead
    0.0
    """
    return Sweep(gm, budgets, _options(options), example_inputs, watch).curve


class Sweep:
    """The plans of one graph for many budgets; the arguments are those of ``sweep``.

    ``dominated`` are the budgets that the curve leaves out, as the plan for a smaller one costs less.
    """

    def __init__(
        self,
        gm: GraphModule,
        budgets: Iterable[float | int | str] | None,
        options: Options,
        example_inputs: Sequence[Any] | None = None,
        watch: Callable[[int, int], None] | None = None,
    ) -> None:
        specs = [parse_budget(budget) for budget in (PERCENTS if budgets is None else budgets)]
        graph, self._options = readable_copy(gm, example_inputs), options
        self._plans: dict[int, Chosen] = {}
        with collector_paused(), without_guards(graph):
            planning = self._planning = Planning(graph, options)
            alternatives = Alternatives(planning)
            smallest = alternatives.least_memory()
            least, whole = smallest[1], planning.baseline_peak
            self._specs = {planning.in_bytes(spec): spec for spec in reversed(specs)}
            wanted = sorted({least, *self._specs}, reverse=True)
            points = [CurvePoint(whole, whole, 0.0, 0.0)]
            for number, budget in enumerate(wanted, 1):
                if least <= budget < whole:
                    chosen = smallest if budget == least else alternatives.plan_at(budget)
                    found, _, plan = self._plans[budget] = chosen
                    least_overhead = found.least_overhead(budget, plan)
                    point = CurvePoint(budget, _peak(found, plan), found.overhead(plan), least_overhead)
                    points.append(point)
                if watch is not None:
                    watch(number, len(wanted))
        cheapest = [*itertools.accumulate((point.overhead for point in reversed(points)), min)]
        kept = [point for point, least in zip(points, reversed(cheapest)) if point.overhead <= least]
        self.dominated = [point.budget for point in points if point not in kept]
        self.curve = Curve(
            points=tuple(kept),
            baseline_peak=whole,
            constants=planning.graph.constant_bytes,
            lower_bound=min(each.planner.need.nbytes for each in (planning, alternatives.least) if each),
            base_cost=planning.graph.base_cost,
        )

    def report(self, budget: int) -> Report:
        """What ``transform`` reports of the plan at the budget of a point."""
        spec = self._specs.get(budget, parse_budget(budget))
        found, _, plan = self._plans.get(budget, (self._planning, budget, None))
        graph = copy_of(found.gm)
        with collector_paused(), without_guards(graph):
            planning = self._planning.of_variant(graph)
            planning.options = replace(self._options, budget=spec)
            return carry_out(graph, planning, budget, plan, Laps())


def _peak(planning: Planning, plan: Plan | None) -> int:
    """The peak of the graph that a plan is written into: it frees what a pass of a heuristic still holds."""
    if plan is None:
        return planning.peak(plan)
    return min(plan.peak, execute_order(planning.graph.program, plan.order).peak)


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
