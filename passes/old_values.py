"""Which inputs a training step may write where it does, as no plan reads their old values later."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence

from torch.fx import GraphModule, Node

from dtr_fx.passes.effects import may_run_twice, mutated_tensors
from dtr_fx.passes.tensors import is_backward, is_update, storage_key, storage_keys


def read_before_updates(gm: GraphModule) -> tuple[dict[int, int], set[Node]]:
    """Where inputs are first written, by storage, of which any plan reads the old value before that.

    It does if what is computed from it is read by then, or stays, as a gradient may: the second result.
    """
    place = {node: number for number, node in enumerate(gm.graph.nodes)}
    inputs = [node for node in gm.graph.nodes if node.op in ("placeholder", "get_attr")]
    held = {key for node in inputs for key in storage_keys(node)}
    first: dict[int, int] = {}
    readers: defaultdict[int, list[Node]] = defaultdict(list)
    last_read: dict[int, int] = {}
    for node, number in place.items():
        if not node.op.startswith("call"):
            continue
        for key in {key for used in node.all_input_nodes for key in storage_keys(used)}:
            readers[key].append(node)
            last_read[key] = number
        for key in held.intersection(map(storage_key, mutated_tensors(node))):
            first.setdefault(key, number)
    stay: set[Node] = set()
    safe: dict[int, int] = {}
    for key, number in sorted(first.items(), key=lambda item: item[1]):
        found = _crossing(key, number, place, readers, last_read, stay)
        if all(map(_may_stay, found)):
            stay.update(found)
            safe[key] = number
    return safe, stay


def _crossing(
    written: int,
    number: int,
    place: Mapping[Node, int],
    readers: Mapping[int, Sequence[Node]],
    last_read: Mapping[int, int],
    stay: Collection[Node],
) -> list[Node]:
    """The operators whose results need the old value of a storage, and are read after it is written."""
    pending = [node for node in readers[written] if place[node] < number]
    seen = set(pending)
    found = []
    while pending:
        node = pending.pop()
        if node in stay or not may_run_twice(node):
            continue
        made = {*storage_keys(node)} - {key for used in node.all_input_nodes for key in storage_keys(used)}
        if any(last_read.get(key, -1) > number for key in made):
            found.append(node)
            if not _may_stay(node):
                return found
            continue
        more = {reader for key in made for reader in readers.get(key, ())} - seen
        seen |= more
        pending += more
    return found


def _may_stay(node: Node) -> bool:
    """True of gradients, and of what clipping and the optimizer make of them."""
    return is_backward(node) or is_update(node)
