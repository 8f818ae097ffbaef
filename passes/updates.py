"""What a training step writes into its inputs, as early as the step allows.

Requires: ``meta["val"]`` on every node, nodes in an order in which they may run.

An optimizer stands at the end of a traced step, and all gradients wait for it.  In one graph the update of a
parameter is its gradient's last use, so what only serves to write an input runs when all that it reads is
there and nothing reads the old value any more.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any

import networkx as nx
from torch.fx import GraphModule, Node

from dtr_fx.errors import DTRError
from dtr_fx.passes import rng
from dtr_fx.passes.accumulate import AccumulateInPlace
from dtr_fx.passes.contract import ORDER, VALUES, Pass, Pipeline
from dtr_fx.passes.effects import may_run_twice, mutated_tensors
from dtr_fx.passes.split import MergeDuplicates
from dtr_fx.passes.tensors import (
    UPDATE,
    is_update,
    nbytes_of,
    storage_key,
    storage_keys,
    tensors_of,
)

_SCALAR = 16  # bytes of a number, at most; those that updates share tie none of them together


class UpdateError(DTRError):
    """An operator would read another value than it read before: a defect of dtr_fx, worth a report."""


def prepare_inference(gm: GraphModule) -> None:
    """Make a graph that AOTAutograd has no backward pass for ready for planning; it may hold its own."""
    passes = TagOwnBackward(), MergeDuplicates(), AccumulateInPlace(), EarlyUpdates()
    Pipeline(*passes, given=(VALUES,))(gm)


class TagOwnBackward(Pass):
    """Say of each operator in which pass it is, in a graph that Dynamo traced with its backward pass.

    PyTorch marks gradients in ``meta["autograd_backward"]`` from 2.13 on; without marks nothing is changed.
    """

    name = "tag own backward"
    ensures = (ORDER,)

    def call(self, gm: GraphModule) -> bool:
        calls = [node for node in gm.graph.nodes if node.op.startswith("call")]
        marked = [number for number, node in enumerate(calls) if node.meta.get("autograd_backward")]
        for number, node in enumerate(calls if marked else ()):
            later = "is_backward" if number <= marked[-1] else UPDATE
            node.meta["partitioner_tag"] = "is_forward" if number < marked[0] else later
        return bool(marked)


class EarlyUpdates(Pass):
    """Move every write to an input, and what only serves it, to where the last thing that it needs stands."""

    name = "early updates"
    requires = (VALUES,)
    ensures = (VALUES,)

    def call(self, gm: GraphModule) -> bool:
        order = [node for node in gm.graph.nodes if node.op.startswith("call")]
        group_of = _groups(gm, order)
        if not group_of:
            return False
        moved = _with_groups(order, group_of)
        check_reads(order, moved)
        for node in gm.graph.find_nodes(op="get_attr"):
            moved[0].prepend(node)
        for earlier, later in pairwise(moved):
            if earlier.next is not later:
                earlier.append(later)
        return moved != order


def _groups(gm: GraphModule, order: Sequence[Node]) -> dict[Node, Node]:
    """Of every node that may move its group, named by one of its nodes.

    A write is in the group of what reads its result, and so is what is read by one group only.  What the two
    passes compute stays as it is.
    """
    inputs = [node for node in gm.graph.nodes if node.op in ("placeholder", "get_attr")]
    written = {key for node in inputs for key in storage_keys(node)}
    returned = {key for node in gm.graph.output_node().all_input_nodes for key in storage_keys(node)}
    ties = nx.utils.UnionFind()
    found: dict[Node, None] = {}
    for node in reversed(order):
        users = [user for user in node.users if user.op != "output"]
        if not (is_update(node) or "partitioner_tag" not in node.meta) or not found.keys() >= set(users):
            continue
        if any(storage_key(tensor) in written for tensor in mutated_tensors(node)):
            found[node] = None
            ties.union(node, *users)
        elif is_update(node) or _serves_one(node, ties, returned):
            found[node] = None
            if not _is_number(node):
                ties.union(node, *(user for user in users if not _is_number(user)))
    pairs = list(_dependences(order))
    while stays := {ties[earlier] for node, earlier in pairs if node not in found and earlier in found}:
        found = {node: None for node in found if ties[node] not in stays}
    return {node: ties[node] for node in found}


def _serves_one(node: Node, ties: Any, returned: set[int]) -> bool:
    """True if a node only computes, for one group, or a number."""
    if not node.users or not may_run_twice(node) or rng.is_random(node):
        return False
    is_one = _is_number(node) or len({ties[user] for user in node.users}) == 1
    return is_one and returned.isdisjoint(storage_keys(node))


def _is_number(node: Node) -> bool:
    """True if what the node makes takes no memory to speak of."""
    return not mutated_tensors(node) and sum(map(nbytes_of, tensors_of(node.meta.get("val")))) <= _SCALAR


def _with_groups(order: Sequence[Node], group_of: Mapping[Node, Node]) -> list[Node]:
    """The order, with each group behind the last node of the passes that it depends on."""
    place = {node: number for number, node in enumerate(order)}
    depends = nx.DiGraph()
    depends.add_nodes_from(group_of.values())
    after: defaultdict[Node, int] = defaultdict(lambda: -1)
    for node, earlier in _dependences(order):
        group = group_of.get(node)
        if group is None:
            continue
        if earlier not in group_of:
            after[group] = max(after[group], place[earlier])
        elif group_of[earlier] is not group:
            depends.add_edge(group_of[earlier], group)
    members: defaultdict[Node, list[Node]] = defaultdict(list)
    for node in order:
        if node in group_of:
            members[group_of[node]].append(node)
    tied = nx.condensation(depends)  # what depends on one another stays together
    inside = {
        number: sorted((node for group in groups for node in members[group]), key=place.__getitem__)
        for number, groups in tied.nodes(data="members")
    }
    behind: defaultdict[int, list[Node]] = defaultdict(list)
    reached: dict[int, int] = {}
    for number in nx.lexicographical_topological_sort(tied, key=lambda number: place[inside[number][0]]):
        before = (reached[other] for other in tied.predecessors(number))
        reached[number] = max([*before, *(after[group_of[node]] for node in inside[number])])
        behind[reached[number]] += inside[number]
    moved = list(behind[-1])
    for number, node in enumerate(order):
        if node not in group_of:
            moved += [node, *behind[number]]
    return moved


def _dependences(order: Iterable[Node]) -> Iterator[tuple[Node, Node]]:
    """Every node with each that it comes after: what it reads, and before it writes all that read."""
    inside = set()
    writer: dict[int, Node] = {}
    readers: defaultdict[int, list[Node]] = defaultdict(list)
    for node in order:
        for used in node.all_input_nodes:
            if used in inside:
                yield node, used
        read = {key for used in (node, *node.all_input_nodes) for key in storage_keys(used)}
        written = set(map(storage_key, mutated_tensors(node)))
        for key in read:
            if key in writer:
                yield node, writer[key]
        for key in written:
            yield from ((node, reader) for reader in readers[key])
            readers[key] = []
            writer[key] = node
        for key in read - written:
            readers[key].append(node)
        inside.add(node)


def _versions_read(order: Iterable[Node]) -> dict[Node, dict[int, Node | None]]:
    """Of each storage that a node reads the last that wrote it before."""
    writer: dict[int, Node] = {}
    found: dict[Node, dict[int, Node | None]] = {}
    for node in order:
        keys = {key for used in node.all_input_nodes for key in storage_keys(used)}
        found[node] = {key: writer.get(key) for key in keys}
        writer.update(dict.fromkeys(map(storage_key, mutated_tensors(node)), node))
    return found


def check_reads(before: Sequence[Node], after: Sequence[Node]) -> None:
    """Raise ``UpdateError`` unless every node reads in one order what it reads in another, and can run."""
    earlier, later = _versions_read(before), _versions_read(after)
    if earlier != later:
        node = next(node for node in before if earlier[node] != later.get(node))
        raise UpdateError(f"{node.format_node()} would read another value than it did")
    seen: set[Node] = set()
    for node in after:
        missing = [used for used in node.all_input_nodes if used.op.startswith("call") and used not in seen]
        if missing:
            raise UpdateError(f"{node.format_node()} would run before {missing[0].name}")
        seen.add(node)
