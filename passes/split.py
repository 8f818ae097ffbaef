"""The joint graph in execution order, without duplicates, and its split into the graphs of the two passes."""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterable, Sequence
from typing import Any, TypeAlias

import torch
from functorch.compile import default_partition
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from dtr_fx.passes import rng
from dtr_fx.passes.contract import ORDER, VALUES, Pass, Pipeline
from dtr_fx.passes.effects import last_writes, may_run_twice
from dtr_fx.passes.marks import check_marks, runs_again
from dtr_fx.passes.modes import fake_mode_of
from dtr_fx.passes.reach import mark_parameters, written_after_forward
from dtr_fx.passes.tensors import is_backward, layout, storage_key, storage_keys, view_like
from dtr_fx.torch_private import OpOverload, pytree, side_effectful_functions

Pair: TypeAlias = tuple[GraphModule, GraphModule]  # of the forward and the backward pass


def prepare(joint: GraphModule, static: Iterable[int], parameters: Sequence[bool] | None = None) -> None:
    """Make AOTAutograd's joint graph ready for planning; see ``reach.mark_parameters``.

    GraphError where the user's marks cannot be obeyed.
    """
    check_marks(joint)
    Pipeline(ExecutionOrder(), MergeDuplicates(), given=(VALUES,))(joint)
    mark_parameters(joint, static, parameters)


def repeat_results(joint: GraphModule) -> None:
    """Have the backward pass make marked results of its own, as PyTorch does: the caller may let them go."""
    written = last_writes(joint.graph).keys() | written_after_forward(joint)
    returned = {key for node in joint.graph.output_node().all_input_nodes for key in storage_keys(node)}
    repeated: set[int] = set()
    copies: dict[Node, Node] = {}

    def again(node: Node) -> Node:
        if is_backward(node) or repeated.isdisjoint(storage_keys(node)):
            return node
        if node not in copies:
            copy = copies[node] = joint.graph.node_copy(node, again)
            copy.meta["partitioner_tag"] = "is_backward"
            evaluate(copy)
        return copies[node]

    def evaluate(node: Node) -> None:
        args, kwargs = map_arg((node.args, node.kwargs), lambda used: used.meta["val"])
        node.meta["val"] = node.target(*args, **kwargs)  # type: ignore[operator]

    with torch.no_grad(), fake_mode_of(joint) or contextlib.nullcontext():
        for node in list(joint.graph.nodes):
            read = {key for used in node.all_input_nodes for key in storage_keys(used)}
            made = {*storage_keys(node)} - read
            if is_backward(node):
                with joint.graph.inserting_before(node):
                    node.args, node.kwargs = map_arg((node.args, node.kwargs), again)
                if node.op != "output" and not repeated.isdisjoint(storage_keys(node)):
                    evaluate(node)  # a view of what is now another
            elif runs_again(node) and isinstance(node.target, OpOverload) and not rng.is_random(node):
                is_asked = not repeated.isdisjoint(read) or not returned.isdisjoint(made)
                if is_asked and may_run_twice(node) and written.isdisjoint(read | made):
                    repeated |= made


class ExecutionOrder(Pass):
    """Put every node into the pass where ``default_partition`` will, and say so in its tag.

    AOTAutograd lists the writes to mutated inputs last, and views that are outputs: these move to the end
    of the forward pass.  It gives the backward formulas of ``autograd.Function`` no tag, and the inputs of a
    subgraph a wrong one.
    """

    name = "execution order"
    ensures = (ORDER,)

    def call(self, gm: GraphModule) -> bool:
        nodes = list(gm.graph.nodes)
        tags = [node.meta.get("partitioner_tag") for node in nodes]
        ends = [i for i, node in enumerate(nodes) if tags[i] == "is_forward" or _is_forward_input(node)]
        if not ends:
            return False
        forward, backward = nodes[: ends[-1] + 1], nodes[ends[-1] + 1 :]
        last, inside = nodes[ends[-1]], set(forward)
        for node in backward:
            if node.meta.get("partitioner_tag") == "must_be_in_forward":
                last.append(node)
                last = node
            elif _is_view_of(node, inside):
                last.append(node)
                last = node
                inside.add(node)
                node.meta["partitioner_tag"] = "is_forward"
            elif node.op != "output" and node.meta.get("partitioner_tag") != "must_be_in_backward":
                node.meta["partitioner_tag"] = "is_backward"
        for node in forward:
            comes_late = node.op == "placeholder" and not _is_forward_input(node)
            if node.meta.get("partitioner_tag") != "must_be_in_forward":
                node.meta["partitioner_tag"] = "is_backward" if comes_late else "is_forward"
        return True


def _is_view_of(node: Node, forward: set[Node]) -> bool:
    """True if the node, which has no tag, takes a view of what the forward pass made."""
    read = node.all_input_nodes
    if "partitioner_tag" in node.meta or node.op != "call_function" or not forward.issuperset(read):
        return False
    return bool(read) and {*storage_keys(node)} <= {key for used in read for key in storage_keys(used)}


def _is_forward_input(node: Node) -> bool:
    """By its name, as the partitioner tells them apart."""
    return node.op == "placeholder" and not any(late in str(node.target) for late in _BACKWARD_INPUTS)


