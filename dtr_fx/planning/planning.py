"""One graph, analysed: what it needs, and plans for it under any budget."""

from __future__ import annotations

import copy
import math
import warnings
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from dtr_fx import search
from dtr_fx.costs import roofline as cost_model
from dtr_fx.costs.workspaces import least_room, workspaces
from dtr_fx.errors import GraphError, InfeasibleBudgetError
from dtr_fx.passes import storages
from dtr_fx.passes.hints import hint_of, is_budget
from dtr_fx.passes.liveness import with_reserved
from dtr_fx.passes.modes import WithoutMemory, fake_mode_of
from dtr_fx.passes.roles import KEEP
from dtr_fx.passes.subgraphs import InSlices
from dtr_fx.passes.tensors import constant_bytes, graph_device, is_view
from dtr_fx.planning.options import Budget, Options, resolve_budget
from dtr_fx.planning.planner import Infeasible, Planner
from dtr_fx.planning.reporting import source_line
from dtr_fx.runtime import Plan, Program, RunFailed
from dtr_fx.runtime.steps import COMPUTE, RECOMPUTE
from dtr_fx.search import NOTHING, Moved

# How closely a budget for an overhead is looked for, as a share of the graph's own peak.
_TOLERANCE = 0.01
# With so many forward passes more, eight states are enough for a chain of 1,287 operators (Revolve).
_SANE = 5
# A plan is carried over to other sizes if it uses so much of the memory beside constants, or adds so little.
_NEAR, _CHEAP = 0.85, 0.1


class Carried(NamedTuple):
    """A plan's order, None for a graph as it is, to be carried over to the same program of other sizes."""

    structure: Hashable
    order: Sequence[int] | None
    moved: Moved = NOTHING


