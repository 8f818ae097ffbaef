"""The bytes live while each operator of a graph runs, from its nodes alone.

Requires: ``meta["val"]`` on every node, nodes in execution order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch.fx import GraphModule, Node

from dtr_fx.report import KINDS, Point
from dtr_fx.runtime.steps import DROP, RECOMPUTE

from . import rng
from .roles import origin_name, role
from .tensors import held_by, is_backward, is_selection, is_tangent, module_state, storage_bytes, storage_keys


def liveness(gm: GraphModule, workspace: Mapping[str, int], device: torch.device) -> list[Point]:
    """The bytes live on ``device``, by kind, while each operator runs, by the last reader of each storage.

    ``workspace`` gives, by the name of an operator's origin, the bytes that it allocates for itself.
    Inputs and parameters that the graph reads are live throughout, tangents from the first backward
    operator on, outputs from when they are made to the end.
    """
    lives = _lives(gm)
    memory = _Memory(device.type, lives)
    memory.add("parameter", sum(storage_bytes(tensor, device) for _, tensor in module_state(gm)))
    tangents: list[Node] = []
    points: list[Point] = []
    for node in [*gm.graph.find_nodes(op="placeholder"), *gm.graph.find_nodes(op="get_attr")]:
        if node.users and is_tangent(node):
            tangents.append(node)
        elif node.users:
            memory.allocate(node)
    for node in gm.graph.nodes:
        if node.op in ("placeholder", "get_attr"):
            continue
        if node.op != "output" and role(node) != DROP:
            if tangents and node.meta.get("partitioner_tag") == "is_backward":
                for tangent in tangents:
                    memory.allocate(tangent)
                tangents = []
            if not is_selection(node):
                memory.allocate(node)
                own = workspace.get(origin_name(node), 0)
                if node.target is rng.replay:
                    own += storage_bytes(rng.state_like(device), device)
                points.append(memory.point(node.name, own))
            for key in lives.dies_at.get(node, ()):
                memory.free(key)
    return points


class _Memory:
    """The bytes live on a device, by kind."""

    def __init__(self, device: str, lives: _Lives) -> None:
        self._device = device
        self._lives = lives
        self._parts = dict.fromkeys(KINDS, 0)
        self._live = 0
        self._held: dict[int, tuple[str, int]] = {}

    def add(self, kind: str, nbytes: int) -> None:
        self._parts[kind] += nbytes
        self._live += nbytes

    def allocate(self, node: Node) -> None:
        """The storages of a node that are not there yet."""
        for held in held_by(node):
            key = held.storage
            if key not in self._held:
                kind = _kind(node, is_output=key in self._lives.kept)
                self._held[key] = kind, held.nbytes if held.device == self._device else 0
                self.add(*self._held[key])

    def free(self, key: int) -> None:
        if key in self._held:
            kind, nbytes = self._held.pop(key)
            self.add(kind, -nbytes)

    def point(self, name: str, temporary: int) -> Point:
        self._parts["temporary"] = temporary
        return Point(self._live + temporary, name, tuple(self._parts.values()))


def _kind(node: Node, *, is_output: bool) -> str:
    """The kind, among ``KINDS``, of a storage that a node makes."""
    if node.op == "placeholder":
        return "parameter" if node.meta.get("dtr_parameter") else "input"
    if node.op == "get_attr":
        return "parameter"
    if role(node) == RECOMPUTE:
        return "recomputed"
    if is_backward(node):
        return "gradient"
    return "output" if is_output else "activation"


@dataclass(frozen=True)
class _Lives:
    """For every node, its storages and those that it is the last to read; those ``kept`` stay to the end."""

    dies_at: dict[Node, list[int]]
    kept: set[int]
    keys_of: dict[Node, list[int]]


def _lives(gm: GraphModule) -> _Lives:
    last_reader: dict[int, Node] = {}
    kept: set[int] = set()
    keys_of: dict[Node, list[int]] = {}
    for node in gm.graph.nodes:
        if node.op == "output":
            kept.update(key for used in node.all_input_nodes for key in keys_of[used])
        elif role(node) != DROP:
            keys_of[node] = storage_keys(node)
            for used in (node, *node.all_input_nodes):
                for key in keys_of[used]:
                    last_reader[key] = node
            if node.op in ("placeholder", "get_attr"):
                kept.update(keys_of[node])
    dies_at: dict[Node, list[int]] = {}
    for key, node in last_reader.items():
        if key not in kept:
            dies_at.setdefault(node, []).append(key)
    return _Lives(dies_at, kept, keys_of)
