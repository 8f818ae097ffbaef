"""Effects of operators: writes in place, collectives, side effects.  ``verify`` has a table of its own."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node

from dtr_fx.torch_private import HigherOrderOperator, OpOverload, pytree, schema_of

from . import rng, subgraphs
from .tensors import called_module, storage_key, tensors_of

# Schemas of these name spaces do not show that every rank must take part.
_COLLECTIVES = ("_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "c10d", "symm_mem")
# These update their running statistics in training.
_BATCH_NORMS = {
    *(torch.ops.aten.batch_norm, torch.ops.aten._batch_norm_impl_index, torch.ops.aten.native_batch_norm),
    *(torch.ops.aten.cudnn_batch_norm, torch.ops.aten.miopen_batch_norm, torch.ops.aten.instance_norm),
}
# These do nothing but run graphs.
_CONTROL_FLOW = ("cond", "while_loop", "scan", "associative_scan", "map_impl", "invoke_subgraph")
_PURE_PYTHON = ("torch", "_operator", "operator", "math", "builtins")


def mutated_tensors(node: Node) -> list[torch.Tensor]:
    """The tensors that the node writes in place."""
    facts = node.meta.get("dtr_facts")
    if facts is not None:
        return list(facts.mutates)
    if not isinstance(node.target, OpOverload):
        return []
    written = undeclared_writes(node.target, node.args, node.kwargs)
    for position, name in _declared_writes(node.target):
        written.append(node.args[position] if position < len(node.args) else node.kwargs.get(name))
    if not written:
        return []
    nodes = [leaf for leaf in pytree.tree_leaves(written) if isinstance(leaf, Node)]
    return [tensor for leaf in nodes for tensor in tensors_of(leaf.meta.get("val"))]


@functools.cache
def _declared_writes(target: OpOverload) -> tuple[tuple[int, str], ...]:
    """The arguments, by position and name, that an operator writes by its schema."""
    return tuple(
        (position, argument.name)
        for position, argument in enumerate(schema_of(target).arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def undeclared_writes(target: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
    """The arguments that an operator writes although its schema does not say so."""
    if target.overloadpacket not in _BATCH_NORMS:
        return []
    names = (argument.name for argument in schema_of(target).arguments)
    given = {**dict(zip(names, args)), **kwargs}
    in_training = given.get("training", given.get("use_input_stats"))
    return [given.get("running_mean"), given.get("running_var")] if in_training else []


def collectives(gm: GraphModule) -> list[tuple[str, str]]:
    """The process groups' names and the operators of the collectives that a graph calls, in their order."""
    found = []
    for node in gm.graph.nodes:
        if isinstance(node.target, OpOverload) and node.target.namespace in _COLLECTIVES:
            names = (argument.name for argument in schema_of(node.target).arguments)
            group = {**dict(zip(names, node.args)), **node.kwargs}.get("group_name")
            if isinstance(group, str):
                found.append((group, str(node.target)))
    return found


def last_writes(graph: Graph) -> dict[int, int]:
    """For every storage that the graph changes, the position of the last node that does."""
    return {
        storage_key(tensor): position
        for position, node in enumerate(graph.nodes)
        if node.op.startswith("call")
        for tensor in mutated_tensors(node)
    }


def first_writes(graph: Graph) -> dict[int, Node]:
    """For every storage that the graph changes, the first node that does."""
    found: dict[int, Node] = {}
    for node in graph.nodes:
        for tensor in mutated_tensors(node) if node.op.startswith("call") else ():
            found.setdefault(storage_key(tensor), node)
    return found


def may_run_twice(node: Node) -> bool:
    """True if a second run computes the same and does nothing else (randomness apart, see ``rng``)."""
    facts = node.meta.get("dtr_facts")
    if facts is not None and facts.mutates:
        return False
    if node.op == "call_module":
        return type(called_module(node)).__module__.startswith("torch.nn.")
    if node.op == "call_method":
        return True
    target = node.target
    if isinstance(target, OpOverload):
        writes = bool(undeclared_writes(target, node.args, node.kwargs))
        return not (writes or target.namespace in _COLLECTIVES or _has_effect(node))
    if isinstance(target, HigherOrderOperator):
        operators = subgraphs.operators_of(node)
        draws = any(map(rng.is_random, operators))
        return target.name() in _CONTROL_FLOW and not draws and all(map(may_run_twice, operators))
    inside = getattr(target, "graph", None)
    if isinstance(inside, Graph):  # operators as one, see kernels
        return all(may_run_twice(inner) for inner in inside.nodes if inner.op.startswith("call"))
    module_name = str(getattr(target, "__module__", None) or "")
    # torch.rand_like and its kin count as impure whatever is asked.
    is_pure = rng.is_random(node) or not node.is_impure(impure_random=False)
    return is_pure and module_name.partition(".")[0] in _PURE_PYTHON


def _has_effect(node: Node) -> bool:
    """True if an operator's schema or registration says that it does more than compute."""
    # Of PyTorch's own that is asked once; another may be registered as having an effect at any time.
    if node.target.namespace != "aten":  # type: ignore[union-attr]
        return bool(node.is_impure(impure_random=False))
    if node.target not in _effects:
        _effects[node.target] = node.is_impure(impure_random=False)
    return _effects[node.target]


_effects: dict[Any, bool] = {}
