"""What a graph allocates and frees, from its nodes in execution order, and the bytes live meanwhile."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from typing import NamedTuple, TypeAlias

import torch
from torch.fx import GraphModule, Node

from dtr_fx.passes import rng
from dtr_fx.passes.reach import given_back
from dtr_fx.passes.roles import is_over, origin_name, role
from dtr_fx.passes.tensors import (
    constant_kind,
    counts,
    held_by,
    is_backward,
    is_selection,
    is_tangent,
    is_update,
    module_state,
    parameters_first,
    storage_bytes,
    storage_keys,
)
from dtr_fx.report import KINDS, Point
from dtr_fx.runtime.caching_allocator import Block, CachingAllocator
from dtr_fx.runtime.steps import DROP, OFFLOAD, RECOMPUTE, RELOAD, WAIT


class Allocation(NamedTuple):
    """A storage of at least one byte is allocated."""

    storage: int
    kind: str
    nbytes: int


class Run(NamedTuple):
    """An operator runs, and takes ``temporary`` bytes for itself."""

    name: str
    temporary: int


class Release(NamedTuple):
    """A storage is freed."""

    storage: int


Request: TypeAlias = "Allocation | Run | Release"


def liveness(gm: GraphModule, workspace: Mapping[str, int], device: torch.device) -> list[Point]:
    """The bytes live on ``device``, by kind, while each operator runs, by the last reader of each storage.

    ``workspace`` gives, by the name of an operator's origin, the bytes that it allocates for itself.
    Inputs and parameters that the graph reads are live throughout, tangents from the first backward
    operator on, outputs from when they are made to the end, or to where the plan drops what is given back.
    """
    return points_of(allocations(gm, workspace, device))


def with_reserved(
    gm: GraphModule, workspace: Mapping[str, int], device: torch.device
) -> tuple[list[Point], int]:
    """As ``liveness``, and the bytes that PyTorch's caching allocator reserves."""
    requests = list(allocations(gm, workspace, device))
    allocator = CachingAllocator.as_configured()
    reserve(requests, allocator)
    return points_of(requests), allocator.reserved


def points_of(requests: Iterable[Request]) -> list[Point]:
    """The bytes live while each operator runs."""
    parts = dict.fromkeys(KINDS, 0)
    allocated: dict[int, Allocation] = {}
    points: list[Point] = []
    for step in requests:
        if isinstance(step, Allocation):
            allocated[step.storage] = step
            parts[step.kind] += step.nbytes
        elif isinstance(step, Release):
            gone = allocated.pop(step.storage)
            parts[gone.kind] -= gone.nbytes
        else:
            parts["temporary"] = step.temporary
            points.append(Point(sum(parts.values()), step.name, tuple(parts.values())))
    return points


def reserve(requests: Iterable[Request], allocator: CachingAllocator) -> None:
    """Let the allocator serve what a graph asks for; it knows each storage's kind as the owner."""
    blocks: dict[int, Block] = {}
    for step in requests:
        if isinstance(step, Allocation):
            blocks[step.storage] = allocator.malloc(step.nbytes, step.kind)
        elif isinstance(step, Release):
            allocator.free(blocks.pop(step.storage))
        elif step.temporary:
            allocator.free(allocator.malloc(step.temporary, "temporary"))


def allocations(gm: GraphModule, workspace: Mapping[str, int], device: torch.device) -> Iterator[Request]:
    """The requests to the allocator of ``device`` as the graph runs; see ``liveness``."""
    dies_at, kept = _lives(gm)
    there = _Storages(device, kept)
    for number, (_, tensor) in enumerate(module_state(gm)):
        yield from _allocation(-1 - number, "parameter", storage_bytes(tensor, device))
    tangents: list[Node] = []
    held = [*gm.graph.find_nodes(op="placeholder"), *gm.graph.find_nodes(op="get_attr")]
    for node in parameters_first(held, constant_kind):
        if node.users and is_tangent(node):
            tangents.append(node)
        elif counts(node):
            yield from there.allocate(node)
    for node in gm.graph.nodes:
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        if tangents and role(node) != DROP and node.meta.get("partitioner_tag") == "is_backward":
            for tangent in tangents:
                yield from there.allocate(tangent)
            tangents = []
        yield from there.run(node, workspace)
        yield from there.free(dies_at.get(node, ()))


class _Storages:
    """The storages that are there while a graph runs; those ``kept`` are its outputs and inputs."""

    def __init__(self, device: torch.device, kept: Container[int]) -> None:
        self._device, self._kept = device, kept
        self._size_of: dict[int, int] = {}

    def allocate(self, node: Node) -> Iterator[Request]:
        """The storages of a node that are not there yet."""
        for held in held_by(node):
            if held.storage not in self._size_of:
                nbytes = self._size_of[held.storage] = held.nbytes if held.device == self._device.type else 0
                kind = kind_of(node, is_output=held.storage in self._kept)
                yield from _allocation(held.storage, kind, nbytes)

    def run(self, node: Node, workspace: Mapping[str, int]) -> Iterator[Request]:
        """An operator or a transfer; a copy out and a wait for it allocate nothing."""
        if role(node) in (OFFLOAD, WAIT):
            if not is_over(node):
                yield Run(node.name, 0)
        elif not (is_selection(node) or role(node) == DROP):
            yield from self.allocate(node)
            temporary = 0 if role(node) == RELOAD else workspace.get(origin_name(node), 0)
            if node.target is rng.replay:
                temporary += storage_bytes(rng.save_state(str(self._device)), self._device)
            yield Run(node.name, temporary)

    def free(self, storages: Iterable[int]) -> Iterator[Request]:
        for storage in storages:
            if self._size_of.pop(storage, 0):
                yield Release(storage)


def _allocation(storage: int, kind: str, nbytes: int) -> Iterator[Request]:
    if nbytes:
        yield Allocation(storage, kind, nbytes)


def kind_of(node: Node, *, is_output: bool) -> str:
    """The kind, among ``KINDS``, of a storage that a node makes."""
    if node.op in ("placeholder", "get_attr"):
        return constant_kind(node)
    if role(node) == RECOMPUTE:
        return "recomputed"
    if role(node) == RELOAD:
        return "activation"
    if is_backward(node):
        return "gradient"
    if is_update(node):
        return "optimizer"
    return "output" if is_output else "activation"


def _lives(gm: GraphModule) -> tuple[dict[Node, list[int]], set[int]]:
    """For every node, the storages that it is the last to read; and those that stay to the end."""
    last_reader: dict[int, Node] = {}
    kept: set[int] = set()
    back, dropped = given_back(gm), set()
    for node in gm.graph.nodes:
        if node.op == "output":
            kept.update(key for used in node.all_input_nodes for key in storage_keys(used))
        elif role(node) != DROP:
            for used in (node, *node.all_input_nodes):
                last_reader.update(dict.fromkeys(storage_keys(used), node))
            if node.op in ("placeholder", "get_attr"):
                kept.update(storage_keys(node))
        elif is_backward(node):
            gone = back.intersection(storage_keys(node.all_input_nodes[0]))
            last_reader.update(dict.fromkeys(gone, node))
            dropped |= gone
    kept -= dropped
    dies_at: dict[Node, list[int]] = {}
    for key, node in last_reader.items():
        if key not in kept:
            dies_at.setdefault(node, []).append(key)
    return dies_at, kept
