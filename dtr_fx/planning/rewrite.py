"""A graph with shapes, rewritten in place: planned, written, verified and reported on."""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from torch.fx import GraphModule

from dtr_fx import search
from dtr_fx.errors import InfeasibleBudgetError
from dtr_fx.inspect.views import Report
from dtr_fx.passes.contract import ORDER, VALUES, Pipeline
from dtr_fx.passes.hints import hint_of
from dtr_fx.passes.liveness import with_reserved
from dtr_fx.passes.modes import fake_mode_of
from dtr_fx.passes.reach import Reached, reached_by_caller, relied_on
from dtr_fx.passes.storages import GraphProgram
from dtr_fx.passes.verify import Verify, check_budget, check_reserved
from dtr_fx.passes.write import Write
from dtr_fx.planning.alternatives import Alternatives
from dtr_fx.planning.options import Options, Others
from dtr_fx.planning.planning import Carried, Planning
from dtr_fx.planning.reporting import (
    events_of,
    make_report,
    names_of,
    slices_of,
    source_line,
    stats_of,
)
from dtr_fx.report import Choice, Event, HintStats, Relied, StorageStats
from dtr_fx.runtime import Plan, collector_paused
from dtr_fx.runtime.steps import COMPUTE
from dtr_fx.search import NOTHING

log = logging.getLogger(__name__)


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
        graph = Planning(gm, replace(options, costs="roofline")).graph
        if graph.program.structure != carried.structure:
            return False
        if carried.order is not None:
            plan = search.execute_order(graph.program, carried.order, math.inf, carried.moved)
            Pipeline(_write(graph, plan, options), Verify(), given=(VALUES, ORDER))(gm)
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
    passes = () if plan is None else (_write(planning.graph, plan, planning.options), Verify())
    Pipeline(*passes, given=(VALUES, ORDER))(gm, laps.take)
    after, reserved = with_reserved(gm, planning.workspace_of, planning.graph.device)
    if plan is not None:
        check_budget(after, budget)
        if planning.counts_reserved:
            check_reserved(reserved, budget)
    laps.take("liveness")
    graph, options = planning.graph, planning.options
    events = events_of(gm, graph, after)
    storages = stats_of(graph, events)
    hints = _hints(planning, events, storages)
    laps.take("report")
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
        storages=storages,
        seconds=laps.seconds,
        relied_parameters=_relied(gm, parameters, planning.whole),
        unconstrained_peak=planning.whole,
        unconstrained_saved=planning.saved,
        hints=hints,
        sane_from=planning.sane_from(plan),
        least_overhead=planning.least_overhead(budget, plan),
        costs=planning.costs,
        step_before=planning.step_before,
        step_after=planning.step_seconds(gm, sum(event.cost for event in events)),
        options=options.others,
        slices=slices_of(gm),
        reserved_peak=reserved,
        offload=planning.offload,
        outside_peak=0 if plan is None else plan.outside,
        choices=_choices(planning, plan, events),
    )
    _log(report, options.budget.others)
    return report


def _write(graph: GraphProgram, plan: Plan, options: Options) -> Write:
    """The pass that writes the plan."""
    if options.offload is None:
        return Write(graph, plan)
    from dtr_fx.passes.write_moves import WriteMoves  # only here: with it come threads and files

    return WriteMoves(graph, plan, str(options.offload))


def _hints(
    planning: Planning, events: Sequence[Event], storages: Sequence[StorageStats]
) -> tuple[HintStats, ...]:
    """What came of the hints, if there are any; VerificationError where a part takes more than its budget."""
    graph, given = planning.graph, planning.options.policy
    if not given and not any(hint_of(call.node) for call in graph.calls):
        return ()
    from dtr_fx.planning.hinted import hints_of

    hints = hints_of(graph, given, events, storages)
    planning.planner.check(hints)
    return hints


def _choices(planning: Planning, plan: Plan | None, events: Sequence[Event]) -> tuple[Choice, ...]:
    """Those that concern the value of the option ``watch``."""
    value = planning.options.watch
    if plan is None or value is None:
        return ()
    from dtr_fx.planning.watched import choices_of  # only here: seldom asked for

    calls = enumerate(planning.graph.calls)
    origins = {number: call.node.name for number, call in calls if call.role == COMPUTE}
    return choices_of(planning.planner, plan, value, names_of(planning.graph), origins, events)


def _log(report: Report, others: Others) -> None:
    """Say what came of a plan, as a warning if the budget is not kept."""
    is_fine = report.verdict == "fits" and not report.caution
    # What step it is part of is not known yet; the compiler says so once it is.
    is_early = report.verdict == "left as it is" and others.is_part and not others.largest
    level = logging.INFO if is_fine or is_early else logging.WARNING
    log.log(level, "%s%s", report.summary(), report.caution)


class Laps:
    """Seconds by what they were spent on."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._started = time.perf_counter()

    def take(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[stage] = now - self._started
        self._started = now
