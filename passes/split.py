"""The joint graph in execution order, and its split into a forward and a backward graph.

Requires: AOTAutograd's joint graph, whose nodes carry ``partitioner_tag``.
Ensures: nodes run where they stand: a recompute that stands in the backward pass runs there.
"""

from __future__ import annotations

from typing import Any

from functorch.compile import default_partition
from torch.fx import GraphModule


def into_execution_order(joint: GraphModule) -> None:
    """Move the writes to mutated inputs, which AOTAutograd lists last, to the end of the forward pass."""
    tagged = [(node, node.meta.get("partitioner_tag")) for node in joint.graph.nodes]
    forward = [node for node, tag in tagged if tag == "is_forward"]
    if not forward:
        return
    last = forward[-1]
    for node, tag in tagged:
        if tag == "must_be_in_forward":
            last.append(node)
            last = node


def split(joint: GraphModule, inputs: Any, **facts: Any) -> tuple[GraphModule, GraphModule]:
    """The forward and the backward graph, by where nodes stand.

    Tags that ask PyTorch to recompute are taken off: this graph already says what is recomputed.
    """
    for node in joint.graph.nodes:
        node.meta.pop("recompute", None)
    return default_partition(joint, inputs, **facts)
