"""The Drop node: a call of ``drop``, where a storage is given up that will be recomputed later.

It does nothing when run, but is the last reader of its argument, and generated code frees a value after its
last reader.
"""

from __future__ import annotations

from typing import Any

from torch.fx import Graph, GraphModule, Node
from torch.fx.node import has_side_effect

from dtr_fx.passes.contract import PLAN, VERIFIED, Pass
from dtr_fx.passes.tensors import is_backward, storage_keys


@has_side_effect
def drop(value: Any) -> None:
    """Give up ``value``; nothing reads it, or a view of it, after this."""


def hoist_drops(graph: Graph) -> None:
    """Move every Drop node right behind the last reader of its storage, as if it were lowered.

    What the caller is given back stays where its caller gives it up.
    """
    last_reader: dict[int, Node] = {}
    returned = {key for node in graph.output_node().all_input_nodes for key in storage_keys(node)}
    for node in list(graph.nodes):
        if node.target is drop:
            if storage_keys(node.all_input_nodes[0])[0] in returned:
                continue
            reader = last_reader[storage_keys(node.all_input_nodes[0])[0]]
            reader.append(node)
            if "partitioner_tag" in node.meta:
                node.meta["partitioner_tag"] = "is_backward" if is_backward(reader) else "is_forward"
        else:
            for used in (node, *node.all_input_nodes):
                last_reader.update(dict.fromkeys(storage_keys(used), node))


class LowerDrops(Pass):
    """Take the Drop nodes out, for an executor: later readers of a dropped value read its recomputed copy."""

    name = "lower drops"

    def call(self, gm: GraphModule) -> bool:
        drops = gm.graph.find_nodes(op="call_function", target=drop)
        for node in drops:
            gm.graph.erase_node(node)
        return bool(drops)


class ForgetPlan(LowerDrops):
    """Let a graph that was rewritten before be one like any other: its recomputes are operators."""

    name = "forget plan"
    breaks = (PLAN, VERIFIED)

    def call(self, gm: GraphModule) -> bool:
        for node in gm.graph.nodes:
            node.meta.pop("dtr", None)
        return super().call(gm)
