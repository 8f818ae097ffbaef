"""The bytes live while each operator of a graph runs, from its nodes in execution order."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch.fx import GraphModule, Node

from dtr_fx.passes import rng
from dtr_fx.passes.reach import given_back
from dtr_fx.passes.roles import origin_name, role
from dtr_fx.passes.tensors import (
    constant_kind,
    counts,
    held_by,
    is_backward,
    is_selection,
    is_tangent,
    is_update,
    module_state,
    storage_bytes,
    storage_keys,
)
from dtr_fx.report import KINDS, Point
from dtr_fx.runtime.steps import DROP, RECOMPUTE


def liveness(gm: GraphModule, workspace: Mapping[str, int], device: torch.device) -> list[Point]:
    """The bytes live on ``device``, by kind, while each operator runs, by the last reader of each storage.

    ``workspace`` gives, by the name of an operator's origin, the bytes that it allocates for itself.
    Inputs and parameters that the graph reads are live throughout, tangents from the first backward
    operator on, outputs from when they are made to the end, or to where the plan drops what is given back.
    """
    dies_at, kept = _lives(gm)
    parts = dict.fromkeys(KINDS, 0)
    parts["parameter"] = sum(storage_bytes(tensor, device) for _, tensor in module_state(gm))
    allocated: dict[int, tuple[str, int]] = {}

    def allocate(node: Node) -> None:
        """The storages of a node that are not there yet."""
        for held in held_by(node):
            if held.storage not in allocated:
                kind = kind_of(node, is_output=held.storage in kept)
                allocated[held.storage] = kind, held.nbytes if held.device == device.type else 0
                parts[kind] += allocated[held.storage][1]

    tangents: list[Node] = []
    points: list[Point] = []
    for node in [*gm.graph.find_nodes(op="placeholder"), *gm.graph.find_nodes(op="get_attr")]:
        if node.users and is_tangent(node):
            tangents.append(node)
        elif counts(node):
            allocate(node)
    for node in gm.graph.nodes:
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        if tangents and role(node) != DROP and node.meta.get("partitioner_tag") == "is_backward":
            for tangent in tangents:
                allocate(tangent)
            tangents = []
        if not (is_selection(node) or role(node) == DROP):
            allocate(node)
            parts["temporary"] = workspace.get(origin_name(node), 0)
            if node.target is rng.replay:
                parts["temporary"] += storage_bytes(rng.save_state(str(device)), device)
            points.append(Point(sum(parts.values()), node.name, tuple(parts.values())))
        for key in dies_at.get(node, ()):
            if key in allocated:
                kind, nbytes = allocated.pop(key)
                parts[kind] -= nbytes
    return points


def kind_of(node: Node, *, is_output: bool) -> str:
    """The kind, among ``KINDS``, of a storage that a node makes."""
    if node.op in ("placeholder", "get_attr"):
        return constant_kind(node)
    if role(node) == RECOMPUTE:
        return "recomputed"
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
