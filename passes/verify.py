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

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from dtr_fx.errors import DTRError
from dtr_fx.passes import rng
from dtr_fx.passes.effects import may_run_twice, mutated_tensors
from dtr_fx.passes.roles import KEEP, SAVE_RNG, origin_name, role
from dtr_fx.passes.tensors import (
    is_selection,
    storage_key,
    storage_keys,
)
from dtr_fx.report import Point
from dtr_fx.runtime.steps import DROP, RECOMPUTE


class VerificationError(DTRError):
    """A rewritten graph breaks a rule: a defect of dtr_fx, worth a report."""


def verify(gm: GraphModule) -> None:
    """Check every rule.

    Raises
    ------
    VerificationError
        The first rule that is broken, and the node that breaks it.
    """
    check = _Check({origin_name(node) for node in gm.graph.nodes if role(node) == RECOMPUTE})
    for node in gm.graph.nodes:
        check.visit(node)


def check_budget(points: Sequence[Point], budget: int) -> None:
    """Raise ``VerificationError`` where more than ``budget`` bytes are live."""
    peak = max(points, key=lambda point: point.live)
    if peak.live > budget:
        raise VerificationError(f"{peak.live} bytes are live at {peak.name}, the budget is {budget}")


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
        kind = role(node)
        if kind == DROP:
            self._dropped.update((key, node.name) for key in self._keys[node.all_input_nodes[0]])
        elif kind == RECOMPUTE:
            self._check_recompute(node)
        elif kind == SAVE_RNG:
            if node.target is not rng.save_state:
                raise _broken("same randomness", node, "it does not save the generator's state")
            self._open_states.append(node)
        elif kind == KEEP:
            if node.target is not torch.ops.aten.clone.default or origin_name(node) != str(node.args[0]):
                raise _broken("same values", node, f"it does not copy {origin_name(node)}")
        else:
            self._remember(node)
        if kind == KEEP or node.name in self._recomputed:
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
            name = origin_name(used)
            if role(used) == KEEP:
                versions[name] = self._versions_read[used.name][name]
            else:
                versions[name] = sum(self._writes.get(key, 0) for key in self._keys[used])
        return versions


def _by_origin(arguments: Any) -> Any:
    return map_arg(arguments, lambda node: f"%{origin_name(node)}")


def _broken(rule: str, node: Node, why: str) -> VerificationError:
    return VerificationError(f"rule {rule!r} is broken at {node.format_node()}: {why}")
