"""Which operators run in slices: those that need more memory than the rest, until the rest needs more."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from functools import cache

import torch
from torch.fx import GraphModule

from dtr_fx.costs.cut_exact import is_exact, may_be_exact, order_of
from dtr_fx.costs.workspaces import above_inputs
from dtr_fx.passes.accumulate import AccumulateInPlace, AccumulateOutOfPlace
from dtr_fx.passes.loss_rows import rows_of_loss
from dtr_fx.passes.regions import Allowed, Region, find_regions, put_in_slices, sliced
from dtr_fx.passes.slices import Sliced
from dtr_fx.passes.tensors import tensors_of
from dtr_fx.planning.options import Options
from dtr_fx.planning.planning import Planning, copy_of
from dtr_fx.torch_private import FakeTensor, FakeTensorMode, disable_current_modes

# A region is cut until what a slice takes is so small a part of what the region has whole; regions whose
# needs differ by less are alike.
_SMALL, _ALIKE = 0.125, 1.1
# So many regions in a row may leave the lower bound as it is: of operators that need as much as each other.
_PATIENCE = 4


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
    AccumulateOutOfPlace().call(gm)
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
    storages = {planning.graph.storage(value) for value in (*call.inputs, *call.outputs)}
    own = sum(planning.graph.values[value].nbytes for value in storages - {*planning.graph.constants})
    room = target - (planning.planner.need.nbytes - own - call.workspace)
    regions = [region for allowed in _allowed(planning.options) for region in find_regions(gm, seed, allowed)]
    best = _least(planning, regions, room)
    if best is None:
        return None
    put_in_slices(gm, *best)
    if is_fused:
        ContractKernels().call(gm)
    else:
        AccumulateInPlace().call(gm)
    return planning.of_variant(gm)


def _allowed(options: Options) -> tuple[Allowed, ...]:
    """Which cuts regions may have: without sums, and with some if it may be that these have the same bits."""
    if options.slices == "summed":
        return (lambda node, axis: True,)
    without: Allowed = lambda node, axis: axis.is_exact  # noqa: E731
    return (without,) if options.executor == "inductor" else (without, may_be_exact)


def _least(planning: Planning, regions: Sequence[Region], room: float) -> tuple[Region, Sliced] | None:
    """The region that takes the least memory, in slices; of those that take about as little, the smallest."""
    found: list[tuple[int, float, Sliced]] = []
    least = math.inf
    for number, region in sorted(enumerate(regions), key=lambda each: each[1].whole_bytes):
        if region.whole_bytes > least:
            break
        target = _fewest(planning, region, room)
        if target is not None:
            nbytes = region.whole_bytes + above_inputs(target.runs)
            found.append((number, nbytes, target))
            least = min(least, max(room, _ALIKE * nbytes))
    fitting = ((number, target) for number, nbytes, target in found if nbytes <= least)
    number, target = min(fitting, key=lambda each: each[0], default=(0, None))
    return None if target is None else (regions[number], target)


def _fewest(planning: Planning, region: Region, room: float) -> Sliced | None:
    """The region in the fewest slices that have ``room``, or of which one is small; else in the most.

    None if slices are to have the bits of the whole, and none have.
    """
    whole, options = region.whole_bytes, planning.options
    small = region.summed_bytes() + _SMALL * (whole + planning.graph.constant_bytes)
    layouts, counts = region.layouts if options.slices == "summed" else [None], region.counts()

    @cache
    def target(rows: int) -> Sliced:
        found = (sliced(planning.gm, region, rows, layout) for layout in layouts)
        return min(found, key=lambda each: above_inputs(each.runs))

    def fits(rows: int) -> bool:
        return above_inputs(target(rows).runs) <= max(small, room - whole)

    first = bisect_left(counts, True, key=fits)
    for rows in (*counts[first:], *reversed(counts[:first])):
        found = target(rows)
        if options.slices == "exact":
            found.is_exact = options.executor == "inductor" or _is_exact(region, found)
        if found.is_exact or options.slices == "summed":
            return found
    return None


def _is_exact(region: Region, target: Sliced) -> bool:
    """True if these slices give the bits of the whole."""
    inside = {node.name: node for node in target.operators}
    # Sums first: most of them are not exact, and then nothing else is measured.
    for node in sorted(region.members, key=lambda node: region.members[node].is_exact):
        slices = zip(node.all_input_nodes, inside[node.name].all_input_nodes)
        orders = {used: order_of(one.meta["val"]) for used, one in slices if one.meta["val"].dim()}
        if not is_exact(node, region.members[node], target.rows, orders):
            return False
    return True