_BACKWARD_INPUTS = ("tangents", "bwd_seed", "bwd_base_offset")


class MergeDuplicates(Pass):
    """Let the first of some operators with the same arguments in the same pass stand for all of them.

    Autograd detaches what it saves; a graph records no gradients, so there a detached tensor is the tensor.
    Dropout at zero is traced as a copy, where eager PyTorch hands on what it is given: so does this.
    PyTorch's own (``fx_graph_cse``, read on 2.13) takes two attentions with dropout for one, and saves values
    for the backward pass.
    """

    name = "merge duplicates"
    requires = (VALUES, ORDER)

    def call(self, gm: GraphModule) -> bool:
        before = len(gm.graph.nodes)
        returned = {key for node in gm.graph.output_node().all_input_nodes for key in storage_keys(node)}
        inputs = (node for node in gm.graph.nodes if node.op in ("placeholder", "get_attr"))
        given = {key for node in inputs for key in storage_keys(node)}
        apart = returned | given | last_writes(gm.graph).keys()
        first: dict[tuple[object, ...], Node] = {}
        for node in list(gm.graph.nodes):
            if node.op != "call_function" or rng.is_random(node) or not may_run_twice(node):
                continue
            if not returned.isdisjoint(storage_keys(node)):
                continue
            if node.target is torch.ops.aten.detach.default or _copies_for_nothing(node, apart):
                _replace(node, node.all_input_nodes[0])
                continue
            # By its text, since 1, 1.0 and True are equal; nodes are named apart.
            arguments = repr((node.args, node.kwargs))
            same = first.setdefault((node.target, arguments, node.meta.get("partitioner_tag")), node)
            if same is not node:
                _replace(node, same)
        return len(gm.graph.nodes) < before


def _copies_for_nothing(node: Node, apart: Container[int]) -> bool:
    """True of a copy, laid out as its source is, where neither lies in a storage that is to stay apart."""
    if node.target is not torch.ops.aten.clone.default:
        return False
    [source] = node.all_input_nodes
    is_alike = layout(node.meta["val"]) == layout(source.meta["val"])
    is_free = not any(key in apart for key in (*storage_keys(node), *storage_keys(source)))
    return is_alike and is_free and node.meta.get("recompute") == source.meta.get("recompute")


def _replace(node: Node, other: Node) -> None:
    """Let another node with the same value stand for a node: what were views of this one are of that one."""
    keys, value = storage_keys(node), other.meta["val"]
    if isinstance(value, torch.Tensor) and keys != storage_keys(other):

        def viewed(tensor: torch.Tensor) -> torch.Tensor:
            return view_like(tensor, value) if storage_key(tensor) in keys else tensor

        views = [node]
        while views:
            users = [user for user in views.pop().users if not {*keys}.isdisjoint(storage_keys(user))]
            for user in users:
                user.meta["val"] = pytree.tree_map_only(torch.Tensor, viewed, user.meta["val"])
            views += users
    node.replace_all_uses_with(other)
    node.graph.erase_node(node)


def split(joint: GraphModule, inputs: Any, **facts: Any) -> Pair:
    """The forward and the backward graph, by where nodes stand, whatever tags ask PyTorch to recompute.

    They are to be recompiled before they run.
    """
    for node in joint.graph.nodes:
        node.meta.pop("recompute", None)
    replayed = {node.meta["dtr"]["origin"] for node in joint.graph.nodes if node.target is rng.replay}
    # A draw whose result is read from its replays only has an effect: it still draws.
    targets = {node.target for node in joint.graph.nodes if node.name in replayed}
    added = targets - side_effectful_functions
    side_effectful_functions.update(added)
    try:
        forward, backward = default_partition(joint, inputs, **facts)
    finally:
        side_effectful_functions.difference_update(added)
    # What is tagged as random is in both graphs, even where nothing reads it: each graph keeps its own draws.
    draws = {node.name: is_backward(node) for node in joint.graph.nodes if rng.is_random(node)}
    backward.graph.eliminate_dead_code(lambda node: draws.get(node.name) is True or has_effects(node))
    _save_what_is_read(forward, backward, facts["num_fwd_outputs"])
    forward.graph.eliminate_dead_code(lambda node: draws.get(node.name) is False or has_effects(node))
    return forward, backward


def _save_what_is_read(forward: GraphModule, backward: GraphModule, results: int) -> None:
    """Take out of both graphs what is saved, but read only by what was dead code in the backward graph."""
    output = forward.graph.output_node()
    unread = {node.name: node for node in backward.graph.find_nodes(op="placeholder") if not node.users}
    found: Any = output.args[0]
    kept = [at for at, value in enumerate(found) if at < results or value.name not in unread]
    for at in set(range(len(found))) - set(kept):
        backward.graph.erase_node(unread[found[at].name])
    output.args = (tuple(found[at] for at in kept),)
    for name, described in output.meta.items():
        if isinstance(described, list) and len(described) == len(found):
            output.meta[name] = [described[at] for at in kept]


def has_effects(node: Node) -> bool:
    """True if the node does something even if nothing reads it, drawing apart."""
    return node.is_impure(impure_random=False)
