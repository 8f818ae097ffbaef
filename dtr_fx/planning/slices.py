"""Which operators run in slices: those that need more memory than the rest, until the rest needs more."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

from torch.fx import Node

from dtr_fx.costs.workspaces import above_inputs
from dtr_fx.errors import InfeasibleBudgetError
from dtr_fx.passes.cuts import Axis
from dtr_fx.passes.loss_rows import rows_of_loss
from dtr_fx.passes.regions import Region, find_regions, put_in_slices, sliced
from dtr_fx.passes.slices import Sliced
from dtr_fx.planning.planning import Planning, copy_of
from dtr_fx.runtime import Plan

# A region is cut until what a slice takes is so small a part of what the region has whole; regions whose needs
# differ by less are alike.
_SMALL, _ALIKE = 0.125, 1.1
# So many regions in a row may leave the lower bound as it is: of operators that need as much as each other.
_PATIENCE = 4
# Slices are tried where no plan fits, or where one adds so much and the lower bound is so near to the budget.
_DEAR, _NEAR = 0.05, 0.7

Chosen = tuple[Planning, int, "Plan | None"]


class Alternatives:
    """Plans for a graph as it is ``whole``, or for one that computes the same with regions in slices."""

    def __init__(self, whole: Planning) -> None:
        self.whole = whole

    @cached_property
    def variants(self) -> list[Planning]:
        """The graph with more and more slices; each has a lower bound below that of the one before."""
        return list(in_slices(self.whole)) if self.whole.options.slices != "off" else []

    def plan(self, *, saves_nothing: bool = False) -> Chosen:
        """The analysis, the budget in bytes and the plan for the options; see ``Planning.plan``."""
        return self._choose(lambda each: each.plan(saves_nothing=saves_nothing))

    def plan_at(self, budget: int) -> Chosen:
        """The same for a budget in bytes."""
        return self._choose(lambda each: each.plan_at(budget))

    def least_memory(self) -> Chosen:
        """The same for the smallest budget that is found; see ``Planning.least_memory``."""
        found = [(each, *each.least_memory()) for each in (self.whole, *self.variants[-1:])]
        return min(found, key=lambda chosen: chosen[1])

    def _choose(self, plan_of: Callable[[Planning], tuple[int, Plan | None]]) -> Chosen:
        found: list[Chosen] = []
        failed: list[InfeasibleBudgetError] = []

        def attempt(planning: Planning) -> None:
            try:
                found.append((planning, *plan_of(planning)))
            except InfeasibleBudgetError as error:
                failed.append(error)

        attempt(self.whole)
        if failed or _may_be_better(*found[0]):
            for variant in self._worth_planning(failed[0].asked if failed else found[0][1]):
                attempt(variant)
        if not found:
            raise min(failed, key=lambda error: error.smallest)
        if self.whole.options.max_overhead is not None:
            return min(found, key=lambda chosen: chosen[1])
        return min(found, key=lambda chosen: chosen[0].extra(chosen[2]))

    def _worth_planning(self, budget: int) -> list[Planning]:
        """The graph with the fewest slices that leave room in the budget, and with as many as help."""
        roomy = (each for each in self.variants if each.planner.need.nbytes <= _NEAR * budget)
        return list(dict.fromkeys([*itertools.islice(roomy, 1), *self.variants[-1:]]))


def _may_be_better(planning: Planning, budget: int, plan: Plan | None) -> bool:
    """True if slices may do better than a plan, or than the graph as it is above the budget."""
    if plan is None:
        return budget < planning.baseline_peak
    return planning.planner.need.nbytes > _NEAR * budget and planning.overhead(plan) > _DEAR


def in_slices(planning: Planning) -> Iterator[Planning]:
    """The graph with more and more regions in slices, each with a lower bound below that of the one before."""
    lowest, tried = planning.planner.need.nbytes, 0
    current: Planning | None = planning
    while current is not None and tried < _PATIENCE:
        current, tried = _next(current), tried + 1
        if current is not None and current.planner.need.nbytes < lowest:
            lowest, tried = current.planner.need.nbytes, 0
            yield current


def _next(planning: Planning) -> Planning | None:
    """The graph with the region around the operator that needs the most memory in slices, too."""
    name = planning.graph.calls[planning.planner.need.call].node.name
    gm = copy_of(planning.gm)
    for node in list(gm.graph.nodes):
        rows_of_loss(gm.graph, node)
    seed = next(node for node in gm.graph.nodes if node.name == name)
    sums = planning.options.slices == "summed"

    def allowed(node: Node, axis: Axis) -> bool:
        return sums or axis.is_exact

    best = _least(planning, find_regions(gm, seed, allowed))
    if best is None:
        return None
    put_in_slices(gm, *best)
    return planning.of_variant(gm)


def _least(planning: Planning, regions: Sequence[Region]) -> tuple[Region, Sliced] | None:
    """The region that takes the least memory, in slices; of those that take about as little, the smallest."""
    found = []
    for region in regions:
        target = _fewest(planning, region)
        if target is not None:
            found.append((region.whole_bytes() + above_inputs(target.module), region, target))
    if not found:
        return None
    least = min(nbytes for nbytes, _, _ in found)
    return next((region, target) for nbytes, region, target in found if nbytes <= _ALIKE * least)


def _fewest(planning: Planning, region: Region) -> Sliced | None:
    """The region in the fewest slices with which a slice is small; None if it cannot be cut."""
    whole = region.whole_bytes() + planning.graph.constant_bytes
    enough = region.summed_bytes() + _SMALL * whole
    target, tried = None, 1
    for slices in region.counts():
        if slices < 1.5 * tried:
            continue
        target, tried = sliced(planning.gm, region, slices), slices
        if above_inputs(target.module) <= enough:
            break
    return target
