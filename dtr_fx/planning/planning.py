"""One graph, analysed: what it needs, and plans for it under any budget."""

from __future__ import annotations

from collections import Counter
from functools import cached_property

from torch.fx import GraphModule

from dtr_fx.costs import roofline as cost_model
from dtr_fx.costs.workspaces import workspaces
from dtr_fx.errors import GraphError, InfeasibleBudgetError
from dtr_fx.passes import storages
from dtr_fx.passes.liveness import liveness
from dtr_fx.passes.roles import KEEP
from dtr_fx.passes.tensors import graph_device
from dtr_fx.planning.options import Budget, Options, resolve_budget
from dtr_fx.planning.planner import Infeasible, Planner
from dtr_fx.planning.reporting import source_line
from dtr_fx.runtime import Plan
from dtr_fx.runtime.steps import RECOMPUTE

# How closely the least memory for an overhead is searched, as a share of the graph's own peak.
_TOLERANCE = 0.01


class Planning:
    """The analysis of a graph, before it is rewritten; OptionError where its costs cannot be told.

    ``before`` is its memory timeline as it is, ``graph`` its program.  ``baseline_peak``, what a share is of
    and no plan exceeds, is its peak as it is or as the user's checkpoints have it.  The extra workspace that
    an executor has found a node to need, while it runs under a plan, stands in
    ``meta["dtr_extra_workspace"]``, in bytes.
    """

    def __init__(self, gm: GraphModule, options: Options, *, trusts_caller: bool = False) -> None:
        calls = [node for node in gm.graph.nodes if node.op.startswith("call")]
        if not calls:
            raise GraphError("the graph has no operators: there is nothing to plan")
        device = graph_device(gm)
        cost = cost_model.resolve(options.costs, device)
        if options.executor == "inductor" and isinstance(options.costs, str):
            # Only here: Inductor takes seconds to import.
            from dtr_fx.costs.kernels import of_kernels

            cost = of_kernels(cost, device)
        as_it_is = workspaces(calls)
        workspace = {node: own + node.meta.get("dtr_extra_workspace", 0) for node, own in as_it_is.items()}
        self.options = options
        replays_randomness = options.executor != "inductor"
        self.graph = storages.analyze(
            gm,
            device,
            cost,
            workspace,
            replays_randomness=replays_randomness,
            trusts_caller=trusts_caller,
        )
        self.workspace_of = {node.name: nbytes for node, nbytes in workspace.items()}
        self.before = liveness(gm, {node.name: nbytes for node, nbytes in as_it_is.items()}, device)
        marks = {number: call.mark for number, call in enumerate(self.graph.calls) if call.mark is not None}
        self.planner = Planner(self.graph.program, options, marks)
        marked = self.planner.checkpointed
        self._peak_unmarked = max(point.live for point in self.before)
        self.baseline_peak = self._peak_unmarked
        if marked is not None and (self.planner.must or marked.peak < self.baseline_peak):
            self.baseline_peak = marked.peak

    @cached_property
    def budget(self) -> int:
        return self.in_bytes(self.options.budget)

    def in_bytes(self, budget: Budget) -> int:
        held = self.graph.constant_bytes
        return resolve_budget(budget, self.baseline_peak, self.graph.device, already_held=held)

    def plan(self, *, saves_nothing: bool) -> tuple[int, Plan | None]:
        """The budget in bytes, and the plan for it; None for the graph as it is.  See ``rewrite``."""
        if self.options.max_overhead is not None:
            plan = self.least_memory()
            return (self.baseline_peak if plan is None else plan.peak), plan
        graph, budget, marked = self.graph, self.budget, self.planner.checkpointed
        saved = None if graph.boundary is None else self.options.budget.saved
        if marked is not None:
            budget = min(budget, self.baseline_peak)
            if not self.options.limits and marked.peak <= budget:
                return budget, marked
        is_obeyed = budget >= self._peak_unmarked and not self.planner.must
        if is_obeyed and (saved is None or graph.saved_bytes <= saved):
            return budget, None
        try:
            if saved is None:
                return budget, self.planner.plan(budget)
            return budget, self.planner.plan_saving(budget, graph.held_between_passes, saved)
        except Infeasible as infeasible:
            if saves_nothing and self.options.budget.kind == "fraction":
                return budget, None
            raise self.error(budget, infeasible.smallest) from None

    def least_memory(self) -> Plan | None:
        """The plan of the lowest peak with at most the options' overhead; None for the graph as it is.

        What the user's checkpoints recompute is within any overhead.
        """
        best = self._least_memory()
        marked = self.planner.checkpointed
        return marked if best is None or (marked is not None and marked.peak < best.peak) else best

    def _least_memory(self) -> Plan | None:
        plan = self.planner.smallest
        if self.keeps_overhead(plan):
            return plan
        best = None
        low, high = plan.peak, self.baseline_peak
        while high - low > _TOLERANCE * self.baseline_peak:
            middle = (low + high) // 2
            plan = self.planner.plan(middle)
            if self.keeps_overhead(plan):
                best, high = plan, plan.peak
            else:
                low = middle
        return best

    def keeps_overhead(self, plan: Plan) -> bool:
        """True if a plan adds no more than the options' overhead."""
        limit = self.options.max_overhead
        return limit is None or self.extra(plan) <= limit * self.graph.base_cost

    def extra(self, plan: Plan) -> float:
        """Seconds that a plan adds: what is recomputed, and the copies of changed inputs that this reads."""
        calls = self.graph.calls
        again = {step.op for step in plan.steps if step.kind == RECOMPUTE}
        read = {value for number in again for value in calls[number].inputs}
        kept = (call for call in calls if call.role == KEEP and call.outputs[0] in read)
        return plan.cost + sum(call.cost for call in kept)

    def error(self, budget: int, smallest: int) -> InfeasibleBudgetError:
        graph, need = self.graph, self.planner.need
        node = graph.calls[need.call].node
        # What cannot be given up when the most memory is needed.
        results = {graph.storage(value) for call in graph.calls[: need.call + 1] for value in call.pins}
        pinned: Counter[str] = Counter()
        for value in {*graph.constants, *results}:
            kind = graph.values[value].kind if value in graph.constants else "output"
            pinned[kind] += graph.values[value].nbytes
        return InfeasibleBudgetError(
            asked=budget,
            # As it is, the graph needs no saved states of random operators: where those weigh most, less.
            smallest=min(smallest, self.baseline_peak),
            lower_bound=need.nbytes,
            baseline_peak=self.baseline_peak,
            operator=node.name,
            source=source_line(node),
            pinned=dict(pinned),
        )
