"""An independent check of a rewritten graph, and its peak, from the emitted nodes alone.

It shares no state and no table with the planner.  Rules, each with an error that names the node:

live               a node reads what stands before it, and no storage that was dropped; the backward pass may
                   drop a result that AOTAutograd has written into an input by then
same operator      a recompute calls what its origin calls
same values        and on what its origin read: origins, their recomputes, kept copies that are copies
same randomness    a random recompute replays the state saved right before its origin
not twice          nothing that writes, or takes part in an effect, is recomputed
moved              what is brought back was moved out before, and both copies have been waited for: before the
                   moved value is dropped, and before anything reads the one that is back; nothing writes what
                   has been copied out
not after a write  a recompute neither reads a storage that was written since its origin read it, nor makes
                   anew one that was written since
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from dtr_fx.errors import DTRError
from dtr_fx.passes import rng, subgraphs
from dtr_fx.passes.contract import PLAN, VALUES, VERIFIED, Pass
from dtr_fx.passes.reach import given_back
from dtr_fx.passes.roles import KEEP, SAVE_RNG, origin_name, role
from dtr_fx.passes.tensors import (
    called_module,
    is_backward,
    is_selection,
    storage_key,
    storage_keys,
    tensors_of,
)
from dtr_fx.report import Point
from dtr_fx.runtime.steps import DROP, OFFLOAD, RECOMPUTE, RELOAD, WAIT
from dtr_fx.torch_private import OpOverload, schema_of


class VerificationError(DTRError):
    """A rewritten graph breaks a rule: a defect of dtr_fx, worth a report."""


class Verify(Pass):
    """See ``verify``."""

    name = "verify"
    requires = (VALUES, PLAN)
    ensures = (VERIFIED,)

    def call(self, gm: GraphModule) -> bool:
        verify(gm)
        return False


def verify(gm: GraphModule) -> None:
    """Check every rule; ``VerificationError`` names the first that is broken, and the node that breaks it."""
    recomputed = {origin_name(node) for node in gm.graph.nodes if role(node) == RECOMPUTE}
    check = _Check(recomputed, given_back(gm))
    for node in gm.graph.nodes:
        check.visit(node)


def check_budget(points: Sequence[Point], budget: int) -> None:
    """Raise ``VerificationError`` where more than ``budget`` bytes are live."""
    peak = max(points, key=lambda point: point.live)
    if peak.live > budget:
        raise VerificationError(f"{peak.live} bytes are live at {peak.name}, the budget is {budget}")


def check_reserved(reserved: int, budget: int) -> None:
    """Raise ``VerificationError`` where the caching allocator would reserve more than ``budget`` bytes."""
    if reserved > budget:
        raise VerificationError(f"{reserved} bytes would be reserved, the budget is {budget}")


class _Check:
    """The state of the graph before the node at hand."""

    def __init__(self, recomputed: set[str], given_back: set[int]) -> None:
        self._recomputed = recomputed
        self._given_back = given_back
        self._keys: dict[Node, list[int]] = {}
        self._origins: dict[str, Node] = {}
        self._dropped: dict[int, str] = {}
        self._writes: Counter[int] = Counter()
        self._versions_read: dict[str, dict[str, int]] = {}
        self._open_states: list[Node] = []
        self._state_of: dict[str, Node] = {}
        self._copied: dict[int, Node] = {}
        self._leaving: dict[int, Node] = {}
        self._arriving: dict[int, Node] = {}

    def visit(self, node: Node) -> None:
        self._check_live(node)
        kind = role(node)
        if kind == DROP:
            keys = self._keys[node.all_input_nodes[0]]
            self._dropped.update((key, node.name) for key in keys)
            if not is_backward(node):
                self._given_back.difference_update(keys)
        elif kind == RECOMPUTE:
            self._check_recompute(node)
        elif kind in (OFFLOAD, RELOAD, WAIT):
            self._check_transfer(node)
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

    def _check_transfer(self, node: Node) -> None:
        """The rule ``moved``; values are told by their storages, handles by the nodes."""
        from dtr_fx.passes import transfers  # only here: most graphs move nothing

        name = origin_name(node)
        value, handle = node.args[0], node.args[-1]
        if node.target is transfers.offload:
            assert isinstance(value, Node)
            if origin_name(value) != name:
                raise _broken("moved", node, f"it moves {value}, not {name}")
            self._leaving.update(dict.fromkeys(self._keys[value], node))
            self._copied.update(dict.fromkeys(self._keys[value], node))
        elif node.target is transfers.wait_offload:
            value, handle = handle, value
            assert isinstance(value, Node)
            if any(self._leaving.pop(key, None) is not handle for key in self._keys[value]):
                raise _broken("moved", node, f"{handle} does not move {value} out")
        elif node.target is transfers.reload:
            handle = value
            if not (isinstance(handle, Node) and handle.target is transfers.wait_offload):
                raise _broken("moved", node, f"{handle} has not been waited for")
            if origin_name(handle) != name:
                raise _broken("moved", node, f"{handle} is not of {name}")
            self._arriving.update(dict.fromkeys(storage_keys(node), node))
        else:
            assert isinstance(value, Node)
            if any(self._arriving.pop(key, None) is not value for key in self._keys[value]):
                raise _broken("moved", node, f"{value} is not on its way back")
            if handle is not value.args[0]:
                raise _broken("moved", node, f"{value} is not brought back from {handle}")

    def _check_live(self, node: Node) -> None:
        for used in node.all_input_nodes:
            if not (role(node) == WAIT or self._arriving.keys().isdisjoint(self._keys.get(used, ()))):
                raise _broken("moved", node, f"it reads {used.name} before it is there")
            if role(node) == DROP and not self._leaving.keys().isdisjoint(self._keys.get(used, ())):
                raise _broken("moved", node, f"{used.name} has not been moved out yet")
            if used not in self._keys:
                raise _broken("live", node, f"it reads {used.name}, which does not stand before it")
            for key in self._keys[used] if self._dropped else ():
                if key in self._dropped and not (node.op == "output" and key in self._given_back):
                    raise _broken("live", node, f"it reads {used.name} after {self._dropped[key]}")

    def _remember(self, node: Node) -> None:
        """Note what a later recompute of this node will be held against."""
        self._origins[node.name] = node
        if node.op.startswith("call"):
            if self._open_states and rng.is_random(node):
                own = (state for state in self._open_states if state.meta["dtr"]["origin"] == node.name)
                self._state_of.update((node.name, state) for state in own)
                self._open_states = []
            written = list(map(storage_key, _written(node)))
            for copy in filter(None, map(self._copied.get, written)):
                raise _broken("moved", node, f"it writes {origin_name(copy)}, which {copy} has copied out")
            self._writes.update(written)

    def _check_recompute(self, node: Node) -> None:
        origin = self._origins.get(node.meta["dtr"]["origin"])
        if origin is None:
            raise _broken("same operator", node, "its origin does not stand before it")
        target, args = node.target, node.args
        if target is rng.replay:
            self._check_replay(node, origin)
            args = args[3:]
        elif target is not origin.target and target != origin.target:
            raise _broken("same operator", node, f"it calls {target}, {origin.name} calls {origin.target}")
        elif rng.is_random(origin):
            raise _broken("same randomness", node, "it draws anew")
        if _by_origin((args, node.kwargs)) != _by_origin((origin.args, origin.kwargs)):
            raise _broken("same values", node, f"it reads {args}, {origin.name} reads {origin.args}")
        if not is_selection(origin) and not _repeats(origin):
            raise _broken("not twice", node, f"{origin.name} may run once only")
        before = self._versions_read.get(origin.name, {})
        for name, version in self._versions(node).items():
            if version != before.get(name, 0):
                raise _broken("not after a write", node, f"{name} was written after {origin.name} read it")
        read = {key for used in origin.all_input_nodes for key in self._keys[used]}
        if any(self._writes[key] for key in self._keys[origin] if key not in read):
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

    def _versions(self, node: Node) -> dict[str, int]:
        """How often each storage that the node reads had been written; a kept copy stays as it was copied."""
        versions = {}
        for used in node.all_input_nodes:
            name = origin_name(used)
            if role(used) == KEEP:
                versions[name] = self._versions_read[used.name][name]
            else:
                versions[name] = sum(self._writes[key] for key in self._keys[used])
        return versions


def _by_origin(arguments: Any) -> Any:
    return map_arg(arguments, lambda node: f"%{origin_name(node)}")


def _broken(rule: str, node: Node, why: str) -> VerificationError:
    return VerificationError(f"rule {rule!r} is broken at {node.format_node()}: {why}")


# What may run twice, by the operators themselves: schemas, names of arguments, registrations.

_CONTROL_FLOW = frozenset({"cond", "while_loop", "scan", "associative_scan", "map_impl", "invoke_subgraph"})
_PURE_MODULES = frozenset({"torch", "_operator", "operator", "math", "builtins"})


def _written(node: Node) -> list[torch.Tensor]:
    """The tensors that a node writes: as it was seen to, by its schema, or as running statistics."""
    seen = node.meta.get("dtr_facts")
    if seen is not None:
        return list(seen.mutates)
    if not isinstance(node.target, OpOverload):
        return []
    written, statistics = _written_arguments(node.target)
    if not (written or statistics):
        return []
    names = (argument.name for argument in schema_of(node.target).arguments)
    given = {**dict(zip(names, node.args)), **node.kwargs}
    if any(given.get(flag) is True for flag in _TRAINING):
        written += statistics
    nodes: list[Node] = []
    map_arg(tuple(given.get(name) for name in written), nodes.append)
    return [tensor for used in nodes for tensor in tensors_of(used.meta.get("val"))]


@functools.cache
def _written_arguments(target: OpOverload) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The arguments that an operator writes by its schema, and those that it updates in training."""
    arguments = schema_of(target).arguments
    written = (each.name for each in arguments if each.alias_info and each.alias_info.is_write)
    updates = target.overloadpacket.__name__ in _UPDATE_STATISTICS
    return tuple(written), ("running_mean", "running_var") if updates else ()


