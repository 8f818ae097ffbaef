"""Gradients of one value are added up in place, as eager PyTorch's autograd engine does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import permutations

import torch
from torch.fx import GraphModule, Node

from dtr_fx.passes.contract import ORDER, VALUES, Pass
from dtr_fx.passes.tensors import empty_like, is_backward, layout, storage_keys, view_like

_ADD, _ADD_IN_PLACE = torch.ops.aten.add.Tensor, torch.ops.aten.add_.Tensor
_MARK = "dtr_in_place"  # of a sum that was traced out of place


class AccumulateInPlace(Pass):
    """Write the sum of two gradients over one of them that nothing else reads.

    While an operator adds them there are three tensors otherwise.  AOTAutograd traces that operator, for it
    functionalizes what the engine does (``InputBuffer::add`` in torch/csrc/autograd/input_buffer.cpp).
    """

    name = "accumulate in place"
    requires = (VALUES, ORDER)
    ensures = (VALUES, ORDER)

    def call(self, gm: GraphModule) -> bool:
        holders: defaultdict[int, list[Node]] = defaultdict(list)
        for node in gm.graph.nodes:
            for key in {*storage_keys(node)}:
                holders[key].append(node)
        changed = False
        # The last first: what is written over takes on the storage of the sum, a sum itself maybe.
        for total in reversed(gm.graph.find_nodes(op="call_function", target=_ADD)):
            if not is_backward(total) or total.kwargs or len(total.all_input_nodes) != 2:
                continue
            # What is written over may not be deferred: rather the one that is made right before.
            for term, other in sorted(permutations(total.all_input_nodes), reverse=True):
                if _may_hold(term, total, holders):
                    _write_over(term, total, other, holders)
                    changed = True
                    break
        return changed


class AccumulateOutOfPlace(Pass):
    """Take back what ``AccumulateInPlace`` did: what writes is in no region that runs in slices."""

    name = "accumulate out of place"
    requires = (VALUES,)
    ensures = (VALUES,)

    def call(self, gm: GraphModule) -> bool:
        written = gm.graph.find_nodes(op="call_function", target=_ADD_IN_PLACE)
        totals = list(filter(is_sum_in_place, written))
        for total in totals:
            views: list[Node] = [total.args[0]]
            keys = storage_keys(total)
            while viewed := [read for read in views[-1].all_input_nodes if storage_keys(read) == keys]:
                views += viewed
            fresh = empty_like(views[-1].meta["val"])
            for node in views:
                node.meta["val"] = view_like(node.meta["val"], fresh)
            total.target = _ADD
        return bool(totals)


def is_sum_in_place(node: Node) -> bool:
    """True if ``AccumulateInPlace`` made the node write: who reads on in its storage reads the node."""
    return node.target is _ADD_IN_PLACE and bool(node.meta.get(_MARK))


def _may_hold(term: Node, total: Node, holders: Mapping[int, Sequence[Node]]) -> bool:
    """True if the backward pass made a term, be it a view, for this sum alone, and laid out like it."""
    value = term.meta["val"]
    if not isinstance(value, torch.Tensor) or layout(value) != layout(total.meta["val"]):
        return False
    keys = storage_keys(term)
    views = [term]  # the term is a view of the one behind it, and so on
    while len(views) < len(holders[keys[0]]):
        read = views[-1].all_input_nodes
        if len(read) != 1 or storage_keys(read[0]) != keys:
            return False
        views += read
    is_one = all(isinstance(node.meta["val"], torch.Tensor) and len(node.users) == 1 for node in views)
    return is_one and all(node.op == "call_function" and is_backward(node) for node in views)


def _write_over(term: Node, total: Node, other: Node, holders: Mapping[int, Sequence[Node]]) -> None:
    [key] = storage_keys(term)
    for node in holders[key]:
        node.meta["val"] = view_like(node.meta["val"], total.meta["val"])
    total.target, total.args = _ADD_IN_PLACE, (term, other)
    total.meta[_MARK] = True