class Planning:
    """The analysis of a graph, before it is rewritten; OptionError where its costs cannot be told.

    ``before`` is its memory timeline as it is, ``graph`` its program.  ``baseline_peak``, what a share is of
    and no plan exceeds, is its peak as it is or as the user's checkpoints have it, ``whole`` the same as a
    budget counts it, and ``saved`` what it then makes for its backward pass, outputs apart.  The extra
    workspace that an executor has found nodes to need, while they run under a plan, stands in the graph's
    ``meta["dtr_extra_workspace"]``, in bytes by name; that of no name (the empty one) is every node's.  Views
    run nothing.
    """

    def __init__(
        self,
        gm: GraphModule,
        options: Options,
        *,
        trusts_caller: bool = False,
        cost: cost_model.Cost | None = None,
    ) -> None:
        calls = [node for node in gm.graph.nodes if node.op.startswith("call")]
        if not calls:
            raise GraphError("the graph has no operators: there is nothing to plan")
        device = graph_device(gm)
        as_it_is = workspaces(calls)
        workspace = _under_plan(as_it_is, gm.meta.get("dtr_extra_workspace", {}))
        self.gm = gm
        self.workspace_of = _by_name(workspace)
        self.before, self._reserved_as_it_is = with_reserved(gm, _by_name(as_it_is), device)
        self._peak_unmarked = max(point.live for point in self.before)
        self._cost = cost or _costs(gm, options, device, self._peak_unmarked)
        self._original: Planning | None = None
        self.options = options
        self._trusts_caller = trusts_caller
        self.graph = storages.analyze(
            gm,
            device,
            self._cost,
            workspace,
            replays_randomness=options.executor != "inductor",
            trusts_caller=trusts_caller,
            moves=options.offload is not None,
        )
        tier = options.offload
        if tier is not None:
            from dtr_fx.costs.bandwidth import with_speed  # only here: with it come threads and files

            tier = with_speed(tier, device)
        self.offload = "" if tier is None else f"{tier}: {tier.speed}"
        program = self.graph.program if tier is None else replace(self.graph.program, tier=tier)
        self.planner = self._planner(program)
        self.base_cost = self.graph.base_cost
        self.step_before = self.step_seconds(gm, self.base_cost)
        self.baseline_peak = self._peak_unmarked
        self.whole = self._reserved_as_it_is if self.counts_reserved else self.baseline_peak
        self.saved = 0 if self.graph.boundary is None else self.graph.saved_bytes
        marked = self.planner.checkpointed
        if marked is not None and (self.planner.must or marked.peak < self.baseline_peak):
            self.baseline_peak = marked.peak
            self.whole = self.planner.reserved(marked) if self.counts_reserved else marked.peak
            start = next(step for step in marked.steps if step.op == self.graph.boundary)
            self.saved = start.live - self.graph.held_between_passes

    def _planner(self, program: Program) -> Planner:
        """The planner for the graph; one that obeys what the user has marked, if anything."""
        calls = self.graph.calls
        marks = {number: call.mark for number, call in enumerate(calls) if call.mark is not None}
        hints = (hint_of(call.node) for call in calls if call.role == COMPUTE)
        if not marks and not any(hint is not None and is_budget(hint) for hint in hints):
            return Planner(program, self.options)
        from dtr_fx.planning.marked import MarkedPlanner, parts_of

        return MarkedPlanner(program, self.options, marks, parts_of(self.graph))

    def of_variant(self, gm: GraphModule) -> Planning:
        """The analysis of a graph that computes the same; shares are of this one's peak and seconds."""
        variant = Planning(gm, self.options, trusts_caller=self._trusts_caller, cost=self._cost)
        variant.before, variant.base_cost = self.before, self.base_cost
        variant.step_before = self.step_before
        variant.baseline_peak, variant.saved = self.baseline_peak, self.saved
        variant.whole = self.whole
        variant._original = self._original or self
        return variant

    @property
    def costs(self) -> str:
        """By what operators have their seconds: ``"profile"``, ``"roofline"`` or ``"given"``."""
        asked = self.options.costs
        if not isinstance(asked, str):
            return "given"
        return asked if asked != "auto" else "roofline" if self.step_before is None else "profile"

    def step_seconds(self, gm: GraphModule, cost: float) -> float | None:
        """Seconds that a step of such a graph takes here, whose operators cost so much; None by estimates."""
        step = getattr(self._cost, "step", None)  # of a profile, which is imported only where it is asked for
        return None if step is None else step(gm.graph, cost)

    @cached_property
    def budget(self) -> int:
        return self.in_bytes(self.options.budget)

    def in_bytes(self, budget: Budget) -> int:
        held = self.graph.constant_bytes
        return resolve_budget(budget, self.whole, self.graph.device, already_held=held)

    @property
    def limit(self) -> int:
        """The most bytes that a plan may take: the budget, or what the user's checkpoints take."""
        return self.budget if self.planner.checkpointed is None else min(self.budget, self.whole)

    @property
    def counts_reserved(self) -> bool:
        """True if a budget is of reserved bytes."""
        return self.options.count == "reserved"

    def taken(self, plan: Plan | None) -> int:
        """Bytes of a plan, or of the graph as it is, as a budget counts them."""
        if not self.counts_reserved:
            return self.peak(plan)
        return self._reserved_as_it_is if plan is None else self.planner.reserved(plan)

    @property
    def _saved(self) -> int | None:
        """The most bytes that the forward pass may leave to the backward pass, if there is such a limit."""
        return None if self.graph.boundary is None else self.options.budget.saved

    def _fits_as_it_is(self, budget: int) -> bool:
        is_obeyed = budget >= self.taken(None) and not self.planner.must
        return is_obeyed and (self._saved is None or self.graph.saved_bytes <= self._saved)

    def carried_over(self, earlier: Iterable[Carried]) -> tuple[Carried, Plan | None] | None:
        """The cheapest of what was found for other sizes that fits here; None unless it is worth having."""
        if self.options.max_overhead is not None:
            return None
        structure, budget = self.graph.program.structure, self.limit
        found: list[tuple[Carried, Plan]] = []
        for each in earlier:
            if each.structure != structure:
                continue
            if each.order is not None:
                plan = self._carry_over(each.order, each.moved)
                found += [] if plan is None else [(each, plan)]
            elif self._fits_as_it_is(budget):
                return each, None
        if not found:
            return None
        best, plan = min(found, key=lambda one: one[1].extra)
        held = self.graph.constant_bytes
        is_near = plan.peak - held >= _NEAR * (budget - held)
        return (best, plan) if is_near or self.overhead(plan) <= _CHEAP else None

    def _carry_over(self, order: Sequence[int], moved: Moved) -> Plan | None:
        """The plan of an order; None if it fits only with more that is recomputed, or not at all."""
        graph, budget = self.graph, self.limit
        programs = [self.planner.program]
        if self._saved is not None:
            most = graph.held_between_passes + self._saved
            programs.insert(0, search.limit_saved(self.planner.program, most, budget))
        try:
            plans = [search.execute_order(program, order, budget, moved) for program in programs]
        except RunFailed:
            return None
        is_obeyed = all(plan.order == order for plan in plans) and self.planner.holds(plans[-1])
        is_obeyed = is_obeyed and self.taken(plans[-1]) <= budget
        return plans[-1] if is_obeyed else None

    def plan(self, *, saves_nothing: bool) -> tuple[int, Plan | None]:
        """The budget in bytes, and the plan for it; None for the graph as it is.  See ``rewrite``."""
        graph, budget, marked, saved = self.graph, self.limit, self.planner.checkpointed, self._saved
        if marked is not None and not self.options.limits and self.taken(marked) <= budget:
            return budget, marked
        if self._fits_as_it_is(budget):
            return budget, None
        is_obeyed = budget >= self.taken(None) and not self.planner.must
        try:
            # This comes after a search in vain, and most often no plan fits here either.
            if self._trusts_caller and self.taken(self.planner.smallest) > budget:
                raise Infeasible(self.taken(self.planner.smallest))
            if saved is None:
                return budget, self.planner.plan(budget)
            return budget, self.planner.plan_saving(budget, graph.held_between_passes, saved)
        except Infeasible as infeasible:
            may_be_left = saves_nothing and self.options.budget.kind == "fraction" and not self.options.strict
            if is_obeyed or may_be_left:
                return budget, None
            raise self.error(budget, infeasible.smallest) from None

    def plan_at(self, budget: int) -> tuple[int, Plan | None]:
        """The budget, and the plan for so many bytes, or None for the graph as it is."""
        if self._fits_as_it_is(budget):
            return budget, None
        try:
            return budget, self.planner.plan(budget)
        except Infeasible as infeasible:
            raise self.error(budget, infeasible.smallest) from None

    def peak(self, plan: Plan | None) -> int:
        """Bytes of a plan, or of the graph as it is."""
        return self._peak_unmarked if plan is None else plan.peak

    def overhead(self, plan: Plan | None) -> float:
        """What a plan adds, as a share of the graph's own compute."""
        return self.extra(plan) / self.base_cost if self.base_cost else 0.0

    def extra(self, plan: Plan | None) -> float:
        """Seconds that a plan adds: recomputes, copies of changed inputs that these read, and slices."""
        calls, slices = self.graph.calls, self.graph.base_cost - self.base_cost
        if plan is None:
            return slices
        again = {step.op for step in plan.steps if step.kind == RECOMPUTE}
        read = {value for number in again for value in calls[number].inputs}
        kept = (call for call in calls if call.role == KEEP and call.outputs[0] in read)
        return slices + plan.extra + sum(call.cost for call in kept)

    def least_overhead(self, budget: int, plan: Plan | None) -> float | None:
        """What no plan is below that fits the budget by recomputes alone, as a share of the graph's compute.

        It is None beside a plan that has other means: a tier to move to, or slices.
        """
        if plan is None:
            return 0.0
        is_whole = not any(isinstance(call.node.target, InSlices) for call in self.graph.calls)
        if not is_whole or self.planner.program.tier is not None or not self.base_cost:
            return None
        return self.planner.least(max(budget, plan.peak)) / self.base_cost

    def passes_within(self, limit: float) -> int:
        """The smallest budget at which one pass keeps an overhead."""
        low, high = self.planner.need.nbytes - 1, self.baseline_peak
        while high - low > max(1, _TOLERANCE * self.baseline_peak):
            middle = (low + high) // 2
            plan = self.planner.one_pass(middle, self.graph.program, limit)
            if plan is None or self.overhead(plan) > limit:
                low = middle
            else:
                high = middle
        return high

    def sane_from(self, plan: Plan | None) -> int | None:
        """Of a plan that computes more than five forward passes again, a budget from which none does."""
        forward = sum(call.cost for call in self.graph.calls[: self.graph.boundary])
        if self.graph.boundary is None or plan is None or self.extra(plan) <= _SANE * forward:
            return None
        return (self._original or self).passes_within(_SANE * forward / self.base_cost)

    def _sane_smallest(self, smallest: int) -> int | None:
        """A budget in place of the smallest that is found, where that is out of all proportion."""
        if self.counts_reserved or smallest != self.planner.smallest.peak:
            return None
        return self.sane_from(self.planner.smallest)

    def _offloaded(self, budget: int) -> int | None:
        """The bytes that a plan moves out if the tier has no limit; None without such a limit, or a plan."""
        program = self.planner.program
        if program.tier is None or program.tier.limit is None or self.counts_reserved:
            return None
        unlimited = replace(program, tier=replace(program.tier, limit=None))
        plan = self.planner.search(budget, unlimited, lambda: None)
        return None if plan is None else plan.outside

    def error(self, budget: int, smallest: int) -> InfeasibleBudgetError:
        graph, need = self.graph, self.planner.need
        node = graph.calls[need.call].node
        # What cannot be given up when the most memory is needed.
        results = {graph.storage(value) for call in graph.calls[: need.call + 1] for value in call.pins}
        pinned: Counter[str] = Counter()
        for value in {*graph.constants, *results}:
            kind = graph.values[value].kind if value in graph.constants else "output"
            pinned[kind] += graph.values[value].nbytes
        kept = (hint_of(call.node) for call in graph.calls if call.mark is CheckpointPolicy.MUST_SAVE)
        return InfeasibleBudgetError(
            asked=budget,
            # As it is, the graph needs no saved states of random operators: where those weigh most, less.
            smallest=min(smallest, self.whole),
            lower_bound=need.nbytes,
            baseline_peak=self.whole,
            operator=node.name,
            source=source_line(node),
            pinned=dict(pinned),
            kept=tuple(dict.fromkeys(hint[0] for hint in kept if hint is not None)),
            sane=self._sane_smallest(smallest),
            offloaded=self._offloaded(budget),
            counted=self.options.count,
        )