# Their schemas do not say that they update running statistics in training; the names of the flags for that.
_UPDATE_STATISTICS = {
    *("batch_norm", "native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "instance_norm"),
    "_batch_norm_impl_index",
}
_TRAINING = frozenset({"training", "train", "use_input_stats"})


def _repeats(node: Node) -> bool:
    """True if a node may run twice, draws from a generator apart."""
    target = node.target
    if _written(node):
        return False
    if isinstance(target, OpOverload):
        is_collective = "c10d" in target.namespace or target.namespace == "symm_mem"
        return not (is_collective or node.is_impure(impure_random=False))
    if isinstance(target, subgraphs.InSlices):
        return all(map(_repeats, target.operators))
    if subgraphs.is_higher_order(node):
        inside = subgraphs.operators_of(node)
        drawn = any(map(rng.is_random, inside))
        return str(target) in _CONTROL_FLOW and not drawn and all(map(_repeats, inside))
    if node.op == "call_module":
        return type(called_module(node)).__module__.partition(".")[0] == "torch"
    if node.op == "call_method":
        return True
    kernel = getattr(target, "graph", None)
    if isinstance(kernel, Graph):
        return all(_repeats(inner) for inner in kernel.nodes if inner.op.startswith("call"))
    is_pure = rng.is_random(node) or not node.is_impure(impure_random=False)
    return is_pure and str(getattr(target, "__module__", "")).partition(".")[0] in _PURE_MODULES
