"""Plans near the optimum: many passes of the runtime, steered.

    passes under a portfolio of policies, minimum cuts, chains  ──►  orders
      └─ a short walk from each, a long one from the best         ──►  an order
           └─ the runtime carries the order out, and checks it    ──►  the plan

Effort is counted in work, given as the seconds that it takes on a usual machine: the same program, budget and
effort give the same plan everywhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial

from dtr_fx.runtime import HEURISTICS, Plan
from dtr_fx.runtime.program import Program
from dtr_fx.search.bound import lower_bound
from dtr_fx.search.execute import execute_found
from dtr_fx.search.lifetimes import Operators
from dtr_fx.search.policies import Policy, Run, portfolio, run_policy
from dtr_fx.search.timeline import Found, Timeline
from dtr_fx.search.walk import walk

# A plan is good enough that costs so much more than the least possible, as a share of the program's own cost.
# Long walks are as long as they may be where the best plan by then costs so much more, over few operators and
# over many, and else shorter.
_ENOUGH, _WORTH, _WORTH_OF_MANY = 0.0005, 0.05, 0.02
# A share of a long walk's time for which chains are no longer tried.
_LITTLE = 0.1
# A pass that rematerializes more than this many times the program's own cost is given up; one of many over a
# large program sooner.
_THRASH = 11.0
_THRASH_OF_MANY = 3.0
# Operators of a pass per second of effort, on one core of an x86-64 server of 2024.
_OPERATORS_PER_SECOND = 120_000
_STARTS_SECONDS_PER_OPERATOR = 1.5e-4
_VISITS_PER_OPERATOR = 50
# Of the effort: passes, over few operators and over many, and of what is left walks from each start.
_PASSES, _PASSES_OF_MANY = 0.25, 0.1
_STARTS, _MOST_STARTS = 0.15, 5
# The temperatures of these walks, of the last one, and of those over programs of so few operators.
_COLD, _WARM, _HOT = 0.02, 0.3, 5.0
# Of walks from the lowest plan, where all others recompute so much of the program or more:
# for what share of their time another one makes them cheap.
_POOR = 0.5
_CHEAPER = 0.4
_SMALL = 200
_SECONDS_OVER_SMALL = 0.45
# How closely the smallest budget is searched, as a share of the lower bound, and by which shares of the
# effort: walks, and before them passes.
_TOLERANCE, _LOWEST_WALKS = 0.005, 0.65
_COARSE, _LOWEST_PASSES = 0.02, 0.35
# The factor on the penalty of a byte too many where cost does not count.
_PENALTY = 100.0
# Between them these passes reached lowest.
_LOW = (
    Policy(HEURISTICS["next-use"]),
    Policy(HEURISTICS["dtr-eq"], keep_passed=False),
    Policy(HEURISTICS["next-use"], order="depth first"),
    Policy(HEURISTICS["dtr-local"], keep_passed=False),
    Policy(HEURISTICS["next-use"], order="depth first", keep_gradients=False),
)


class Infeasible(Exception):
    """No plan was found within the budget."""


def default_effort(program: Program) -> float:
    """Seconds that a search may take unless told otherwise: 0.7, 1 for 2,300 operators, 6 for 19,000."""
    return max(0.7, float((sum(1 for _ in program.calls()) / 2300) ** 0.85))


def find_plan(
    program: Program,
    budget: int,
    first: Policy,
    seconds: float | None = None,
    lowest: Callable[[], Plan | None] | None = None,
    least: float = 0.0,
) -> Plan:
    """The cheapest plan that is found within ``budget`` bytes, constants included.

    The policy ``first`` is tried first; where nothing fits well, walks start from ``lowest()``, the plan of
    the lowest peak if None: these take the effort again.  It is in seconds of a usual machine,
    ``default_effort`` if None; less is taken where a plan is found that costs hardly more than ``least``,
    which no plan is below.  Raises ``Infeasible`` if no plan is found.
    """
    effort = default_effort(program) if seconds is None else seconds
    lowest = lowest or (lambda: smallest(program, lower_bound(program).nbytes, effort))
    return _Search(program, budget, effort, lowest, least + _ENOUGH * program.cost).find(first)


def smallest(program: Program, bound: int, seconds: float | None = None) -> Plan:
    """The plan with the lowest peak that is found by the effort of one search, at any cost.

    None is below ``bound`` bytes.  Passes come near, and walks halve what lies between.
    """
    from dtr_fx.search.chain import Chain, returns
    from dtr_fx.search.starts import relieved

    effort = default_effort(program) if seconds is None else seconds
    plan = smallest_by_passes(program, bound, _LOW, _LOWEST_PASSES * effort * _OPERATORS_PER_SECOND).plan
    line = Timeline(Operators.of(program), bound)
    chain = None if program.backward is None else Chain(line, program.backward)
    low, refused, step = bound - 1, 0, max(1, _TOLERANCE * bound)
    trials = 2 + 2 * math.ceil(math.log2(max(1, (plan.peak - low) / step)))
    seconds = _LOWEST_WALKS * effort / trials
    trial = partial(walk, line, seconds=seconds, penalty=_PENALTY, enough=math.inf)
    while plan.peak - low > step:
        # The bound itself first: it is within reach more often than not.
        budget = bound if low < bound else (low + plan.peak) // 2
        line.budget = budget - program.constants
        found = trial(relieved(line, plan.order))
        if found is None and chain is not None:
            found = next(filter(None, map(trial, returns(chain, line)[:1])), None)
        lower = None if found is None else execute_found(program, found.order, budget)
        if lower is None:
            low = budget
            refused += found is not None
        else:
            plan = lower
    return replace(plan, refused=refused)


def smallest_by_passes(
    program: Program, bound: int, policies: Sequence[Policy], work: float = math.inf
) -> Run:
    """The pass of the lowest peak that a bisection finds whose every step tries some policies.

    It ends when so many operators have run.
    """
    best = run_policy(program, math.inf, policies[0])
    low = bound - 1
    while best.runtime.peak - low > max(1, _COARSE * bound):
        middle = (low + best.runtime.peak) // 2
        for policy in policies:
            run = one_pass(program, middle, policy)
            work -= _work(run)
            if run.failure is None:
                best = run
                break
            if work < 0:
                return best
        else:
            low = middle
    return best


def one_pass(program: Program, budget: int, policy: Policy, most: float = _THRASH) -> Run:
    """A pass that fails if it rematerializes more than ``most`` times the program's own cost."""
    return run_policy(program, budget, policy, max_recompute=min(most, _THRASH) * program.cost)