def _costs(gm: GraphModule, options: Options, device: torch.device, peak: int) -> cost_model.Cost:
    """Seconds of the graph's operators; under Inductor, of the kernels that it makes of them."""
    told = options.costs
    room = _room(gm, options, device, peak) if told in ("auto", "profile") else 0
    if options.executor != "inductor" or not isinstance(told, str):
        return cost_model.resolve(told, device, gm.graph, options.cache, room)
    # Only here: Inductor takes seconds to import.
    from dtr_fx.costs.kernels import of_kernels

    return of_kernels(cost_model.resolve(told, device, cache=options.cache, room=room), device)


def _room(gm: GraphModule, options: Options, device: torch.device, peak: int) -> float:
    """Bytes that the budget of a step leaves beside inputs and parameters, while its operators are timed.

    A model without memory takes none of what is here.
    """
    if isinstance(fake_mode_of(gm), WithoutMemory):
        return math.inf
    held = constant_bytes(gm)
    if options.max_overhead is None:
        return resolve_budget(options.budget, peak, device, already_held=held) - held
    return least_room(gm.graph)


def _under_plan(as_it_is: Mapping[Node, int], extra: Mapping[str, int]) -> dict[Node, int]:
    """The workspaces with what an executor takes besides, in bytes by name, or for every operator."""
    return {
        node: own + (0 if is_view(node) else extra.get(node.name, 0) + extra.get("", 0))
        for node, own in as_it_is.items()
    }


def _by_name(workspace: Mapping[Node, int]) -> dict[str, int]:
    return {node.name: nbytes for node, nbytes in workspace.items()}


def copy_of(gm: GraphModule) -> GraphModule:
    """The graph anew, with the same modules and tensors."""
    with warnings.catch_warnings():
        # What torch itself deprecates is in the copy.
        warnings.simplefilter("ignore", FutureWarning)
        copied = GraphModule(gm, copy.deepcopy(gm.graph))
    copied.meta.update(gm.meta)
    return copied
