"""Which operators run in slices: those that need more memory than the rest, until the rest needs more."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from torch.fx import Node

from dtr_fx.costs.workspaces import above_inputs
from dtr_fx.errors import InfeasibleBudgetError
from dtr_fx.passes.cuts import Axis
from dtr_fx.passes.regions import Region, find_region, put_in_slices, sliced
from dtr_fx.passes.slices import Sliced
from dtr_fx.planning.planning import Planning, copy_of
from dtr_fx.runtime import Plan

# A region is cut until what a slice takes is so small a part of what the region has whole.
_SMALL = 0.125
# So many regions in a row may leave the lower bound as it is: of operators that need as much as each other.
_PATIENCE = 4


# Slices are tried where no plan fits, or where one adds so much and the lower bound is so near to the budget.
_DEAR, _NEAR = 0.05, 0.7


def plan_graph(planning: Planning, *, saves_nothing: bool = False) -> tuple[Planning, int, Plan | None]:
    """A plan for a graph, or for one that computes the same in slices; see ``Planning.plan``."""
    found: list[tuple[Planning, int, Plan | None]] = []
    failed: InfeasibleBudgetError | None = None
    try:
        found.append((planning, *planning.plan(saves_nothing=saves_nothing)))
    except InfeasibleBudgetError as error:
        failed = error
    if failed is not None or _is_dear(*found[0]):
        for variant in _worth_planning(planning):
            try:
                found.append((variant, *variant.plan(saves_nothing=saves_nothing)))
            except InfeasibleBudgetError as error:
                if failed is not None and error.smallest < failed.smallest:
                    failed = error
    if failed is not None and not found:
        raise failed
    is_free = planning.options.max_overhead is not None
    return min(found, key=lambda each: each[1] if is_free else each[0].extra(each[2]))


def _is_dear(planning: Planning, budget: int, plan: Plan | None) -> bool:
    """True if slices may do better than a plan, or the graph as it is takes more than the budget."""
    if plan is None:
        return budget < planning.baseline_peak
    return planning.planner.need.nbytes > _NEAR * budget and planning.overhead(plan) > _DEAR


def _worth_planning(planning: Planning) -> list[Planning]:
    """The graph with the fewest slices that leave room in the budget, and with as many as help."""
    variants = list(in_slices(planning)) if planning.options.slices != "off" else []
    roomy = (each for each in variants if each.planner.need.nbytes <= _NEAR * planning.limit)
    return list(dict.fromkeys([*itertools.islice(roomy, 1), *variants[-1:]]))


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
    seed = next(node for node in gm.graph.nodes if node.name == name)
    sums = planning.options.slices == "summed"

    def allowed(node: Node, axis: Axis) -> bool:
        return sums or axis.is_exact

    region = find_region(gm, seed, allowed)
    target = None if region is None else _fewest(planning, region)
    if region is None or target is None:
        return None
    put_in_slices(gm, region, target)
    return planning.of_variant(gm)


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
