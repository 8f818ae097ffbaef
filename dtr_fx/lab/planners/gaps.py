"""How far DTR is from the optimum, on graphs small enough to solve, without transfers and with them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeAlias

from dtr_fx.lab.planners.checkmate import TooLarge, solve_checkmate
from dtr_fx.lab.planners.clock import Action, as_actions, link_of, time_plan
from dtr_fx.lab.planners.graph import OperatorGraph
from dtr_fx.lab.planners.moccasin import require_ortools, solve_moccasin
from dtr_fx.lab.planners.moving import plan_moving
from dtr_fx.lab.planners.plan import CannotPlan, Solution, check, plan_dtr
from dtr_fx.lab.planners.transfers import Moved, solve_transfers
from dtr_fx.runtime import HEURISTICS, Plan
from dtr_fx.search import Infeasible, Policy, default_effort, find_plan, with_moves
from dtr_fx.tiers.tier import Bandwidth, Tier

SEARCH = "search"
"""Among heuristics: the plan that a search finds."""


@dataclass(frozen=True)
class Gap:
    """A graph under a budget: the optimum, and what DTR costs under each heuristic.

    ``share`` is the budget's share of the graph's own peak, constants in both; ``budget`` and ``floor``, what
    no plan can do without, are bytes without constants.  ``cost`` is what the program costs unconstrained.
    ``best`` is the cheapest plan that ``solver`` found, and no plan of its kind costs less than ``bound``;
    the two are equal where ``optimal``.  DTR is not bound to that kind, and may be cheaper where memory is
    tightest.  A cost is infinite where there is no plan, and ``bound`` where that is proved.
    """

    graph: str
    operators: int
    share: float
    budget: int
    floor: int
    cost: float
    best: float
    bound: float
    optimal: bool
    solver: str
    seconds: float
    dtr: Mapping[str, float]

    def gap(self, heuristic: str) -> float:
        """DTR's cost above the bound, as a share of the bound; not a number where no plan is known to fit."""
        return self.dtr[heuristic] / self.bound - 1 if math.isfinite(self.bound) and self.bound else math.nan


def _budget(graph: OperatorGraph, share: float) -> int:
    """A share of a graph's own peak, constants in both, in bytes without constants."""
    # The small number: shares such as 11 / 18 shall give whole budgets back.
    return math.floor(share * (graph.peak + graph.constants) + 1e-9) - graph.constants


def find_gap(graph: OperatorGraph, share: float, heuristics: Sequence[str], seconds: float = 60.0) -> Gap:
    """Solve for a graph at a share of its peak; ``DTRError`` without scipy or ortools.

    Checkmate's program is tried first, MOCCASIN's where it proves nothing in time, each for ``seconds``.
    """
    require_ortools()
    budget = _budget(graph, share)
    solution = _solve(graph, budget, seconds)
    return Gap(
        graph=graph.name,
        operators=len(graph),
        share=share,
        budget=budget,
        floor=graph.floor,
        cost=graph.cost,
        best=solution.cost,
        bound=solution.bound,
        optimal=solution.optimal,
        solver=solution.planner,
        seconds=solution.seconds,
        dtr={heuristic: _cost(graph, budget, heuristic) for heuristic in heuristics},
    )


def _solve(graph: OperatorGraph, budget: int, seconds: float) -> Solution:
    """Checkmate's optimum, else MOCCASIN's, else the better plan under Checkmate's bound (of more plans)."""
    none = Solution("Checkmate", None, math.inf, math.inf, optimal=False, seconds=0.0)
    first: Solution | None = None
    try:
        first = solve_checkmate(graph, budget, seconds)
    except TooLarge:
        pass
    except CannotPlan:  # proved, of MOCCASIN's plans too
        return none
    if first is not None and first.optimal:
        return first
    try:
        second = solve_moccasin(graph, budget, seconds)
    except CannotPlan:
        return first or replace(none, planner="MOCCASIN")
    if first is None or second.optimal:
        return second
    return first if first.cost <= second.cost else replace(second, bound=first.bound)


