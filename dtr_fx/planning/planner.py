"""A plan that fits a budget: one pass of the runtime, or a search.

The same program, budget and options give the same plan.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from functools import cached_property

from dtr_fx import search
from dtr_fx.planning.options import Options
from dtr_fx.runtime import Plan, Program, RunFailed, resolve
from dtr_fx.search import Policy, execute_order, limit_saved, lower_bound, paper, portfolio, rerun_forward


class Infeasible(Exception):
    """No plan was found in the budget; ``smallest`` is the smallest, in bytes, that one was found for."""

    def __init__(self, smallest: int) -> None:
        super().__init__(f"the smallest budget that works is {smallest} bytes")
        self.smallest = smallest


class Planner:
    """Plans for one program by the heuristic, the planner and the effort of the options, for any budget.

    ``need`` is what no plan can do without.
    """

    def __init__(self, program: Program, options: Options) -> None:
        self.program = program
        self.need = lower_bound(program)
        self._seconds = options.plan_seconds
        self._online = options.planner == "online"
        heuristic = resolve(options.heuristic)
        self._policy = paper(heuristic) if self._online else Policy(heuristic)

    @property
    def policies(self) -> Iterable[Policy]:
        return [self._policy] if self._online else portfolio(self._policy)

    def plan(self, budget: int) -> Plan:
        """A plan within ``budget`` bytes; Infeasible if there is none at this budget or a smaller one."""
        plan = self._try(budget, self.program) if budget >= self.need.nbytes else None
        if plan is None:
            plan = self.smallest
            if plan.peak > budget:
                raise Infeasible(plan.peak)
        return plan

    def plan_saving(self, budget: int, held: int, saved: int) -> Plan:
        """As ``plan``, with ``saved`` bytes between the passes beside ``held``, or as few as are found."""
        free = self.plan(budget)
        repaired = self._repaired(free, budget, held + saved)
        if repaired is not None and repaired.cost <= free.cost:
            return free
        limited = limit_saved(self.program, held + saved, budget)
        plan = _cheapest(filter(None, [repaired, self._try(budget, limited)]))
        while plan is None:
            saved = 2 * saved + 1
            plan = self._repaired(free, budget, held + saved)
        return execute_order(self.program, plan.order, budget)

    def _repaired(self, free: Plan, budget: int, most: int) -> Plan | None:
        """A plan that was made without a limit between the passes, changed to keep it."""
        limited = limit_saved(self.program, most, budget)
        fitting = []
        for order in (free.order, rerun_forward(self.program, free.order)):
            with contextlib.suppress(RunFailed):
                fitting.append(execute_order(limited, order, budget))
        return _cheapest(fitting)

    @cached_property
    def smallest(self) -> Plan:
        """The plan with the lowest peak that is found."""
        bound = self.need.nbytes
        if self._online:
            return search.smallest_by_passes(self.program, bound, [self._policy]).plan
        return search.smallest(self.program, bound, self._seconds)

    def _try(self, budget: int, program: Program) -> Plan | None:
        if self._online:
            run = search.first_that_fits(program, budget, [self._policy])
            return None if run is None else run.plan
        try:
            return search.search(program, budget, self._policy, self._seconds)
        except search.Infeasible:
            return None


def _cheapest(plans: Iterable[Plan]) -> Plan | None:
    return min(plans, key=lambda plan: plan.cost, default=None)
