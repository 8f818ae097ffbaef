"""``transform``: any FX graph, rewritten to run inside a byte budget."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal

from torch.fx import GraphModule

from dtr_fx.costs import roofline as cost_model
from dtr_fx.errors import GraphError, InfeasibleBudgetError
from dtr_fx.inspect.views import Report
from dtr_fx.passes.contract import ORDER, VALUES, Pipeline
from dtr_fx.passes.drops import ForgetPlan
from dtr_fx.passes.liveness import allocations, points_of, reserve
from dtr_fx.passes.propagate import Propagate, fake_mode_of
from dtr_fx.passes.reach import Reached, reached_by_caller, relied_on
from dtr_fx.passes.verify import Verify, check_budget, check_reserved
from dtr_fx.passes.write import Write
from dtr_fx.planning.alternatives import Alternatives
from dtr_fx.planning.options import Options
from dtr_fx.planning.parts import check_parts
from dtr_fx.planning.planning import Carried, Planning, copy_of
from dtr_fx.planning.reporting import (
    choices,
    events_of,
    hints_of,
    make_report,
    names_of,
    slices_of,
    source_line,
    stats_of,
)
from dtr_fx.report import Relied
from dtr_fx.runtime import Heuristic, Plan, collector_paused
from dtr_fx.runtime.caching_allocator import CachingAllocator
from dtr_fx.runtime.heuristics import Score
from dtr_fx.runtime.steps import COMPUTE
from dtr_fx.search import NOTHING, execute_order

log = logging.getLogger(__name__)


def transform(
    gm: GraphModule,
    budget: float | int | str = 1.0,
    *,
    max_overhead: float | str | None = None,
    heuristic: str | Heuristic | Score = "next-use",
    costs: str | cost_model.Cost | Mapping[Any, float] = "auto",
    planner: Literal["search", "online"] = "search",
    plan_seconds: float | None = None,
    slices: Literal["exact", "summed", "off"] = "exact",
    offload: Any = None,
    count: Literal["allocated", "reserved"] = "allocated",
    example_inputs: Sequence[Any] | None = None,
) -> tuple[GraphModule, Report]:
    """Rewrite a graph so that its live bytes never exceed ``budget``; the original is left as it was.

    What is returned is the rewritten graph, with its Drop and Recompute nodes, and what was done.

    Parameters
    ----------
    gm:
        Any FX graph: from ``symbolic_trace``, ``make_fx``, ``torch.export`` (its module), AOTAutograd.
    budget:
        ``0.6`` or ``"60%"`` of the graph's own peak, bytes, ``"8GiB"``, ``"8GB"``, or ``"auto"``.  It
        counts inputs, parameters, activations and outputs on the graph's device.
    max_overhead, heuristic, costs, planner, plan_seconds, slices, offload, count:
        See ``dtr_fx.planning.options.Options``.
    example_inputs:
        Needed by graphs whose nodes have no ``meta["val"]``: their shapes are found with fake tensors.

    Raises
    ------
    OptionError, GraphError
        An option that cannot be understood; a graph without operators, or without shapes and example inputs.
    InfeasibleBudgetError
        No plan fits; the error holds the smallest budget that works.

    >>> import torch, dtr_fx
    >>> def f(x):
    ...     a = x.sin(); b = a.cos(); c = b.exp()
    ...     return c.sum() + a.sum()
    >>> gm = torch.fx.symbolic_trace(f)
    >>> rewritten, report = dtr_fx.transform(gm, 1.0, example_inputs=[torch.ones(1024)])
    >>> bool(rewritten(torch.ones(1024)) == gm(torch.ones(1024)))
    True
    """
    options = Options(
        budget,
        max_overhead,
        heuristic,
        costs,
        planner,
        plan_seconds,
        slices=slices,
        offload=offload,
        count=count,
    )
    return rewritten_copy(gm, options, example_inputs)


def rewritten_copy(
    gm: GraphModule, options: Options, example_inputs: Sequence[Any] | None = None
) -> tuple[GraphModule, Report]:
    """See ``transform``."""
    if not isinstance(gm, GraphModule):
        raise GraphError(
            f"{type(gm).__name__} is no FX graph: trace it with torch.export.export(...).module(), make_fx "
            'or torch.fx.symbolic_trace, or compile it, torch.compile(model, backend="dtr")'
        )
    rewritten = readable_copy(gm, example_inputs)
    report = rewrite(rewritten, options)
    for tensor in report.relied:
        log.warning("%s", tensor)
    rewritten.recompile()
    return rewritten, report


def readable_copy(gm: GraphModule, example_inputs: Sequence[Any] | None) -> GraphModule:
    """A copy to plan for: with the shapes of the example inputs, and without an earlier plan."""
    copied = copy_of(gm)
    Pipeline(ForgetPlan(), Propagate(example_inputs))(copied)
    return copied


def rewrite(gm: GraphModule, options: Options, *, saves_nothing: bool = False) -> Report:
    """Rewrite a graph with shapes in place; it is changed only if a plan fits.

    A graph that ``saves_nothing`` for a backward pass has a small peak and little to give up: its share is of
    the largest step so far, and one that no plan reaches is no error: the graph stays as it is.
    """
    return rewrite_for_all(gm, options, saves_nothing=saves_nothing)[0]


def rewrite_for_all(
    gm: GraphModule, options: Options, *, saves_nothing: bool = False
) -> tuple[Report, Carried | None]:
    """As ``rewrite``, with what ``rewrite_alike`` takes: None where the plan relies on the caller."""
    if saves_nothing:
        shared = options.budget
        options = replace(options, budget=replace(shared, others=shared.others.of_largest_step))
    with collector_paused(), without_guards(gm):
        laps = Laps()
        planning = Planning(gm, options)
        laps.take("analysis")
        try:
            planning, budget, plan = Alternatives(planning).plan(saves_nothing=saves_nothing)
        except InfeasibleBudgetError as error:
            if saves_nothing or not planning.graph.reached:
                raise
            return _trusting_the_caller(gm, options, error.smallest, laps), None
        order, moved = (None, NOTHING) if plan is None else (plan.order, plan.moved)
        carried = Carried(planning.graph.program.structure, order, moved)
        return carry_out(gm, planning, budget, plan, laps), carried


def rewrite_alike(
    gm: GraphModule, options: Options, earlier: Iterable[Carried]
) -> tuple[Report, Carried] | None:
    """Rewrite a graph as it was rewritten at other sizes; None where none of these ways is worth having.

    To time the operators of each size would take longer than all the rest.
    """
    if options.costs == "auto":
        options = replace(options, costs="roofline")
    with collector_paused(), without_guards(gm):
        laps = Laps()
        planning = Planning(gm, options)
        laps.take("analysis")
        found = planning.carried_over(earlier)
        if found is None:
            return None
        carried, plan = found
        return carry_out(gm, planning, planning.limit, plan, laps), carried


def write_alike(gm: GraphModule, carried: Carried, options: Options) -> bool:
    """Rewrite a graph as one of other sizes, at any peak; False where they are not the same program."""
    with collector_paused(), without_guards(gm):
        graph = Planning(gm, options).graph
        if graph.program.structure != carried.structure:
            return False
        if carried.order is not None:
            plan = execute_order(graph.program, carried.order, math.inf, carried.moved)
            Pipeline(Write(graph, plan, str(options.offload or "")), Verify(), given=(VALUES, ORDER))(gm)
        return True


def _trusting_the_caller(gm: GraphModule, options: Options, safe: int, laps: Laps) -> Report:
    """Rewrite a graph whose plans fit only if they recompute from what the caller may write."""
    planning, budget, plan = Alternatives(Planning(gm, options, trusts_caller=True)).plan()
    report = carry_out(gm, planning, budget, plan, laps)
    return replace(report, relied=_relied(gm, planning.graph.reached, safe))


def _relied(gm: GraphModule, reached: Mapping[int, Reached], safe: int) -> tuple[Relied, ...]:
    return tuple(
        Relied(tensor.kind, tensor.position, tensor.node.name, source_line(tensor.node), safe)
        for tensor in relied_on(gm, reached)
    )


def without_guards(gm: GraphModule) -> contextlib.AbstractContextManager[None]:
    """Sizes count as they are in the trace at hand, but the graph is to serve inputs of other sizes, too."""
    mode = fake_mode_of(gm)
    shapes = mode.shape_env if mode is not None else None
    return shapes.suppress_guards() if shapes is not None else contextlib.nullcontext()


def carry_out(gm: GraphModule, planning: Planning, budget: int, plan: Plan | None, laps: Laps) -> Report:
    """Write a plan into the graph, verify the graph and report on it; None leaves its order as it is.

    The graph becomes that of the analysis, if this is of one that computes the same in slices.
    """
    laps.take("plan")
    parameters = reached_by_caller(gm, "parameter")
    if planning.gm is not gm:
        gm.graph = planning.gm.graph
    passes = (
        () if plan is None else (Write(planning.graph, plan, str(planning.options.offload or "")), Verify())
    )
    Pipeline(*passes, given=(VALUES, ORDER))(gm, laps.take)
    graph, options = planning.graph, planning.options
    steps = list(allocations(gm, planning.workspace_of, graph.device))
    after = points_of(steps)
    if plan is not None:
        check_budget(after, budget)
    allocator = CachingAllocator.as_configured()
    reserve(steps, allocator)
    if options.count == "reserved" and plan is not None:
        check_reserved(allocator.reserved, budget)
    laps.take("liveness")
    events = events_of(gm, graph, after)
    report = make_report(
        need=planning.planner.need,
        plan=plan,
        budget=budget,
        asked=options.asked,
        base_cost=planning.base_cost,
        constants=graph.constant_bytes,
        device=str(graph.device),
        before=planning.before,
        after=after,
        events=events,
        storages=stats_of(graph, events),
    )
    laps.take("report")
    relied = _relied(gm, parameters, planning.whole)
    hints = hints_of(graph, options.policy, events, report.storages)
    check_parts(hints, planning.planner.parts.parts)
    report = replace(
        report,
        seconds=laps.seconds,
        relied_parameters=relied,
        unconstrained_peak=planning.whole,
        unconstrained_saved=planning.saved,
        hints=hints,
        sane_from=planning.sane_from(plan),
        least_overhead=planning.least_overhead(budget, plan),
        costs=planning.costs,
        step_before=planning.step_before,
        step_after=planning.step_seconds(gm, report.total_cost),
        options=options.others,
        slices=slices_of(gm),
        reserved_peak=allocator.reserved,
        offload=planning.offload,
        outside_peak=0 if plan is None else plan.outside,
    )
    if plan is not None and options.watch is not None:
        origins = {number: call.node.name for number, call in enumerate(graph.calls) if call.role == COMPUTE}
        watched = choices(planning.planner, plan, options.watch, names_of(graph), origins, events)
        report = replace(report, choices=watched)
    is_fine = report.verdict == "fits" and not report.caution
    others = options.budget.others
    # What step it is part of is not known yet; the compiler says so once it is.
    is_early = report.verdict == "left as it is" and others.is_part and not others.largest
    log.log(
        logging.INFO if is_fine or is_early else logging.WARNING, "%s%s", report.summary(), report.caution
    )
    return report


class Laps:
    """Seconds by what they were spent on."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._started = time.perf_counter()

    def take(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[stage] = now - self._started
        self._started = now
