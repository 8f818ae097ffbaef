"""Plans for programs of which the user has marked operators, or has given parts budgets of their own."""

from __future__ import annotations

import contextlib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property

from torch.utils.checkpoint import CheckpointPolicy

from dtr_fx import search
from dtr_fx.errors import InfeasiblePartError
from dtr_fx.passes.hints import Hint, hint_of, is_budget, part_budget
from dtr_fx.passes.storages import GraphProgram
from dtr_fx.planning.options import Options
from dtr_fx.planning.parts import Part, Parts, check_parts, merged, most_held
from dtr_fx.planning.planner import Planner
from dtr_fx.report import HintStats
from dtr_fx.runtime import Plan, Program, RunFailed
from dtr_fx.runtime.steps import COMPUTE, RECOMPUTE

# What the cost of a recompute is taken for where the user marked the operator.
_WEIGHTS = {
    CheckpointPolicy.PREFER_SAVE: 2.0,
    CheckpointPolicy.PREFER_RECOMPUTE: 0.5,
    CheckpointPolicy.MUST_RECOMPUTE: 0.01,
}


class MarkedPlanner(Planner):
    """A planner whose plans obey ``marks`` of operators, by their numbers, and keep budgets of ``parts``."""

    def __init__(
        self,
        program: Program,
        options: Options,
        marks: Mapping[int, CheckpointPolicy],
        parts: Sequence[Part],
    ) -> None:
        told = [sorted(marks.items()), [(each.limit, sorted(each.calls)) for each in parts]]
        super().__init__(program, options, told)
        self._marks, self._parts = marks, Parts(program, tuple(parts))

    def _for(self, program: Program) -> Planner:
        return MarkedPlanner(program, self._options, self._marks, self._parts.parts)

    @property
    def has_parts(self) -> bool:
        return bool(self._parts.parts)

    def holds(self, plan: Plan) -> bool:
        return self._parts.hold(plan)

    def check(self, hints: Sequence[HintStats]) -> None:
        check_parts(hints, self._parts.parts)

    @property
    def _may_not_move(self) -> bool:
        return bool(self._marks if self._online else self.must) or self.has_parts

    @cached_property
    def checkpointed(self) -> Plan | None:
        """The plan that recomputes all that the user marked so, and what parts need; None without either."""
        again = self._marked(CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)
        if not again and not self._plans_of_parts:
            return None
        as_it_is = range(sum(1 for _ in self.program.calls()))
        order = merged([as_it_is, *(plan.order for plan in self._plans_of_parts)])
        plan = search.execute_order(
            self.program, search.rerun(self.program, order, again) if again else order
        )
        for part, taken in self._parts.above(plan):
            raise InfeasiblePartError(part.pattern, part.limit, taken)
        return replace(plan, decided_by="checkpoint")

    @cached_property
    def _plans_of_parts(self) -> list[Plan]:
        """A plan for each part that takes more than its budget if nothing runs again."""
        if not self._parts.parts:
            return []
        as_it_is = search.execute_order(self.program, range(sum(1 for _ in self.program.calls())))
        return [self._plan_of_part(part) for part, _ in self._parts.above(as_it_is)]

    def _plan_of_part(self, part: Part) -> Plan:
        """The plan in which nothing but the part takes memory."""
        program = part.of(replace(self.program, tier=None))
        bound = search.lower_bound(program).nbytes
        plan = None
        if part.limit >= bound:
            with contextlib.suppress(search.Infeasible):
                plan = search.find_plan(
                    program, part.limit, search.Policy(self._policy.heuristic), self._seconds
                )
        if plan is None:
            plan = search.smallest(program, bound, self._seconds)
        if plan.peak > part.limit:
            raise InfeasiblePartError(part.pattern, part.limit, plan.peak)
        return plan

    @cached_property
    def must(self) -> set[int]:
        """The operators that every plan runs again, for the user's marks or for a part's budget."""
        marked = self._marked(CheckpointPolicy.MUST_RECOMPUTE)
        steps = (step for plan in self._plans_of_parts for step in plan.steps)
        return marked | {step.op for step in steps if step.kind == RECOMPUTE}

    def _marked(self, *policies: CheckpointPolicy) -> set[int]:
        return {number for number, policy in self._marks.items() if policy in policies}

    def _weighed(self, program: Program) -> Program:
        """The program with what the user prefers in its costs."""
        weights = {number: _WEIGHTS[policy] for number, policy in self._marks.items() if policy in _WEIGHTS}
        weights |= dict.fromkeys(self.must, _WEIGHTS[CheckpointPolicy.MUST_RECOMPUTE])
        if not weights:
            return program
        return program.with_calls(
            lambda number, call: call._replace(cost=call.cost * weights.get(number, 1.0))
        )

    def _obeying(self, plan: Plan, program: Program, budget: float) -> Plan | None:
        """The plan with its true cost, and with what must be recomputed; None if that does not fit."""
        order = search.rerun(program, plan.order, self.must) if self.must else plan.order
        try:
            obeying = search.execute_order(program, order, budget)
        except RunFailed:
            return None
        if not self.holds(obeying):
            return None
        return replace(obeying, decided_by=plan.decided_by, refused=plan.refused)


def parts_of(graph: GraphProgram) -> list[Part]:
    """The operators of a graph with a budget of their own."""
    calls: defaultdict[Hint, list[int]] = defaultdict(list)
    for number, call in enumerate(graph.calls):
        hint = hint_of(call.node)
        if call.role == COMPUTE and hint is not None and is_budget(hint):
            calls[hint].append(number)
    as_it_is = search.execute_order(graph.program, range(len(graph.calls))) if calls else None
    found = []
    for hint, numbers in calls.items():
        part = Part(hint[0], frozenset(numbers), 0)
        assert as_it_is is not None
        limit = part_budget(hint, most_held(part.of(graph.program), as_it_is))
        found.append(replace(part, limit=limit))
    return found
