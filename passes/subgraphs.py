"""Higher-order operators (cond, while_loop, scan, ...) as single operators: what is inside, what it takes.

Requires: ``meta["val"]`` on the nodes of the inner graphs, as AOTAutograd leaves it.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter

import torch
from torch.fx import GraphModule, Node

from dtr_fx.torch_private import HigherOrderOperator, pytree

# They do nothing but run their inner graphs.
_PURE = ("cond", "while_loop", "scan", "associative_scan", "map_impl", "invoke_subgraph")


def is_higher_order(node: Node) -> bool:
    """True if the node's operator runs graphs of its own."""
    return isinstance(node.target, HigherOrderOperator)


def is_pure(node: Node) -> bool:
    """True if a higher-order operator does nothing but run its inner graphs."""
    assert isinstance(node.target, HigherOrderOperator)
    return node.target.name() in _PURE


def graphs_of(node: Node) -> list[GraphModule]:
    """The graphs inside a higher-order operator."""
    owner = node.graph.owning_module
    named = (used for used in node.all_input_nodes if used.op == "get_attr")
    found = (attrgetter(str(used.target))(owner) for used in named)
    return [inner for inner in found if isinstance(inner, GraphModule)]


def operators_of(node: Node) -> list[Node]:
    """The operators of the graphs inside."""
    return [inner for gm in graphs_of(node) for inner in gm.graph.nodes if inner.op.startswith("call")]


def cost_inside(node: Node, cost: Callable[[Node], float]) -> float:
    """Seconds: of the longest branch, of every turn of a scan, of one turn of a loop that data end."""
    costs = [
        sum(cost(inner) for inner in gm.graph.nodes if inner.op.startswith("call")) for gm in graphs_of(node)
    ]
    return max(costs) if node.target is torch.ops.higher_order.cond else _turns(node) * sum(costs)


def _turns(node: Node) -> int:
    """How often a scan runs its graph: the length of what it goes over."""
    if node.target is not torch.ops.higher_order.scan:
        return 1
    scanned = [leaf for leaf in pytree.tree_leaves(node.args[2]) if isinstance(leaf, Node)]
    return int(scanned[0].meta["val"].shape[0]) if scanned else 1
