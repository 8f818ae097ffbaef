"""Regions to run slice by slice: neighbours that share a cut, found from the largest operator outward.

A region grows over the largest value that it still reads or makes whole.  What the forward pass made, a
region of the backward pass makes anew in its slices, so that it need not be kept.
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from dtr_fx.passes import rng
from dtr_fx.passes.cuts import Axis, axes
from dtr_fx.passes.effects import first_writes, may_run_twice
from dtr_fx.passes.marks import mark_of
from dtr_fx.passes.modes import fake_mode_of
from dtr_fx.passes.reach import reached_by_caller, written_after_forward
from dtr_fx.passes.slices import SUM, Cut, Given, Result, Sliced, Sum, rows_of, together
from dtr_fx.passes.tensors import described, held_by, is_backward, is_selection, is_view, storage_keys
from dtr_fx.torch_private import rename

# Growth ends at so many operators, or after so many that do not help.
_MOST_MEMBERS, _PATIENCE = 300, 24
_MOST_SLICES = 1024

Allowed = Callable[[Node, Axis], bool]


@dataclass(frozen=True)
class Region:
    """Operators with the axis along which each is cut; those of the other pass are run again.

    ``resident`` are the storages of the graph's inputs.
    """

    seed: Node
    members: dict[Node, Axis]
    resident: frozenset[int]

    @property
    def extent(self) -> int:
        return self.members[self.seed].extent

    def is_own(self, node: Node) -> bool:
        """True if the region replaces the operator; else it runs it again."""
        return is_backward(node) == is_backward(self.seed)

    @cached_property
    def made(self) -> dict[Node, Cut | Sum]:
        """What the operators make, and how it is cut."""
        return {
            value: cut
            for node, axis in self.members.items()
            for position, value in _results(node)
            if (cut := axis.results[position]) is not None
        }

    @cached_property
    def read(self) -> dict[tuple[Node, Cut | None], None]:
        """What the region reads from outside, and how it is cut."""
        return {
            (value, axis.inputs.get(value)): None
            for node, axis in self.members.items()
            for value in node.all_input_nodes
            if _source(value) not in self.members
        }

    @cached_property
    def results(self) -> dict[Node, Cut | Sum]:
        """What others read of what the region makes; views of what it reads stay outside, too."""
        foreign = {key for value, _ in self.read for key in storage_keys(value)}
        return {
            value: cut
            for value, cut in self.made.items()
            if self.is_own(_source(value))
            and self._readers(value)
            and foreign.isdisjoint(storage_keys(value))
        }

    def _readers(self, value: Node) -> list[Node]:
        return [user for user in value.users if user not in self.members]

    @cached_property
    def between(self) -> set[Node]:
        """The operators on the way from the results to the last one: where that reads them, they are part."""
        last, found = max(self.members), set[Node]()
        pending = [reader for value in self.results for reader in self._readers(value)]
        while pending:
            node = pending.pop()
            if node not in found and node < last:
                found.add(node)
                pending += node.users
        return found

    def counts(self) -> list[int]:
        """In how many equal slices it can run."""
        return [slices for slices in range(2, _MOST_SLICES + 1) if self.extent % slices == 0]

    @cached_property
    def whole_bytes(self) -> int:
        """Bytes of what the region reads and makes whole, inputs of the graph apart."""
        results = self.results
        held = [held for value, _ in self.read for held in held_by(value)]
        held = [each for each in held if each.storage not in self.resident]
        held += [held for value in results for held in held_by(value)]
        return sum({each.storage: each.nbytes for each in held}.values())

    def summed_bytes(self) -> int:
        """Bytes of the results that slices add up; each slice makes as much."""
        sums = (value for value, cut in self.results.items() if cut is SUM)
        return sum(held.nbytes for value in sums for held in held_by(value))

    def with_producer(self, value: Node, allowed: Allowed) -> Region | None:
        """The region with what makes a value that it reads; None if that cannot be cut alike."""
        cut = next(cut for read, cut in self.read if read is value and cut is not None)
        node = _source(value)
        [position] = [position for position, result in _results(node) if result is value]
        for axis in axes(node):
            if axis.results[position] == cut:
                grown = self._with(node, axis, allowed)
                if grown is not None:
                    return grown
        return None

    def with_readers(self, value: Node, allowed: Allowed) -> Region | None:
        """The region with all that reads a value that it makes; None if that cannot be cut alike."""
        cut, grown = self.made[value], self
        for reader in self._readers(value):
            if reader.op == "output" or not self.is_own(reader):
                return None
            fitting = (axis for axis in axes(reader) if axis.inputs.get(value) == cut)
            wider = (grown._with(reader, axis, allowed) for axis in fitting)
            found = next(filter(None, wider), None)
            if found is None:
                return None
            grown = found
        return grown

    def _with(self, node: Node, axis: Axis, allowed: Allowed) -> Region | None:
        if axis.extent != self.extent or not allowed(node, axis):
            return None
        grown = replace(self, members={**self.members, node: axis})
        return grown if grown._agrees(node) else None

    def _agrees(self, added: Node) -> bool:
        """True if what is made inside is read inside as it is cut."""
        made = self.made
        readers = {added, *(user for _, value in _results(added) for user in value.users)}
        return all(
            self.members[node].inputs.get(value) == made[value]
            for node in readers & self.members.keys()
            for value in node.all_input_nodes
            if value in made
        )


def find_regions(gm: GraphModule, seed: Node, allowed: Allowed) -> list[Region]:
    """Regions around an operator, from small to large; each reads and makes less whole than smaller ones.

    ``allowed`` tells which cuts may be used.
    """
    written = first_writes(gm.graph)
    inputs = (node for node in gm.graph.nodes if node.op in ("placeholder", "get_attr"))
    resident = frozenset(key for node in inputs for key in storage_keys(node))
    reached = reached_by_caller(gm, "input", "output").keys() | written_after_forward(gm)

    def may(node: Node, axis: Axis) -> bool:
        runs_again = is_backward(seed) and not is_backward(node)
        barred = reached if runs_again else set()
        is_whole = all(axis.results[position] is not None for position, _ in _results(node))
        is_kept = is_view(node) or written.keys().isdisjoint(storage_keys(node))
        return is_whole and is_kept and _is_plain(node, barred) and allowed(node, axis)

    found: list[Region] = []
    for axis in axes(seed):
        least = math.inf
        for region in _grow(Region(seed, {seed: axis}, resident), may) if may(seed, axis) else ():
            if region.whole_bytes < least and _can_run(gm.graph, region, written):
                least = region.whole_bytes
                found.append(region)
    return sorted(found, key=lambda region: len(region.members))


def _grow(region: Region, allowed: Allowed) -> Iterator[Region]:
    """The region, and what it grows to: by what keeps it from running, else by the largest value."""
    failed: set[Node] = set()
    least, size = region.whole_bytes, 1
    while len(region.members) <= min(_MOST_MEMBERS, size + _PATIENCE):
        yield region
        inside = (value for value, cut in region.read if cut and value.op == "call_function")
        read = dict.fromkeys(inside, region.with_producer)
        made = {value: region.with_readers for value, cut in region.results.items() if cut is not SUM}
        ways = {value: way for value, way in {**read, **made}.items() if value not in failed}
        grown, between = None, region.between
        for value in sorted(ways, key=lambda value: (value in between, _nbytes(value)), reverse=True):
            grown = ways[value](value, allowed)
            if grown is not None:
                break
            failed.add(value)
        if grown is None:
            return
        region = grown
        if region.whole_bytes < least:
            least, size = region.whole_bytes, len(region.members)


def put_in_slices(gm: GraphModule, region: Region, target: Sliced) -> Node:
    """Replace the operators of a region by the one that runs them slice by slice."""
    results, seed = region.results, region.seed
    order = _order(gm.graph, region)
    assert order is not None, "find_region gives no other"
    place, moved = order
    with gm.graph.inserting_after(place):
        read = tuple(value for value, _ in region.read)
        node = gm.graph.call_function(cast(Callable[..., Any], target), read)
    node.meta = described(seed, tuple(value.meta["val"] for value in results))
    rename(node, f"{seed.name}_in_{target.slices}")
    last = node
    for position, value in enumerate(results):
        with gm.graph.inserting_after(last):
            last = gm.graph.call_function(operator.getitem, (node, position))
        last.meta = described(value, node.meta["val"][position])
        rename(last, f"{value.name}_joined")
        value.replace_all_uses_with(last, lambda user: user not in region.members)
    for each in moved:
        last.append(each)
        last = each
    _erase_unread(region)
    return node


def _erase_unread(region: Region) -> None:
    for member in sorted(region.members, reverse=True):
        for value in [value for _, value in _results(member) if value is not member and not value.users]:
            value.graph.erase_node(value)
        if not member.users:
            member.graph.erase_node(member)


def sliced(gm: GraphModule, region: Region, slices: int) -> Sliced:
    """The operator that runs a region in so many slices, with the fake values of one slice inside."""
    inside, rows, results = Graph(), region.extent // slices, region.results
    copies: dict[Node, Node] = {}
    given = list(region.read)
    with torch.no_grad(), fake_mode_of(gm) or contextlib.nullcontext():
        for value, cut in given:
            copy = copies[value] = inside.placeholder(value.name)
            whole = value.meta["val"]
            copy.meta["val"] = whole if cut is None else rows_of(whole, cut, 0, rows)
        for member in sorted(region.members):
            args, kwargs = region.members[member].arguments(rows)
            args, kwargs = map_arg((args, kwargs), copies.__getitem__)
            copy = copies[member] = inside.call_function(member.target, args, kwargs)  # type: ignore[arg-type]
            rename(copy, member.name)
            values = map_arg((args, kwargs), lambda used: used.meta["val"])
            copy.meta["val"] = member.target(*values[0], **values[1])  # type: ignore[operator]
            for position, value in _results(member):
                if value is not member:
                    part = copies[value] = inside.call_function(operator.getitem, (copy, position))
                    part.meta["val"] = copy.meta["val"][position]
    inside.output(tuple(copies[value] for value in results))
    return Sliced(
        inside,
        region.extent,
        slices,
        [Given(value.name, cut) for value, cut in given],
        [_result(value, join) for value, join in results.items()],
    )


def _result(value: Node, join: Cut | Sum) -> Result:
    tensor = value.meta["val"]
    return Result(value.name, join, tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, tensor.device)


def _order(graph: Graph, region: Region) -> tuple[Node, list[Node]] | None:
    """After which node a region can run, and what of what stands before has to move behind it.

    None where something outside stands between two of its operators, or may not move.
    """
    after: set[Node] = set()
    pending = [user for value in region.results for user in value.users if user not in region.members]
    while pending:
        node = pending.pop()
        if node in region.members:
            return None
        if node not in after:
            after.add(node)
            pending += node.users
    if any(value in after for value, _ in region.read):
        return None
    position = {node: number for number, node in enumerate(graph.nodes)}
    first = min(filter(region.is_own, region.members), key=position.__getitem__)
    place = max([first, *(value for value, _ in region.read)], key=position.__getitem__)
    moved = sorted((node for node in after if position[node] < position[place]), key=position.__getitem__)
    if any(rng.is_random(node) or not may_run_twice(node) for node in moved):
        return None
    return place, moved


def _can_run(graph: Graph, region: Region, written: Mapping[int, Node]) -> bool:
    """True if the region's operators can run as one, and all that is cut is laid out so that it can be.

    What they read is ``written`` behind them only.
    """
    cut_values = [(value, cut) for value, cut in (*region.read, *region.results.items()) if cut]
    try:
        for value, cut in cut_values:
            if isinstance(cut, Cut):
                together(value.meta["val"], cut)
    except (RuntimeError, ValueError):
        return False
    tensors = [value.meta["val"] for value in region.results]
    dense = (torch.empty_like(tensor).stride() == tensor.stride() for tensor in tensors)
    keys = [key for value in region.results for key in storage_keys(value)]
    read = [value for value, _ in region.read]
    is_apart = len({*read}) == len(read) and len({*keys}) == len(keys) > 0
    if not (all(dense) and is_apart):
        return False
    order = _order(graph, region)
    used = {key for value in read for key in storage_keys(value)} & written.keys()
    return order is not None and all(order[0] < written[key] for key in used)


def _is_plain(node: Node, barred: Set[int]) -> bool:
    """True if an operator may run anywhere, and any number of times, for all that the user says."""
    if node.op != "call_function" or not may_run_twice(node) or rng.is_random(node) or mark_of(node):
        return False
    touched = {key for used in (node, *node.all_input_nodes) for key in storage_keys(used)}
    is_tensor = isinstance(node.meta.get("val"), torch.Tensor)
    return barred.isdisjoint(touched) and (is_tensor or all(map(is_selection, node.users)))


def _source(value: Node) -> Node:
    """The operator that makes a value."""
    return value.all_input_nodes[0] if is_selection(value) else value


def _results(node: Node) -> list[tuple[int, Node]]:
    """The values that an operator makes, each with its position."""
    if isinstance(node.meta.get("val"), torch.Tensor):
        return [(0, node)]
    return [(user.args[1], user) for user in node.users if is_selection(user)]  # type: ignore[misc]


def _nbytes(value: Node) -> int:
    return sum(held.elements for held in held_by(value))