def _work(run: Run) -> float:
    """The effort of a pass, in operators."""
    return len(run.runtime.steps) + run.runtime.maintained / _VISITS_PER_OPERATOR


class _Search:
    def __init__(
        self,
        program: Program,
        budget: int,
        seconds: float,
        lowest: Callable[[], Plan | None],
        enough: float,
    ) -> None:
        self._program = program
        self._budget = budget
        self._seconds = seconds
        self._lowest = lowest
        self._enough = enough
        self._operators = sum(1 for _ in program.calls())
        self._line = Timeline(Operators.of(program), budget - program.constants)
        self._is_small = self._operators <= _SMALL
        self._limit = (_THRASH if self._is_small else _THRASH_OF_MANY) * program.cost
        self._best: Plan | None = None
        self._refused = 0

    def find(self, first: Policy) -> Plan:
        # Where there is no time for a single pass, the starts that know the whole program come first.
        is_short = self._for_passes * _OPERATORS_PER_SECOND < self._operators
        passes_last = is_short and self._program.backward is not None
        if not passes_last:
            self._pass_under(portfolio(first))
        if self._best is None or self._best.cost > self._enough:
            self._walk()
        if self._best is None and passes_last:
            self._pass_under(portfolio(first))
        if self._best is None:
            raise Infeasible
        return replace(self._best, refused=self._refused)

    def _pass_under(self, policies: Iterator[Policy]) -> None:
        share = self._for_passes
        work = share * _OPERATORS_PER_SECOND
        for number, policy in enumerate(policies):
            run = run_policy(self._program, self._budget, policy, max_recompute=self._limit)
            work -= _work(run)
            if run.failure is None and self._is_better(run.runtime.recompute_cost):
                self._take(run.plan)
            if (work < 0 and number > 0) or self._limit <= self._enough:
                break
        self._seconds -= share - max(work, 0) / _OPERATORS_PER_SECOND

    @property
    def _for_passes(self) -> float:
        return self._seconds * (_PASSES if self._is_small else _PASSES_OF_MANY)

    def _is_better(self, cost: float) -> bool:
        return self._best is None or cost < self._best.cost

    def _take(self, plan: Plan) -> None:
        self._best = plan
        self._limit = min(self._limit, plan.cost)

    def _walk(self) -> None:
        walks = self._walk_from_starts()
        costs = (found.cost for found in (*walks, self._best) if found is not None)
        if min(costs, default=math.inf) > _POOR * self._program.cost:
            walks += self._rescue()
        for found in sorted(walks, key=lambda found: found.cost):
            plan = execute_found(self._program, found.order, self._budget)
            if plan is not None:
                if self._is_better(plan.cost):
                    self._take(plan)
                break
            self._refused += 1

    def _walk_from(
        self, order: Sequence[int], seconds: float, temperature: float, seed: int = 0
    ) -> Found | None:
        return walk(self._line, order, seconds, temperature=temperature, seed=seed, enough=self._enough)

    def _until_enough(self, walks: Iterable[Found | None]) -> list[Found]:
        """What walks find, up to the first that is good enough."""
        found: list[Found] = []
        for one in walks:
            found += [] if one is None else [one]
            if one is not None and one.cost <= self._enough:
                break
        return found

    def _walk_from_starts(self) -> list[Found]:
        """A short walk from each start, and long ones from the best; chains where there is much to gain."""
        spent = _STARTS_SECONDS_PER_OPERATOR * self._operators
        seconds = max(self._seconds - spent, self._seconds / 2)
        short = _STARTS * seconds / _MOST_STARTS
        tried = 0
        found: list[Found] = []
        best: Found | None = None
        for starts in (self._cuts, lambda: self._returns):
            tried += len(orders := starts())
            found += self._until_enough(self._walk_from(order, short, _COLD) for order in orders)
            best = min(found, key=lambda found: found.cost, default=None)
            if self._worth(best) <= _LITTLE:
                break
        if best is not None and best.cost <= self._enough:
            return found
        order = self._order if best is None else best.order
        return found + self._walk_long(order, self._worth(best) * (seconds - tried * short))

    def _walk_long(self, order: Sequence[int], seconds: float) -> list[Found]:
        """One walk, or some: of few operators any is moved often enough to end anywhere."""
        count = max(1, math.ceil(0.75 * seconds / _SECONDS_OVER_SMALL)) if self._is_small else 1
        heat = _HOT if self._is_small else _WARM
        return self._until_enough(
            self._walk_from(order, seconds / count, heat, seed) for seed in range(count)
        )

    def _worth(self, best: Plan | Found | None) -> float:
        """The share of a long walk's time that what it could gain is worth."""
        left = math.inf if best is None else (best.cost - self._enough) / self._program.cost
        return min(1.0, left / (_WORTH if self._is_small else _WORTH_OF_MANY))

    def _rescue(self) -> list[Found]:
        """Where nothing fits well, bytes count for more, and walks start from where there are fewest."""
        lowest = self._lowest()
        if lowest is None or lowest.peak > self._budget:
            return []
        if self._is_better(lowest.cost):
            self._take(lowest)
        temperature = _HOT if self._is_small else _WARM
        starts = [lowest.order, *self._returns[:1]]
        share = self._seconds / len(starts)
        walks = (
            walk(self._line, start, share, temperature=temperature, penalty=_PENALTY) for start in starts
        )
        found = min(filter(None, walks), key=lambda found: found.cost, default=None)
        if found is None:
            return []
        cheaper = walk(self._line, found.order, _CHEAPER * self._seconds, temperature=_COLD)
        return [found] if cheaper is None else [found, cheaper]

    @property
    def _order(self) -> Sequence[int]:
        """That of the best plan so far, or the program's."""
        return range(self._operators) if self._best is None else self._best.order

    def _cuts(self) -> list[Sequence[int]]:
        # Only here: for most graphs a pass is good enough, or there are too few operators for cuts.
        from dtr_fx.search.starts import cuts

        backward = self._program.backward
        return [self._order, *([] if backward is None else cuts(self._line, backward))]

    @cached_property
    def _returns(self) -> list[Sequence[int]]:
        from dtr_fx.search.chain import Chain, returns

        backward = self._program.backward
        return [] if backward is None else [*returns(Chain(self._line, backward), self._line)]
