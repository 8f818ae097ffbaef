"""A plan that fits a budget: one pass of the runtime, or a search.

The same program, budget and options give the same plan.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from functools import cached_property

from dtr_fx import search
from dtr_fx.costs.files import cache_folder
from dtr_fx.planning.kept import KeptPlans
from dtr_fx.planning.options import Options
from dtr_fx.report import HintStats
from dtr_fx.runtime import Plan, Program, RunFailed, resolve
from dtr_fx.runtime.caching_allocator import CachingAllocator
from dtr_fx.search import lower_bound

# How many budgets of allocated bytes are tried for one of reserved bytes.
_TRIES = 8


class Infeasible(Exception):
    """No plan was found in the budget; ``smallest`` is the smallest, in bytes, that one was found for."""

    def __init__(self, smallest: int) -> None:
        super().__init__(f"the smallest budget that works is {smallest} bytes")
        self.smallest = smallest


class Planner:
    """Plans for one program by the heuristic, the planner and the effort of the options, for any budget.

    A program with a tier may be planned with transfers.  ``need`` is what no plan can do without.  For
    programs of which the user has marked operators see ``MarkedPlanner``; ``told`` is what was said of them.
    """

    def __init__(self, program: Program, options: Options, told: Sequence[object] = ()) -> None:
        self.program = program
        self._options = options
        self.need = lower_bound(program)
        self._least: dict[int, float] = {}
        self._seconds = options.plan_seconds
        self._counts_reserved = options.count == "reserved"
        self._online = options.planner == "online"
        # Of a function of the user's nothing tells what it does.
        is_known = isinstance(options.heuristic, str)
        folder = cache_folder(options.cache) if is_known else None
        self._kept = KeptPlans(folder, options.planner, options.heuristic, options.plan_seconds, *told)

    def least(self, budget: int) -> float:
        """Seconds that the recomputes of no plan are below which moves nothing and fits the budget."""
        if budget not in self._least:
            self._least[budget] = search.least_recomputed(self.program, budget)
        return self._least[budget]

    @cached_property
    def _policy(self) -> search.Policy:
        heuristic = resolve(self._options.heuristic)
        return search.paper(heuristic) if self._online else search.Policy(heuristic)

    @property
    def policies(self) -> Iterable[search.Policy]:
        return [self._policy] if self._online else search.portfolio(self._policy)

    def plan(self, budget: int) -> Plan:
        """A plan within ``budget`` bytes; Infeasible if there is none at this budget or a smaller one."""
        return self._reserving(self._plan, budget) if self._counts_reserved else self._plan(budget)

    def _reserving(self, plan_of: Callable[[int], Plan], budget: int) -> Plan:
        """The first plan for which no more is reserved; ``plan_of`` makes them for fewer allocated bytes."""
        smallest = self.smallest
        lowest = self.reserved(smallest)
        for number in range(_TRIES):
            within = budget - max(0, budget - smallest.peak) * number // _TRIES
            try:
                plan = plan_of(within)
            except Infeasible:
                break
            reserved = self.reserved(plan)
            if reserved <= budget:
                return plan
            lowest = min(lowest, reserved)
        if self.reserved(smallest) <= budget:
            return smallest
        raise Infeasible(lowest)

    def reserved(self, plan: Plan) -> int:
        """The bytes that PyTorch's caching allocator reserves for a plan."""
        allocator = CachingAllocator.as_configured()
        # Up to when something is held that was copied out depends on the room.
        within = plan.peak if plan.moved and not self._online else math.inf
        return search.reserved_by(self.program, plan.order, allocator, plan.moved, within)

    def _plan(self, budget: int) -> Plan:
        """The same, by the bytes that are allocated."""
        plan = self.search(budget, self.program, lambda: self._smallest_computed)
        marked = self.checkpointed
        if marked is not None and marked.peak <= budget:
            plan = _cheapest(filter(None, [plan, marked]))
        if plan is None:
            plan = self.smallest
            if plan.peak > budget:
                raise Infeasible(plan.peak)
        return plan

    def plan_saving(self, budget: int, held: int, saved: int) -> Plan:
        """As ``plan``, with ``saved`` bytes between the passes beside ``held``, or as few as are found."""
        if not self._counts_reserved:
            return self._plan_saving(budget, held, saved)
        return self._reserving(lambda within: self._plan_saving(within, held, saved), budget)

    def _plan_saving(self, budget: int, held: int, saved: int) -> Plan:
        if self._online and self.program.tier is not None:  # what a heuristic moves has no other order
            return self._without_moves._plan_saving(budget, held, saved)
        free = self._plan(budget)
        repaired = self._repaired(free, budget, held + saved)
        if repaired is not None and repaired.extra <= free.extra:
            return free
        limited = search.limit_saved(self.program, held + saved, budget)
        plan = _cheapest(filter(None, [repaired, self.search(budget, limited, lambda: repaired)]))
        while plan is None:
            saved = 2 * saved + 1
            plan = self._repaired(free, budget, held + saved)
        return search.execute_order(self.program, plan.order, budget, plan.moved)

    @cached_property
    def _without_moves(self) -> Planner:
        return self._for(replace(self.program, tier=None))

    def _for(self, program: Program) -> Planner:
        """The same for another program of these calls."""
        return Planner(program, self._options)

    def _repaired(self, free: Plan, budget: int, most: int) -> Plan | None:
        """A plan that was made without a limit between the passes, changed to keep it."""
        limited = search.limit_saved(self.program, most, budget)
        fitting = []
        for order in (free.order, search.rerun_forward(self.program, free.order)):
            with contextlib.suppress(RunFailed):
                fitting.append(search.execute_order(limited, order, budget, free.moved))
        return _cheapest(filter(self.holds, fitting))

    @cached_property
    def smallest(self) -> Plan:
        """The plan with the lowest peak that is found."""
        found = self._kept.find(self._find_smallest, "smallest", self.program)
        assert found is not None
        return found

    def _find_smallest(self) -> Plan:
        plan, program = self._smallest_computed, self.program
        if not self._may_move(program):
            return plan
        if self._online:
            moving = search.smallest_by_passes(program, self.need.nbytes, [self._policy]).plan
            return min(plan, moving, key=lambda plan: plan.peak)
        return search.smallest_with_moves(program, self.need.nbytes, plan, self._effort(program))

    @cached_property
    def _need_computed(self) -> search.Need:
        """What no plan can do without that has no transfers."""
        program = replace(self.program, tier=None)
        return self.need if self.program.tier is None else lower_bound(program)

    @cached_property
    def _smallest_computed(self) -> Plan:
        """The same without transfers."""
        program = replace(self.program, tier=None)
        bound = self._need_computed.nbytes
        if self._online:
            plan = search.smallest_by_passes(program, bound, [self._policy]).plan
        else:
            plan = search.smallest(program, bound, self._seconds)
        plans = filter(None, [self._obeying(plan, program, math.inf), self.checkpointed])
        return min(plans, key=lambda plan: plan.peak)

    def _may_move(self, program: Program) -> bool:
        """True if plans may have transfers: marks and budgets of parts know none."""
        return program.tier is not None and not self._may_not_move

    def _effort(self, program: Program) -> float:
        return search.default_effort(program) if self._seconds is None else self._seconds

    def one_pass(self, budget: int, program: Program, most: float = math.inf) -> Plan | None:
        """The heuristic's plan, if it fits and recomputes no more than this share of the program."""
        run = search.one_pass(self._weighed(program), budget, self._policy, most)
        return None if run.failure else self._obeying(run.plan, program, budget)

    def search(self, budget: int, program: Program, lowest: Callable[[], Plan | None]) -> Plan | None:
        """A plan within the budget, if one is found; where that is hard, from ``lowest()`` on."""
        if budget < (self.need if program.tier is not None else self._need_computed).nbytes:
            return None
        return self._kept.find(lambda: self._search(budget, program, lowest), "search", budget, program)

    def _search(self, budget: int, program: Program, lowest: Callable[[], Plan | None]) -> Plan | None:
        computed = replace(program, tier=None)
        if self._online:
            programs = [computed, program] if self._may_move(program) else [computed]
            return _cheapest(filter(None, (self.one_pass(budget, each) for each in programs)))
        if self._may_move(program):
            return search.with_moves(
                program, budget, lambda raised: self.search(raised, computed, lowest), self._effort(program)
            )
        try:
            weighed = self._weighed(computed)
            least = self.least(budget) if weighed is computed else 0.0
            plan = search.find_plan(weighed, budget, self._policy, self._seconds, lowest, least)
        except search.Infeasible:
            return None
        return self._obeying(plan, computed, budget)

    @property
    def checkpointed(self) -> Plan | None:
        """The plan that recomputes all that the user marked so, and what parts need; None without either."""
        return None

    @property
    def must(self) -> Collection[int]:
        """The operators that every plan runs again, for the user's marks or for a part's budget."""
        return ()

    @property
    def has_parts(self) -> bool:
        """True if parts of the program have budgets of their own."""
        return False

    def holds(self, plan: Plan) -> bool:
        """True if a plan keeps the budgets of all parts."""
        return True

    def check(self, hints: Sequence[HintStats]) -> None:
        """Raise VerificationError where a part takes more than its budget in a graph that was rewritten."""

    @property
    def _may_not_move(self) -> bool:
        """True where what the user marked rules transfers out."""
        return False

    def _weighed(self, program: Program) -> Program:
        """The program with what the user prefers in its costs."""
        return program

    def _obeying(self, plan: Plan, program: Program, budget: float) -> Plan | None:
        """The plan with its true cost, and with what must be recomputed; None if that does not fit."""
        return plan


def _cheapest(plans: Iterable[Plan]) -> Plan | None:
    return min(plans, key=lambda plan: plan.extra, default=None)
