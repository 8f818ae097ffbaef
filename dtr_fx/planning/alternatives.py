"""Plans with operators in slices or without: the cheapest one that fits, and the smallest budget."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Literal

from dtr_fx.errors import InfeasibleBudgetError
from dtr_fx.passes.tensors import is_here
from dtr_fx.planning.planning import Planning
from dtr_fx.runtime import Plan

# Slices are worth it where they bring the lower bound down to so much.
_WORTH = 0.8
# Slices are tried where no plan fits, or where one adds so much and the lower bound is so near to the budget.
# Their bound is then to be lower than the budget, or far lower.
_DEAR, _LOWER, _NEAR, _ROOMY = 0.02, 0.9, 0.7, 1.25

_MORE: dict[str, tuple[Literal["exact", "summed"], ...]] = {
    "off": ("exact", "summed"),
    "exact": ("summed",),
    "summed": (),
}

Chosen = tuple[Planning, int, "Plan | None"]


class Alternatives:
    """Plans for a graph as it is ``whole``, or for one that computes the same with regions in slices."""

    def __init__(self, whole: Planning) -> None:
        self.whole = whole

    @cached_property
    def least(self) -> Planning | None:
        """The graph with the slices that lower its lower bound the most; None if they hardly do."""
        found = None if self.whole.options.slices == "off" else in_slices(self.whole)
        enough = _WORTH * self.whole.planner.need.nbytes
        return found if found is not None and found.planner.need.nbytes <= enough else None

    def plan(self, *, saves_nothing: bool = False) -> Chosen:
        """The analysis, the budget in bytes and the plan for the options; see ``Planning.plan``."""
        if self.whole.options.max_overhead is not None:
            return self.least_memory()
        bar = 0 if saves_nothing else self.whole.planner.need.nbytes
        return self._choose(lambda each: each.plan(saves_nothing=saves_nothing), self.whole.limit, bar)

    def plan_at(self, budget: int) -> Chosen:
        """The same for a budget in bytes."""
        return self._choose(lambda each: each.plan_at(budget), budget, self.whole.planner.need.nbytes)

    def least_memory(self) -> Chosen:
        """The same for the smallest budget that is found; see ``planning.overhead``."""
        from dtr_fx.planning.overhead import least_memory

        most, planning = self.whole.options.max_overhead, self.whole
        if self.least is not None and (most is None or self.least.overhead(None) <= most):
            planning = self.least
            if most is not None and self.whole.passes_within(most) <= self.least.passes_within(most):
                planning = self.whole
        found = planning, *least_memory(planning)
        is_sure = found[1] < min(self.whole.planner.need.nbytes, _ROOMY * planning.planner.need.nbytes)
        return found if planning is self.whole or is_sure or most is not None else self.plan_at(found[1])

    def _choose(
        self, plan_of: Callable[[Planning], tuple[int, Plan | None]], budget: int, bar: int
    ) -> Chosen:
        """The cheapest plan; below the bar none is looked for without slices."""
        found: list[Chosen] = []
        failed: list[InfeasibleBudgetError] = []

        def is_found(planning: Planning) -> bool:
            try:
                found.append((planning, *plan_of(planning)))
            except InfeasibleBudgetError as error:
                failed.append(error)
                return False
            return True

        is_barred = budget < bar and self.least is not None
        if is_barred or not is_found(self.whole) or _may_be_better(*found[0]):
            for variant in self._below(_LOWER * budget, _NEAR * budget):
                if is_found(variant) and variant.overhead(found[-1][2]) <= _DEAR:
                    break
            if self.least is not None and not found:
                is_found(self.least)
        if not found:
            error = min(failed, key=lambda error: error.smallest)
            raise replace(error, sliced=self._with_more_slices(error.smallest))
        return min(found, key=lambda chosen: chosen[0].extra(chosen[2]))

    def _below(self, *targets: float) -> Iterator[Planning]:
        """The graph with the fewest slices that bring its lower bound below each of these, in bytes.

        Without much room there is only the one with the lowest.
        """
        for target in targets:
            if self.least is not None and _ROOMY * self.least.planner.need.nbytes <= target:
                variant = in_slices(self.whole, target)
                if variant is not None and variant.planner.need.nbytes <= target:
                    yield variant

    def _with_more_slices(self, smallest: int) -> dict[str, int]:
        """Smaller budgets that work under other values of the option ``slices``, as one pass finds them."""
        found: dict[str, int] = {}
        for how in () if self.whole.counts_reserved else _MORE[self.whole.options.slices]:
            options = replace(self.whole.options, slices=how, planner="online")
            variant = in_slices(Planning(self.whole.gm, options))
            if variant is not None and variant.planner.smallest.peak < smallest:
                smallest = found[how] = variant.planner.smallest.peak
        return found


def _may_be_better(planning: Planning, budget: int, plan: Plan | None) -> bool:
    """True if slices may do better than a plan, or than the graph as it is above the budget."""
    if plan is None:
        return budget < planning.whole
    return planning.planner.need.nbytes > _NEAR * budget and planning.overhead(plan) > _DEAR


def in_slices(planning: Planning, target: float = 0) -> Planning | None:
    """See ``planning.slices``, which is not imported before a graph needs it: few do."""
    from dtr_fx.planning.slices import in_slices

    # What runs in slices belongs to no part of the model; what operators do slice by slice is tried out.
    if planning.planner.has_parts or not is_here(planning.graph.device):
        return None
    return in_slices(planning, target)
