"""The least memory for an overhead: how small a budget a plan keeps that adds no more compute than this."""

from __future__ import annotations

import math

from dtr_fx.planning.planning import Planning
from dtr_fx.runtime import Plan

# With how many searches it is looked for; overheads above this are looked for from the smallest budget.
_SEARCHES, _DEAR = 3, 0.4
# What a search usually recomputes of what a pass does; what counts, in terms of the limit, without a plan;
# the power of e by which overheads grow from the graph's own peak down to nothing.
_OF_A_PASS, _UNKNOWN, _STEEP = 0.88, 1.3, 4.0


def least_memory(planning: Planning) -> tuple[int, Plan | None]:
    """The smallest budget that is found for the options' overhead, in bytes, and the plan for it.

    The plan is None for the graph as it is.  See ``Planner.plan``, which has the same plan.  What the
    user's checkpoints recompute is within any overhead.
    """
    budget, plan = _least_memory(planning)
    marked = planning.planner.checkpointed
    if marked is not None and marked.peak < planning.peak(plan):
        return marked.peak, marked
    return budget, plan


def _least_memory(planning: Planning) -> tuple[int, Plan | None]:
    limit, planner, whole = planning.options.max_overhead, planning.planner, planning.baseline_peak
    limit = math.inf if limit is None else limit
    if limit > _DEAR and planning.overhead(planner.smallest) <= limit:
        budget = planner.smallest.peak
    else:
        budget = planning.passes_within(limit)
    if 0 < limit <= _DEAR:
        return _searched(planning, limit, budget)
    plan = planner.plan(budget) if budget < whole else None
    return (whole, None) if plan is None or planning.overhead(plan) > limit else (budget, plan)


def _searched(planning: Planning, limit: float, passed: int) -> tuple[int, Plan | None]:
    """The smallest budget of some searches: each is at the budget where the one before sees the limit."""
    best: tuple[int, Plan | None] = (planning.baseline_peak, None)
    low, high, budget, overhead = planning.planner.need.nbytes - 1, passed, passed, _OF_A_PASS * limit
    for left in reversed(range(_SEARCHES)):
        budget += int(math.log(max(0.1, overhead / limit)) / _STEEP * planning.baseline_peak)
        if not low < budget < high:
            budget = (low + high) // 2
        if not left and best[1] is None:
            budget = passed
        plan = planning.planner.search(budget, planning.planner.program, lambda: None)
        overhead = _UNKNOWN * limit if plan is None else planning.overhead(plan)
        if overhead > limit:
            low = budget
        else:
            best, high = (budget, plan), budget
    return best
