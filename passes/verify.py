"""An independent check of a rewritten graph, and its peak, from the emitted nodes alone.

It shares no state with the interpreter.  Rules, each with an error that names the node:

====================  ================================================================================
live                  a node reads what stands before it, and no storage that was dropped
same operator         a recompute calls what its origin calls
same values           and on what its origin read: origins, their recomputes, kept copies that are copies
same randomness       a random recompute replays the state saved right before its origin
not twice             nothing that writes, or takes part in an effect, is recomputed
not after a write     a recompute neither reads a storage that was written since its origin read it, nor
                      makes anew one that was written since
====================  ================================================================================
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from dtr_fx.errors import DTRError
from dtr_fx.passes import rng
from dtr_fx.passes.storages import (
    COMPUTE,
    KEEP,
    SAVE_RNG,
    held_by,
    is_backward,
    is_selection,
    is_tangent,
    may_run_twice,
    module_state,
    mutated_tensors,
    storage_bytes,
    storage_key,
    storage_keys,
)
from dtr_fx.report import KINDS, Point
from dtr_fx.runtime.events import DROP, RECOMPUTE


class VerificationError(DTRError):
    """A rewritten graph breaks a rule: a defect of dtr_fx, worth a report."""


def verify(gm: GraphModule) -> None:
    """Check every rule.

    Raises
    ------
    VerificationError
        The first rule that is broken, and the node that breaks it.
    """
    check = _Check({_origin_name(node) for node in gm.graph.nodes if _role(node) == RECOMPUTE})
    for node in gm.graph.nodes:
        check.visit(node)


class _Check:
    """What has stood before the node at hand."""

    def __init__(self, recomputed: set[str]) -> None:
        self._recomputed = recomputed
        self._keys: dict[Node, list[int]] = {}
        self._origins: dict[str, Node] = {}
        self._dropped: dict[int, str] = {}
        self._writes: dict[int, int] = {}
        self._versions_read: dict[str, dict[str, int]] = {}
        self._open_states: list[Node] = []
        self._state_of: dict[str, Node] = {}

    def visit(self, node: Node) -> None:
        self._check_live(node)
        role = _role(node)
        if role == DROP:
            self._dropped.update((key, node.name) for key in self._keys[node.all_input_nodes[0]])
        elif role == RECOMPUTE:
            self._check_recompute(node)
        elif role == SAVE_RNG:
            if node.target is not rng.save_state:
                raise _broken("same randomness", node, "it does not save the generator's state")
            self._open_states.append(node)
        elif role == KEEP:
            if node.target is not torch.ops.aten.clone.default or _origin_name(node) != str(node.args[0]):
                raise _broken("same values", node, f"it does not copy {_origin_name(node)}")
        else:
            self._remember(node)
        if role == KEEP or node.name in self._recomputed:
            self._versions_read[node.name] = self._versions(node)
        self._keys[node] = storage_keys(node)

    def _check_live(self, node: Node) -> None:
        for used in node.all_input_nodes:
            if used not in self._keys:
                raise _broken("live", node, f"it reads {used.name}, which does not stand before it")
            if self._dropped:
                for key in self._keys[used]:
                    if key in self._dropped:
                        raise _broken("live", node, f"it reads {used.name} after {self._dropped[key]}")

    def _remember(self, node: Node) -> None:
        """Note what a later recompute of this node will be held against."""
        self._origins[node.name] = node
        if not node.op.startswith("call"):
            return
        if self._open_states and rng.is_random(node):
            for state in self._open_states:
                if state.meta["dtr"]["origin"] == node.name:
                    self._state_of[node.name] = state
            self._open_states = []
        for tensor in mutated_tensors(node):
            key = storage_key(tensor)
            self._writes[key] = self._writes.get(key, 0) + 1

    def _check_recompute(self, node: Node) -> None:
        origin = self._origins.get(node.meta["dtr"]["origin"])
        if origin is None:
            raise _broken("same operator", node, "its origin does not stand before it")
        target, args, kwargs = node.target, node.args, node.kwargs
        if target is rng.replay:
            self._check_replay(node, origin)
            args = args[3:]
        elif target is not origin.target and target != origin.target:
            raise _broken("same operator", node, f"it calls {target}, {origin.name} calls {origin.target}")
        elif rng.is_random(origin):
            raise _broken("same randomness", node, "it draws anew")
        if _by_origin((args, kwargs)) != _by_origin((origin.args, origin.kwargs)):
            raise _broken("same values", node, f"it reads {args}, {origin.name} reads {origin.args}")
        if not is_selection(origin) and not may_run_twice(origin):
            raise _broken("not twice", node, f"{origin.name} may run once only")
        self._check_versions(node, origin)
        read = {key for used in origin.all_input_nodes for key in self._keys[used]}
        if any(self._writes.get(key, 0) for key in self._keys[origin] if key not in read):
            raise _broken("not after a write", node, f"{origin.name} was written, which it does not repeat")

    def _check_replay(self, node: Node, origin: Node) -> None:
        saved, device, target, *_ = node.args
        state = self._state_of.get(origin.name)
        if state is None or saved is not state:
            raise _broken("same randomness", node, f"its state was not saved right before {origin.name}")
        if device != state.args[0]:
            raise _broken("same randomness", node, f"it replays on {device}, {state} is of {state.args[0]}")
        called = target.target if isinstance(target, Node) else target
        if called != rng.reference(origin):
            raise _broken("same operator", node, f"it replays {called}, {origin.name} calls {origin.target}")

    def _check_versions(self, node: Node, origin: Node) -> None:
        before = self._versions_read.get(origin.name, {})
        for name, version in self._versions(node).items():
            if version != before.get(name, 0):
                raise _broken("not after a write", node, f"{name} was written after {origin.name} read it")

    def _versions(self, node: Node) -> dict[str, int]:
        """How often each storage that the node reads had been written; a kept copy stays as it was copied."""
        versions = {}
        for used in node.all_input_nodes:
            name = _origin_name(used)
            if _role(used) == KEEP:
                versions[name] = self._versions_read[used.name][name]
            else:
                versions[name] = sum(self._writes.get(key, 0) for key in self._keys[used])
        return versions


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
        if node.op != "output" and _role(node) != DROP:
            if tangents and node.meta.get("partitioner_tag") == "is_backward":
                for tangent in tangents:
                    memory.allocate(tangent)
                tangents = []
            if not is_selection(node):
                memory.allocate(node)
                own = workspace.get(_origin_name(node), 0)
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
    if _role(node) == RECOMPUTE:
        return "recomputed"
    if is_backward(node):
        return "gradient"
    return "output" if is_output else "activation"


def check_budget(points: Sequence[Point], budget: int) -> None:
    """Raise ``VerificationError`` where more than ``budget`` bytes are live."""
    peak = max(points, key=lambda point: point.live)
    if peak.live > budget:
        raise VerificationError(f"{peak.live} bytes are live at {peak.name}, the budget is {budget}")


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
        elif _role(node) != DROP:
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


def _role(node: Node) -> str:
    facts = node.meta.get("dtr")
    return facts["role"] if facts else COMPUTE


def _origin_name(node: Node) -> str:
    facts = node.meta.get("dtr")
    return facts["origin"] if facts else node.name


def _by_origin(arguments: Any) -> Any:
    return map_arg(arguments, lambda node: f"%{_origin_name(node)}")


def _broken(rule: str, node: Node, why: str) -> VerificationError:
    return VerificationError(f"rule {rule!r} is broken at {node.format_node()}: {why}")
