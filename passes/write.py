"""A plan, written into the FX graph that its program was read from: recomputes and Drop nodes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from dtr_fx.passes import rng
from dtr_fx.passes.accumulate import is_sum_in_place
from dtr_fx.passes.contract import ORDER, PLAN, VALUES, VERIFIED, Pass
from dtr_fx.passes.drops import drop, hoist_drops
from dtr_fx.passes.modes import fake_mode_of
from dtr_fx.passes.roles import ARRIVE, SAVE_RNG
from dtr_fx.passes.storages import GraphProgram, NodeCall
from dtr_fx.passes.tensors import empty_like, is_backward, storage_key, tensors_of, view_like
from dtr_fx.runtime import Plan, Step
from dtr_fx.runtime.steps import BANISH, COMPUTE, DROP, RECOMPUTE
from dtr_fx.torch_private import pytree, rename

# What ``meta`` says of where a node comes from.
PROVENANCE = ("stack_trace", "nn_module_stack", "source_fn_stack", "fwd_nn_module_stack", "original_aten")


@dataclass(frozen=True)
class Write(Pass):
    """Write a plan into the graph that its program was read from.

    Drop and Recompute nodes stand in the order of the plan; what is read after a drop is the newest copy;
    every new node has ``meta["dtr"]`` with its role and, for a recompute, its origin.  A plan with transfers
    is for ``WriteMoves``.
    """

    program: GraphProgram
    plan: Plan

    name = "emit"
    requires = (VALUES, ORDER)
    ensures = (PLAN,)
    breaks = (VERIFIED,)

    def call(self, gm: GraphModule) -> bool:
        Writer(gm, self.program, self.plan).run()
        return True


class Writer:
    """Edits a graph so that it does what a plan says."""

    def __init__(self, gm: GraphModule, program: GraphProgram, plan: Plan) -> None:
        self._program = program
        self._steps = plan.steps
        self._calls = program.calls
        self._graph = gm.graph
        self._mode = fake_mode_of(gm)
        trees = reversed(program.values_of.items())
        self._holder = {tree: node for node, tree in trees if isinstance(tree, int)}
        for node in filter(is_sum_in_place, program.values_of):
            self._holder[program.storage(program.values_in(node)[0])] = node
        recomputed = {step.op for step in self._steps if step.kind == RECOMPUTE}
        self._read_again = {value for number in recomputed for value in self._calls[number].inputs}
        self._newest: dict[Node, Node] = {}
        self._origin: dict[Node, Node] = {}
        self._old_value: dict[Node, Any] = {}
        self._saved: dict[int, Node] = {}
        self._resident: set[int] = set()
        self._selections: list[Node] = []
        self._anchor = self._graph.output_node()

    def run(self) -> None:
        anchors = self._anchors()
        self._anchor = next(anchors)
        with torch.no_grad():
            for step in self._steps:
                if step.kind == COMPUTE:
                    self._run_first(self._calls[step.op], anchors)
                elif step.kind == RECOMPUTE:
                    self._recompute(self._calls[step.op])
                elif step.kind in (DROP, BANISH):
                    self._give_up(step)
                else:
                    self._transfer(step)
        self._read_newest(self._anchor)
        for selection in reversed(self._selections):
            if not selection.users:
                self._graph.erase_node(selection)
        hoist_drops(self._graph)

    def _run_first(self, call: NodeCall, anchors: Iterator[Node]) -> None:
        """An operator where it stands, or what is saved for a recompute, if there is one."""
        self._resident.update(call.outputs)
        if call.role == COMPUTE:
            self._compute(call)
            self._anchor = next(anchors)
        elif call.role != ARRIVE and call.outputs[0] in self._read_again:
            self._saved[call.outputs[0]] = self._save(call)

    def _give_up(self, step: Step) -> None:
        """A storage is gone: where it is dropped, or given back to the caller, by a node."""
        self._resident.discard(step.storage)
        is_given_back = step.storage in self._program.given_back
        if step.again is not None or (is_given_back and is_backward(self._anchor)):
            self._drop(step)

    def _anchors(self) -> Iterator[Node]:
        """The graph's operators in the order of their first runs, then its output; new nodes precede them."""
        first_runs = (self._calls[step.op] for step in self._steps if step.kind == COMPUTE)
        nodes = [call.node for call in first_runs if call.role == COMPUTE]
        output = self._graph.output_node()
        if nodes != [call.node for call in self._calls if call.role == COMPUTE]:
            for node in nodes:
                output.prepend(node)
        return iter([*nodes, output])

    def _compute(self, call: NodeCall) -> None:
        node = place = call.node
        if self._newest:
            self._revalue_view(call)
            self._read_newest(node)
        for selection in call.selections:
            if node in self._old_value:
                self._old_value[selection] = selection.meta["val"]
                selection.meta["val"] = cast(Node, selection.args[0]).meta["val"][selection.args[1]]
            place.append(selection)
            place = selection

    def _revalue_view(self, call: NodeCall) -> None:
        """A view that is first taken after its storage was recomputed lies in the recomputed storage."""
        node = call.node
        if all(self._program.is_storage(value) for value in call.outputs):
            return
        read = [(used, self._newest_of(used)) for used in node.all_input_nodes]
        if any(used is not new or used in self._old_value for used, new in read):
            old = self._old_value
            values = [(old.get(used, used.meta.get("val")), new.meta.get("val")) for used, new in read]
            old[node] = node.meta["val"]
            node.meta["val"] = self._value_again(node.meta["val"], values)

    def _save(self, call: NodeCall) -> Node:
        with self._graph.inserting_before(self._anchor):
            if call.role == SAVE_RNG:
                node = self._graph.call_function(rng.save_state, (str(self._program.device),))
                state = rng.save_state(str(self._program.device))
                with self._mode or contextlib.nullcontext():
                    node.meta["val"] = torch.empty(state.shape, dtype=state.dtype)
            else:
                node = self._graph.call_function(torch.ops.aten.clone.default, (call.node,))
                node.meta["val"] = empty_like(call.node.meta["val"])
        self._describe(node, role=call.role, origin=call.node.name)
        return node

    def _recompute(self, call: NodeCall) -> None:
        origin = call.node
        kept = {node: self._saved[value] for node, value in call.kept.items()}

        def newest(node: Node) -> Node:
            return kept.get(node) or self._newest_of(node)

        states = [value for value in call.inputs if self._program.values[value].kind == "rng state"]
        with self._graph.inserting_before(self._anchor):
            if states:
                node = self._replay(origin, self._saved[states[0]], newest)
            else:
                node = self._graph.node_copy(origin, newest)
            values = [(used.meta.get("val"), newest(used).meta.get("val")) for used in origin.all_input_nodes]
            node.meta["val"] = self._value_again(origin.meta["val"], values)
            self._name_after(node, origin)
            for selection in call.selections:
                self._select_again(selection, call)
        self._resident.update(call.outputs)

    def _replay(self, origin: Node, state: Node, newest: Callable[[Node], Node]) -> Node:
        target = rng.reference(origin)
        if origin.op == "call_module":
            target = self._graph.get_attr(str(origin.target))
        args, kwargs = map_arg((origin.args, origin.kwargs), newest)
        replayed = state, str(self._program.device), target, *args
        node = self._graph.call_function(rng.replay, replayed, dict(kwargs))
        node.meta = dict(origin.meta)
        return node

    def _select_again(self, selection: Node, call: NodeCall) -> None:
        """Take an element out of a recomputed result, unless the old one is still resident."""
        source = self._newest.get(cast(Node, selection.args[0]))
        values = pytree.tree_leaves(self._program.values_of[selection])
        fresh = [value for value in values if value in call.outputs and self._program.is_storage(value)]
        if source is None or (fresh and all(value in self._resident for value in fresh)):
            return
        node = self._graph.node_copy(selection, lambda _: source)
        node.meta["val"] = source.meta["val"][selection.args[1]]
        self._name_after(node, selection)
        self._selections.append(node)

    def _transfer(self, step: Step) -> None:
        """See ``WriteMoves``."""
        raise NotImplementedError(step.kind)

    def _drop(self, step: Step) -> None:
        holder = self._holder[step.storage]
        with self._graph.inserting_before(self._anchor):
            node = self._graph.call_function(drop, (self._newest.get(holder, holder),))
        rename(node, f"drop_{node.all_input_nodes[0].name}")
        why = {"reason": step.reason, "score": step.score, "again": step.again, "away": step.away}
        self._describe(node, role=DROP, origin=holder.name, **why)

    def _name_after(self, node: Node, origin: Node) -> None:
        self._newest[origin] = node
        self._origin[node] = origin
        rename(node, f"{origin.name}_recompute")
        for tag in ("recompute", "ac_graph_id"):
            node.meta.pop(tag, None)
        self._describe(node, role=RECOMPUTE, origin=origin.name, reason=f"for {self._anchor.name}")

    def _describe(self, node: Node, **facts: Any) -> None:
        """Say what the node is for; it belongs to the pass, forward or backward, that it is inserted in."""
        node.meta["dtr"] = facts
        if "partitioner_tag" in self._anchor.meta:
            node.meta["partitioner_tag"] = "is_backward" if is_backward(self._anchor) else "is_forward"

    def _newest_of(self, node: Node) -> Node:
        """The latest copy of what the node stands for; an operator may already read an earlier copy."""
        return self._newest.get(self._origin.get(node, node), node)

    def _read_newest(self, node: Node) -> None:
        if any(used in self._newest for used in node.all_input_nodes):
            node.args, node.kwargs = map_arg((node.args, node.kwargs), self._newest_of)

    def _value_again(self, value: Any, read: list[tuple[Any, Any]]) -> Any:
        """A fake value in storages of its own; where it was a view of what was read, of what is read now."""
        bases: dict[int, torch.Tensor] = {}
        for before, now in read:
            bases |= zip(map(storage_key, tensors_of(before)), tensors_of(now))

        def again(leaf: Any) -> Any:
            if not isinstance(leaf, torch.Tensor):
                return leaf
            base = bases.get(storage_key(leaf))
            return empty_like(leaf) if base is None else view_like(leaf, base)

        return again(value) if isinstance(value, torch.Tensor) else pytree.tree_map(again, value)
