"""Operators that Inductor fuses into one kernel, as one operator, and back.

What lies inside a kernel is never in memory, so a plan over kernels has nothing to drop there.  A kernel is a
maximal fanout-free cone: an operator that can be fused, and of those before it all whose every reader is in
the cone.  Inductor may fuse further than that; see ``moved``.  Requires a decomposed graph, in order.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg
from torch.utils.checkpoint import CheckpointPolicy

from dtr_fx.passes import rng
from dtr_fx.passes.contract import KERNELS, VALUES, Pass
from dtr_fx.passes.effects import last_writes, may_run_twice
from dtr_fx.passes.marks import mark_of
from dtr_fx.passes.tensors import held_by, is_backward, is_selection, is_view, storage_keys, tensors_of
from dtr_fx.torch_private import (
    get_default_op_list,
    inductor_random,
    lookup_seed,
    low_memory_max_pool,
    rename,
)

# An operator of Inductor's own.
MAX_POOL = low_memory_max_pool.overloadpacket
# Code is generated for these, too, but PyTorch's list lacks them: each is a kernel of its own here.
_ALONE = frozenset({MAX_POOL, inductor_random.overloadpacket, lookup_seed.overloadpacket})


class Kernel:
    """Some operators as one; ``graph`` takes what the kernel reads and returns what it makes."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.__name__ = "kernel"
        self._run: Callable[..., Any] | None = None

    def __call__(self, *inputs: Any) -> Any:
        if self._run is None:
            self._run = GraphModule(torch.nn.Module(), self.graph).forward
        return self._run(*inputs)

    def __repr__(self) -> str:
        return "+".join(node.name for node in self.graph.nodes if node.op == "call_function")


class ContractKernels(Pass):
    """Put the operators of each kernel into one node."""

    name = "contract kernels"
    requires = (VALUES,)
    ensures = (KERNELS,)

    def call(self, gm: GraphModule) -> bool:
        written = last_writes(gm.graph)
        fusible = {node for node in gm.graph.nodes if _is_fusible(node, written)}
        returned = set(gm.graph.output_node().all_input_nodes)
        taken: set[Node] = set()
        for root in reversed(gm.graph.nodes):
            if root in fusible and root not in taken and not is_view(root):
                cone = _cone(root, fusible - returned)
                taken |= cone
                if len(cone) > 1:
                    _replace(gm.graph, root, cone)
        return bool(taken)


class ExpandKernels(Pass):
    """Put the operators of each kernel back in its place, with fake values of their own."""

    name = "expand kernels"
    requires = (KERNELS,)
    breaks = (KERNELS,)

    def call(self, gm: GraphModule) -> bool:
        seen: set[Kernel] = set()
        for node in list(gm.graph.nodes):
            if isinstance(node.target, Kernel):
                _inline(gm.graph, node, is_first=node.target not in seen)
                seen.add(node.target)
        return bool(seen)


def operators(node: Node) -> list[Node]:
    """The operators that a node of a contracted graph stands for."""
    if not isinstance(node.target, Kernel):
        return [node]
    return [inner for inner in node.target.graph.nodes if inner.op == "call_function"]


def is_kernel(node: Node) -> bool:
    """True if Inductor generates code for the node; else it calls a library."""
    return isinstance(node.target, Kernel) or _aten_target(node) in _fusible() | _ALONE


def is_fused(node: Node) -> bool:
    """True if kernels alone read what one more run makes: those of the backward pass, if there are any."""
    readers: list[Node] = []
    pending = list(node.users)
    while pending:
        user = pending.pop()
        if user.op == "call_function" and is_view(user):
            pending += user.users
        else:
            readers.append(user)
    late = [reader for reader in readers if is_backward(reader)]
    return all(map(is_kernel, late or readers)) and bool(readers)


def moved(node: Node) -> int:
    """The bytes that one more run of a kernel reads and writes.

    One that is fused writes nothing: its readers read what it reads instead of what it makes.
    """
    made = sum(held.elements for held in held_by(node))
    read = sum(held.elements for used in node.all_input_nodes for held in held_by(used))
    return max(0, read - made) if is_fused(node) else read + made


def _cone(root: Node, fusible: set[Node]) -> set[Node]:
    """The operators that can be in the root's kernel alone."""
    cone = {root}
    pending = list(root.all_input_nodes)
    while pending:
        node = pending.pop()
        together = _together(node)
        if (
            fusible.issuperset(together)
            and is_backward(node) == is_backward(root)
            and all(cone.issuperset(user for user in each.users if user not in together) for each in together)
        ):
            cone.update(together)
            pending += (used for each in together for used in each.all_input_nodes if used not in cone)
    return cone


def _together(node: Node) -> set[Node]:
    """The node; where it takes a result apart, also what makes this, and all that take it apart."""
    return {cast(Node, node.args[0]), *cast(Node, node.args[0]).users} if is_selection(node) else {node}


def _replace(graph: Graph, root: Node, cone: set[Node]) -> None:
    inside = Graph()
    members = sorted(cone)
    outside = dict.fromkeys(used for node in members for used in node.all_input_nodes if used not in cone)
    copies = {used: inside.placeholder(used.name) for used in outside}
    for used, copy in copies.items():
        copy.meta["val"] = used.meta["val"]
    for node in members:
        copies[node] = inside.node_copy(node, copies.__getitem__)
    inside.output(copies[root])
    with graph.inserting_after(root):
        kernel = graph.call_function(cast(Callable[..., Any], Kernel(inside)), tuple(outside))
    kept = [node for node in members if mark_of(node) is CheckpointPolicy.MUST_SAVE]
    told = {name: kept[0].meta.get(name) for name in ("recompute", "dtr_hint") if kept}
    kernel.meta = {**root.meta, **told}
    root.replace_all_uses_with(kernel)
    for node in reversed(members):
        graph.erase_node(node)
    kernel.name = root.name


def _inline(graph: Graph, kernel: Node, *, is_first: bool) -> None:
    inside = cast(Kernel, kernel.target).graph
    copies = dict(zip(inside.find_nodes(op="placeholder"), cast("tuple[Node, ...]", kernel.args)))
    with graph.inserting_before(kernel):
        for node in inside.nodes:
            if node.op == "call_function":
                copy = copies[node] = graph.node_copy(node, copies.__getitem__)
                if is_first:
                    copy.name = node.name
                else:
                    rename(copy, f"{node.name}_recompute")
                    args, kwargs = map_arg((copy.args, copy.kwargs), lambda used: used.meta["val"])
                    copy.meta["val"] = cast(Callable[..., Any], copy.target)(*args, **kwargs)
                for name in ("partitioner_tag", "dtr"):
                    copy.meta.pop(name, None)
                    if name in kernel.meta:
                        copy.meta[name] = kernel.meta[name]
    last = copies[cast(Node, inside.output_node().args[0])]
    last.meta["val"] = kernel.meta["val"]
    kernel.replace_all_uses_with(last)
    graph.erase_node(kernel)


def _is_fusible(node: Node, written: Mapping[int, int]) -> bool:
    if node.op != "call_function" or _aten_target(node) not in _fusible():
        return False
    keys = [key for used in (node, *node.all_input_nodes) for key in storage_keys(used)]
    is_pure = may_run_twice(node) and not rng.is_random(node)
    return is_pure and bool(tensors_of(node.meta.get("val"))) and written.keys().isdisjoint(keys)


def _aten_target(node: Node) -> Any:
    return getattr(node.target, "overloadpacket", node.target)


@functools.cache
def _fusible() -> frozenset[Any]:
    """PyTorch's own list."""
    return frozenset(get_default_op_list().fusible_ops)
