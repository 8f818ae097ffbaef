"""What a training step's caller can write between the forward and the backward pass.

Requires: AOTAutograd's joint graph, whose inputs and outputs carry ``meta["desc"]``.

A recompute in the backward pass that reads such a tensor may read another value than the forward pass did.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from torch.fx import GraphModule, Node

from dtr_fx.passes.marks import saves_inputs
from dtr_fx.passes.roles import role
from dtr_fx.passes.subgraphs import InSlices
from dtr_fx.passes.tensors import is_backward, is_tangent, storage_keys
from dtr_fx.runtime.steps import RECOMPUTE
from dtr_fx.torch_private import GradAOTOutput, InputMutationAOTOutput, PlainAOTInput, PlainAOTOutput


@dataclass(frozen=True)
class Reached:
    """A tensor that the caller holds: an ``"input"``, ``"parameter"`` or ``"output"``, by its position."""

    kind: str
    position: int
    node: Node


def mark_parameters(joint: GraphModule, static: Iterable[int], parameters: Sequence[bool] | None) -> None:
    """Tell inputs apart: ``static`` ones stay where they are, and count as parameters in reports.

    ``parameters`` says of each input of the user's graph if it is one; by default static ones are.
    """
    inputs = joint.graph.find_nodes(op="placeholder")
    for number in static:
        inputs[number].meta["dtr_parameter"] = True
    for node in inputs:
        position = _position(node.meta.get("desc"))
        is_parameter = node.meta.get("dtr_parameter", False)
        if parameters is not None and position is not None and position < len(parameters):
            is_parameter = parameters[position]
        node.meta["dtr_written_by_caller"] = not is_parameter


def written_after_forward(gm: GraphModule) -> set[int]:
    """The storages of inputs that AOTAutograd writes when the forward graph has run."""
    written = {
        _root(desc.mutated_input)
        for _, desc in _described_outputs(gm)
        if isinstance(desc, InputMutationAOTOutput)
    }
    inputs = gm.graph.find_nodes(op="placeholder")
    return {key for node in inputs if _root(node.meta.get("desc")) in written for key in storage_keys(node)}


def given_back(gm: GraphModule) -> set[int]:
    """The storages of the new values of these inputs: they are gone when AOTAutograd has written them."""
    new: set[int] = set()
    others: set[int] = set()
    for node, desc in _described_outputs(gm):
        (new if isinstance(desc, InputMutationAOTOutput) else others).update(storage_keys(node))
    inputs = {key for node in gm.graph.find_nodes(op="placeholder") for key in storage_keys(node)}
    return new - others - inputs


def reached_by_caller(gm: GraphModule, *kinds: str) -> dict[int, Reached]:
    """The tensors, by storage, that the caller may write, as autograd itself would not save them."""
    saved = {
        key
        for node in gm.graph.nodes
        if node.op.startswith("call") and (is_backward(node) or saves_inputs(node))
        for used in node.all_input_nodes
        for key in storage_keys(used)
    }
    return {
        key: reached
        for reached in _reached(gm)
        for key in storage_keys(reached.node)
        if key not in saved and reached.kind in kinds
    }


def relied_on(gm: GraphModule, reached: Mapping[int, Reached]) -> list[Reached]:
    """Those that recomputes, and operators in slices, read in the backward pass of a rewritten graph."""
    found = {
        key: None
        for node in gm.graph.nodes
        if is_backward(node) and (role(node) == RECOMPUTE or isinstance(node.target, InSlices))
        for used in node.all_input_nodes
        for key in storage_keys(used)
    }
    return [reached[key] for key in found if key in reached]


def has_gradients(joint: GraphModule) -> bool:
    """True if the backward pass of a joint graph computes any gradient."""
    return any(isinstance(desc, GradAOTOutput) for _, desc in _described_outputs(joint))


def _reached(gm: GraphModule) -> Iterator[Reached]:
    for node in gm.graph.find_nodes(op="placeholder"):
        position = _position(node.meta.get("desc"))
        if position is not None and "dtr_written_by_caller" in node.meta and not is_tangent(node):
            yield Reached("input" if node.meta["dtr_written_by_caller"] else "parameter", position, node)
    for node, desc in _described_outputs(gm):
        position = _position(desc)
        if position is not None and not isinstance(desc, (GradAOTOutput, InputMutationAOTOutput)):
            yield Reached("output", position, node)


def _described_outputs(gm: GraphModule) -> Iterator[tuple[Node, Any]]:
    """The results of the graph with what AOTAutograd says of each; none of a graph of another's."""
    output = gm.graph.output_node()
    descriptions = output.meta.get("desc")
    if isinstance(descriptions, (tuple, list)):
        for node, desc in zip(cast("tuple[Any, ...]", output.args[0]), descriptions):
            if isinstance(node, Node):
                yield node, _unwrapped(desc)


def _unwrapped(desc: Any) -> Any:
    """Of a part of a tensor subclass, that of the tensor."""
    while hasattr(desc, "base"):
        desc = desc.base
    return desc


def _root(desc: Any) -> Any:
    """The user's input that an input of the graph is, or is the base or a part of."""
    while True:
        inner = getattr(desc, "base", None) or getattr(desc, "base_of", None)
        if inner is None:
            return desc
        desc = inner


def _position(desc: Any) -> int | None:
    """The position among the user's inputs or outputs; None of what is neither."""
    root = _root(desc)
    return int(root.idx) if isinstance(root, (PlainAOTInput, PlainAOTOutput)) else None