def _cost(graph: OperatorGraph, budget: int, heuristic: str) -> float:
    try:
        if heuristic == SEARCH:
            plan = find_plan(graph.program, budget, Policy(HEURISTICS["next-use"]))
        else:
            plan = plan_dtr(graph, budget, heuristic)
        return check(graph, plan, budget).total
    except (CannotPlan, Infeasible):
        return math.inf


Mover: TypeAlias = Callable[[OperatorGraph, int, Bandwidth], Sequence[Action]]
"""A planner that may move values: the plan within a budget; ``CannotPlan`` or ``Infeasible`` without one."""


def recompute_alone(graph: OperatorGraph, budget: int, link: Bandwidth) -> Sequence[Action]:
    """The plan that a search without transfers finds."""
    return _searched(graph, budget)


@lru_cache(maxsize=1)
def _searched(graph: OperatorGraph, budget: int) -> Sequence[Action]:
    return as_actions(find_plan(graph.program, budget, Policy(HEURISTICS["next-use"])))


def search_with_moves(graph: OperatorGraph, budget: int, link: Bandwidth) -> Sequence[Action]:
    """The plan that a search finds that may move all values."""
    program = replace(graph.program, tier=Tier("host", speed=link))
    program = program.with_calls(lambda _, call: call._replace(movable=True))

    def computed(raised: int) -> Plan | None:
        try:
            return find_plan(graph.program, raised, Policy(HEURISTICS["next-use"]))
        except Infeasible:
            return None

    plan = with_moves(program, budget, computed, default_effort(program))
    if plan is None:
        raise Infeasible
    return as_actions(plan)


MOVERS: Mapping[str, Mover] = {
    SEARCH: search_with_moves,
    "recompute alone": recompute_alone,
    "moving alone": plan_moving,
}
"""The planner that does both, and its rivals."""


@dataclass(frozen=True)
class TransferGap:
    """A graph under a budget and beside a link: the optimum, and when the plans of some planners end.

    ``ratio`` is the time in which the link moves an average value of the forward pass, over its cost.  Times
    are those of ``time_plan``, and ``cost`` is that of the unconstrained program.  ``best`` is the time of
    the best plan known, and no plan whatsoever ends before ``bound``; the two are equal where ``optimal``.
    A time is infinite where there is no plan.
    """

    graph: str
    operators: int
    share: float
    ratio: float
    budget: int
    cost: float
    best: float
    bound: float
    optimal: bool
    seconds: float
    plans: Mapping[str, float]

    def gap(self, planner: str) -> float:
        """A planner's time above the bound, as a share of the bound; infinite without a plan."""
        return self.plans[planner] / self.bound - 1


def find_transfer_gap(
    graph: OperatorGraph, share: float, ratio: float, planners: Mapping[str, Mover], seconds: float = 60.0
) -> TransferGap | None:
    """Solve for a graph at a share of its peak; None if an operator alone exceeds that, or no plan fits."""
    budget = _budget(graph, share)
    if budget < graph.floor:
        return None
    link = link_of(graph, ratio)
    known: dict[str, Sequence[Action]] = {}
    for name, planner in planners.items():
        try:
            known[name] = planner(graph, budget, link)
        except (CannotPlan, Infeasible):
            continue
    try:
        solution: Moved = solve_transfers(graph, budget, link, seconds, known=list(known.values()))
    except CannotPlan:
        return None
    times = {name: time_plan(graph, actions, link, budget).total for name, actions in known.items()}
    return TransferGap(
        graph=graph.name,
        operators=len(graph),
        share=share,
        ratio=ratio,
        budget=budget,
        cost=graph.cost,
        best=solution.cost,
        bound=solution.bound,
        optimal=solution.optimal,
        seconds=solution.seconds,
        plans={name: times.get(name, math.inf) for name in planners},
    )
