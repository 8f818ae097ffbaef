"""The joint graph in execution order, and its split into a forward and a backward graph.

Requires: AOTAutograd's joint graph, whose nodes carry ``partitioner_tag``.
Ensures: nodes run where they stand: a recompute that stands in the backward pass runs there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from functorch.compile import default_partition
from torch.fx import GraphModule, Node

from dtr_fx.passes import rng
from dtr_fx.passes.contract import ORDER, VALUES, Pass, Pipeline
from dtr_fx.passes.merge import MergeDuplicates
from dtr_fx.passes.reach import mark_parameters
from dtr_fx.torch_private import side_effectful_functions


def prepare(joint: GraphModule, static: Iterable[int], parameters: Sequence[bool] | None = None) -> None:
    """Make AOTAutograd's joint graph ready for planning; see ``reach.mark_parameters``."""
    Pipeline(ExecutionOrder(), MergeDuplicates(), given=(VALUES,))(joint)
    mark_parameters(joint, static, parameters)


class ExecutionOrder(Pass):
    """Put every node into the pass where ``default_partition`` will, and say so in its tag.

    AOTAutograd lists the writes to mutated inputs last: they move to the end of the forward pass.  It leaves
    the backward formulas of ``autograd.Function`` without a tag, and gives the inputs of a subgraph a wrong
    one.
    """

    name = "execution order"
    ensures = (ORDER,)

    def call(self, gm: GraphModule) -> bool:
        nodes = list(gm.graph.nodes)
        ends = [
            number
            for number, node in enumerate(nodes)
            if node.meta.get("partitioner_tag") == "is_forward" or _is_forward_input(node)
        ]
        if not ends:
            return False
        forward, backward = nodes[: ends[-1] + 1], nodes[ends[-1] + 1 :]
        last = nodes[ends[-1]]
        for node in backward:
            if node.meta.get("partitioner_tag") == "must_be_in_forward":
                last.append(node)
                last = node
            elif node.op != "output" and node.meta.get("partitioner_tag") != "must_be_in_backward":
                node.meta["partitioner_tag"] = "is_backward"
        for node in forward:
            comes_late = node.op == "placeholder" and not _is_forward_input(node)
            if node.meta.get("partitioner_tag") != "must_be_in_forward":
                node.meta["partitioner_tag"] = "is_backward" if comes_late else "is_forward"
        return True


def _is_forward_input(node: Node) -> bool:
    """By its name, as the partitioner tells them apart."""
    return node.op == "placeholder" and not any(late in str(node.target) for late in _BACKWARD_INPUTS)


_BACKWARD_INPUTS = ("tangents", "bwd_seed", "bwd_base_offset")


def split(joint: GraphModule, inputs: Any, **facts: Any) -> tuple[GraphModule, GraphModule]:
    """The forward and the backward graph, by where nodes stand.

    Tags that ask PyTorch to recompute are taken off: this graph already says what is recomputed.
    """
    for node in joint.graph.nodes:
        node.meta.pop("recompute", None)
    replayed = {node.meta["dtr"]["origin"] for node in joint.graph.nodes if node.target is rng.replay}
    with _with_effects({node.target for node in joint.graph.nodes if node.name in replayed}):
        forward, backward = default_partition(joint, inputs, **facts)
    # What is tagged as random is in both graphs, even where nothing reads it: of the forward pass's draws
    # only the forward graph's are to stay, of the backward pass's recomputes only the backward graph's.
    forward.graph.eliminate_dead_code(is_impure_node=lambda node: rng.is_random(node) or has_effects(node))
    backward.graph.eliminate_dead_code(is_impure_node=has_effects)
    return forward, backward


def has_effects(node: Node) -> bool:
    """True if the node does something even if nothing reads it, drawing apart."""
    return node.is_impure(impure_random=False)


@contextlib.contextmanager
def _with_effects(targets: Iterable[Any]) -> Iterator[None]:
    """Random operators have an effect here: one whose result is read from its replays only still draws."""
    added = {target for target in targets if target not in side_effectful_functions}
    side_effectful_functions.update(added)
    try:
        yield
    finally:
        side_effectful_functions.difference_update(added)
