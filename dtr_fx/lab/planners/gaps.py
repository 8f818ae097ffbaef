"""How far DTR is from the optimum, on graphs small enough to solve."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from dtr_fx.lab.planners.checkmate import TooLarge, solve_checkmate
from dtr_fx.lab.planners.graph import OperatorGraph
from dtr_fx.lab.planners.moccasin import require_ortools, solve_moccasin
from dtr_fx.lab.planners.plan import CannotPlan, Solution, check, plan_dtr
from dtr_fx.runtime import HEURISTICS
from dtr_fx.search import Infeasible, Policy, search

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


def find_gap(graph: OperatorGraph, share: float, heuristics: Sequence[str], seconds: float = 60.0) -> Gap:
    """Solve for a graph at a share of its peak; ``DTRError`` without scipy or ortools.

    Checkmate's program is tried first, MOCCASIN's where it proves nothing in time, each for ``seconds``.
    """
    require_ortools()
    # The small number: shares such as 11 / 18 shall give whole budgets back.
    budget = math.floor(share * (graph.peak + graph.constants) + 1e-9) - graph.constants
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
            plan = search(graph.program, budget, Policy(HEURISTICS["next-use"]))
        else:
            plan = plan_dtr(graph, budget, heuristic)
        return check(graph, plan, budget).total
    except (CannotPlan, Infeasible):
        return math.inf
