"""The two graphs of a partition as the one graph that a training step runs."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg

from dtr_fx.passes import rng
from dtr_fx.passes.modes import fake_mode_of
from dtr_fx.passes.roles import SAVE_RNG
from dtr_fx.passes.tensors import is_selection, storage_key, tensors_of, view_like
from dtr_fx.runtime.steps import RECOMPUTE
from dtr_fx.torch_private import (
    graphsafe_run_with_rng_state,
    pytree,
    run_and_save_rng_state,
    run_with_rng_state,
)


def join(forward: GraphModule, backward: GraphModule | None = None) -> GraphModule:
    """One graph that runs ``forward``, then ``backward``, to be read, not run; it returns what outlives both.

    Its nodes are tagged as in AOTAutograd's joint graph, those of a lone graph as they were.  PyTorch's
    partitioners leave the fake value of a node on its copy in the backward graph, as if both were in one
    storage: here a copy gets storages of its own.  Their wrapped random operators become the saved
    state and the replay of ``passes.rng``, which costs what the operator does.
    """
    joined = _Joined()
    returned = joined.add(forward, {}, None if backward is None else "is_forward")
    if backward is not None:
        saved = _saved(forward, returned, backward)
        gradients = joined.add(backward, saved, "is_backward")
        # What is an output of the model and saved as well is returned twice.
        times = Counter(returned)
        outputs = [node for node in returned if node not in saved.values() or times[node] > 1]
        returned = [*outputs, *gradients]
    joined.graph.output(tuple(joined.copies[node] for node in dict.fromkeys(returned)))
    return GraphModule(joined.root, joined.graph)


def _saved(forward: GraphModule, returned: Sequence[Node], backward: GraphModule) -> dict[str, Node]:
    """The values that the backward graph has of the forward graph, by their names there.

    They are returned for it; the state of hooks is an input of both.
    """
    states = (node for node in returned if _selects(node, run_and_save_rng_state) and node.args[1] == 0)
    known = {node.name: node for node in (*forward.graph.find_nodes(op="placeholder"), *returned)}
    known |= {f"rng_state_output_{number}": state for number, state in enumerate(states)}
    names = [node.name for node in backward.graph.find_nodes(op="placeholder")]
    return {name: known[name] for name in names if name in known}


def _selects(node: Node, target: Any) -> bool:
    return is_selection(node) and cast(Node, node.args[0]).target is target


class _Joined:
    """A graph that others are copied into, one after the other."""

    def __init__(self) -> None:
        self.graph = Graph()
        self.root = torch.nn.Module()
        self.copies: dict[Node, Node] = {}
        self._state_of: dict[Node, Node] = {}
        self._taken: set[int] = set()

    def add(self, gm: GraphModule, given: Mapping[str, Node], tag: str | None) -> list[Node]:
        """Copy a graph; some of its inputs are ``given``: nodes copied before.  What it returns."""
        part = f"part_{len(list(self.root.children()))}"
        self.root.add_module(part, gm)
        with torch.no_grad(), fake_mode_of(gm) or contextlib.nullcontext():
            for node in gm.graph.nodes:
                if node.op == "placeholder" and node.name in given:
                    self.copies[node] = self.copies[given[node.name]]
                elif node.op != "output":
                    self.copies[node] = self._copy(node, part)
                    if tag is not None:
                        self.copies[node].meta["partitioner_tag"] = tag
        for copy in self.graph.nodes:
            self._taken.update(map(storage_key, tensors_of(copy.meta.get("val"))))
        return [leaf for leaf in pytree.tree_leaves(gm.graph.output_node().args) if isinstance(leaf, Node)]

    def _copy(self, node: Node, part: str) -> Node:
        if _selects(node, run_and_save_rng_state):
            drawn = self.copies[cast(Node, node.args[0])]
            return drawn if node.args[1] else self._state_of[drawn]
        if node.target in _DRAWS:
            return _DRAWS[node.target](self, node)
        copy = self.graph.node_copy(node, self.copies.__getitem__)
        copy.meta.pop("recompute", None)  # obeyed by now
        if node.op in ("get_attr", "call_module"):
            copy.target = f"{part}.{node.target}"
        elif node.op != "placeholder" and "val" in node.meta:
            copy.meta["val"] = self._apart(node, node.meta["val"])
        return copy

    def _draw(self, node: Node) -> Node:
        """The generator's state, saved, and the operator that draws."""
        device = tensors_of(next(user.meta["val"] for user in node.users if user.args[1] == 1))[0].device
        state = self.graph.call_function(rng.save_state, (device.type,))
        drawn = self._call(node, node.args[0], node.args[1:], node.kwargs)
        state.meta = {"val": rng.save_state(str(device)), "dtr": {"role": SAVE_RNG, "origin": drawn.name}}
        self._state_of[drawn] = state
        return drawn

    def _draw_again(self, node: Node) -> Node:
        saved, target, *args = node.args
        state = self.copies[cast(Node, saved)]
        drawn = next(drawn for drawn, its_state in self._state_of.items() if its_state is state)
        copy = self._call(node, target, args, node.kwargs)
        copy.args, copy.target = (state, state.args[0], target, *copy.args), rng.replay
        copy.meta["dtr"] = {"role": RECOMPUTE, "origin": drawn.name}
        return copy

    def _draw_graphsafe(self, node: Node) -> Node:
        """The operator alone: its generator is an input that takes no memory of the device's."""
        kwargs = {name: value for name, value in node.kwargs.items() if name != "rng_state"}
        return self._call(node, node.args[0], node.args[1:], kwargs)

    def _call(self, node: Node, target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Node:
        """A call in the place of a wrapped one, which has no value."""
        args, kwargs = map_arg((tuple(args), dict(kwargs)), self.copies.__getitem__)
        copy = self.graph.call_function(target, args, kwargs)
        copy.meta = dict(node.meta)
        given, named = map_arg((args, kwargs), lambda used: used.meta["val"])
        copy.meta["val"] = target(*given, **named)
        return copy

    def _apart(self, node: Node, value: Any) -> Any:
        """The value in storages of its own; where it was a view of what is read, a view of that copy."""
        if is_selection(node) and cast(Node, node.args[0]).target in _DRAWS:
            return self.copies[cast(Node, node.args[0])].meta["val"][node.args[1]]
        bases: dict[int, Tensor] = {}
        for used in node.all_input_nodes:
            read = tensors_of(self.copies[used].meta.get("val"))
            bases |= zip(map(storage_key, tensors_of(used.meta.get("val"))), read)

        def apart(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor):
                return leaf
            key = storage_key(leaf)
            if key not in bases:
                bases[key] = _like(leaf) if key in self._taken else leaf
            return leaf if storage_key(bases[key]) == key else view_like(leaf, bases[key])

        return pytree.tree_map(apart, value)


# How PyTorch wraps an operator that is to draw the same twice.
_DRAWS: dict[Any, Callable[[_Joined, Node], Node]] = {
    run_and_save_rng_state: _Joined._draw,
    run_with_rng_state: _Joined._draw_again,
    graphsafe_run_with_rng_state: _Joined._draw_graphsafe,
}


def _like(tensor: Tensor) -> Tensor:
    """A tensor in a storage as large as the tensor's."""
    if tensor.layout is not torch.strided:
        return torch.empty_like(tensor)
    whole = tensor.untyped_storage().nbytes() // tensor.element_size()
    return torch.empty(whole, dtype=tensor.dtype, device=tensor.device)
