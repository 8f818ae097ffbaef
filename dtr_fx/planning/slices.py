"""Which operators run in slices: those that need more memory than the rest, until the rest needs more."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Literal

import torch
from torch.fx import GraphModule, Node

from dtr_fx.costs.cut_exact import is_exact, order_of
from dtr_fx.costs.workspaces import above_inputs
from dtr_fx.errors import InfeasibleBudgetError
from dtr_fx.passes.cuts import Axis
from dtr_fx.passes.loss_rows import rows_of_loss
from dtr_fx.passes.regions import Region, find_regions, put_in_slices, sliced
from dtr_fx.passes.slices import Sliced
from dtr_fx.passes.tensors import is_selection, tensors_of
from dtr_fx.planning.planning import Planning, copy_of
from dtr_fx.runtime import Plan
from dtr_fx.torch_private import FakeTensor, FakeTensorMode, disable_current_modes

# A region is cut until what a slice takes is so small a part of what the region has whole; regions whose
# needs differ by less are alike.
_SMALL, _ALIKE = 0.125, 1.1
# So many regions in a row may leave the lower bound as it is: of operators that need as much as each other.
_PATIENCE = 4
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
        """The same for the smallest budget that is found; see ``Planning.least_memory``."""
        most, planning = self.whole.options.max_overhead, self.whole
        if self.least is not None and (most is None or self.least.overhead(None) <= most):
            planning = self.least
            if most is not None and self.whole.passes_within(most) <= self.least.passes_within(most):
                planning = self.whole
        found = planning, *planning.least_memory()
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
        for how in _MORE[self.whole.options.slices]:
            options = replace(self.whole.options, slices=how, planner="online")
            variant = in_slices(Planning(self.whole.gm, options))
            if variant is not None and variant.planner.smallest.peak < smallest:
                smallest = found[how] = variant.planner.smallest.peak
        return found


def _may_be_better(planning: Planning, budget: int, plan: Plan | None) -> bool:
    """True if slices may do better than a plan, or than the graph as it is above the budget."""
    if plan is None:
        return budget < planning.baseline_peak
    return planning.planner.need.nbytes > _NEAR * budget and planning.overhead(plan) > _DEAR


def in_slices(planning: Planning, target: float = 0) -> Planning | None:
    """The graph with so many slices that its lower bound is below ``target`` bytes, or as low as is found.

    None if slices lower it nowhere.
    """
    if len(_modes(planning.gm)) != 1:
        return None  # what was traced in parts does not evaluate together
    best, current, tried = None, planning, 0
    while current.planner.need.nbytes > target and tried < _PATIENCE:
        with disable_current_modes():  # of a compiler that traces another graph
            following = _next(current, target)
        if following is None:
            break
        current, tried = following, tried + 1
        if current.planner.need.nbytes < (best or planning).planner.need.nbytes:
            best, tried = current, 0
    return best


def _modes(gm: GraphModule) -> set[FakeTensorMode]:
    """The fake modes that the graph's values are of."""
    values = (tensor for node in gm.graph.nodes for tensor in tensors_of(node.meta.get("val")))
    return {value.fake_mode for value in values if isinstance(value, FakeTensor)}


def _next(planning: Planning, target: float) -> Planning | None:
    """The graph with the region around the operator that needs the most memory in slices, too."""
    call = planning.graph.calls[planning.planner.need.call]
    gm, is_fused = copy_of(planning.gm), planning.options.executor == "inductor"
    [mode] = _modes(gm)
    if is_fused:
        # Only here: Inductor takes seconds to import.
        from dtr_fx.passes.kernels import ContractKernels, ExpandKernels

        ExpandKernels().call(gm)
    for node in list(gm.graph.nodes):
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor):  # a constant
            node.meta["val"] = mode.from_tensor(value)
        rows_of_loss(gm.graph, node)
    seed = next(node for node in gm.graph.nodes if node.name == call.node.name)
    sums = planning.options.slices == "summed"

    def allowed(node: Node, axis: Axis) -> bool:
        return sums or axis.is_exact

    storages = {planning.graph.storage(value) for value in (*call.inputs, *call.outputs)}
    own = sum(planning.graph.values[value].nbytes for value in storages - {*planning.graph.constants})
    room = target - (planning.planner.need.nbytes - own - call.workspace)
    best = _least(planning, find_regions(gm, seed, allowed), room)
    if best is None:
        return None
    put_in_slices(gm, *best)
    if is_fused:
        ContractKernels().call(gm)
    return planning.of_variant(gm)


def _least(planning: Planning, regions: Sequence[Region], room: float) -> tuple[Region, Sliced] | None:
    """The region that takes the least memory, in slices; of those that take about as little, the smallest."""
    found = []
    for region in regions:
        target = _fewest(planning, region, room)
        if target is not None:
            found.append((region.whole_bytes() + above_inputs(target.module), region, target))
    if not found:
        return None
    least = max(room, _ALIKE * min(nbytes for nbytes, _, _ in found))
    return next((region, target) for nbytes, region, target in found if nbytes <= least)


def _fewest(planning: Planning, region: Region, room: float) -> Sliced | None:
    """The region in the fewest slices that have ``room``, or of which one is small; None without any."""
    whole, sums = region.whole_bytes(), planning.options.slices == "summed"
    small = region.summed_bytes() + _SMALL * (whole + planning.graph.constant_bytes)
    target, tried = None, 1
    for slices in region.counts():
        if slices < 1.5 * tried:
            continue
        found = sliced(planning.gm, region, slices)
        if not (sums or planning.options.executor == "inductor" or _is_exact(region, found)):
            continue
        target, tried = found, slices
        if above_inputs(target.module) <= max(small, room - whole):
            break
    return target


def _is_exact(region: Region, target: Sliced) -> bool:
    """True if these slices give the bits of the whole."""
    inside = (node for node in target.operators if not is_selection(node))
    for node, within in zip(sorted(region.members), inside):
        slices = zip(node.all_input_nodes, within.all_input_nodes)
        orders = {used: order_of(one.meta["val"]) for used, one in slices if one.meta["val"].dim()}
        if not is_exact(node, region.members[node], target.rows, orders):
            return False
    return True
