"""Operators that run graphs, whose nodes have values: cond, while_loop, scan, ..., and regions in slices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import cached_property
from operator import attrgetter

import torch
from torch.fx import Graph, GraphModule, Node

from dtr_fx.torch_private import HigherOrderOperator, pytree


class InSlices(ABC):
    """An operator that runs a graph of its own slice by slice: ``rows`` of ``extent``; see ``slices.Sliced``.

    ``is_exact``: its results are bit for bit those of the whole.
    """

    graph: Graph
    extent: int
    rows: int
    is_exact: bool

    @property
    def slices(self) -> int:
        """How many there are."""
        return -(-self.extent // self.rows)

    @cached_property
    def module(self) -> GraphModule:
        """One slice of the region."""
        return GraphModule(torch.nn.Module(), self.graph)

    @property
    def operators(self) -> list[Node]:
        """What each slice runs."""
        return [node for node in self.graph.nodes if node.op == "call_function"]

    @cached_property
    @abstractmethod
    def runs(self) -> GraphModule:
        """One slice as it runs."""

    @property
    @abstractmethod
    def accumulator_bytes(self) -> int:
        """What it takes for sums above their results."""


def is_higher_order(node: Node) -> bool:
    """True if the node's operator runs graphs of its own."""
    return isinstance(node.target, (HigherOrderOperator, InSlices))


def graphs_of(node: Node) -> list[GraphModule]:
    """The graphs inside a higher-order operator."""
    if isinstance(node.target, InSlices):
        return [node.target.module]
    owner = node.graph.owning_module
    named = (used for used in node.all_input_nodes if used.op == "get_attr")
    found = (attrgetter(str(used.target))(owner) for used in named)
    return [inner for inner in found if isinstance(inner, GraphModule)]


def operators_of(node: Node) -> list[Node]:
    """The operators of the graphs inside."""
    return [inner for gm in graphs_of(node) for inner in gm.graph.nodes if inner.op.startswith("call")]


def cost_inside(node: Node, cost: Callable[[Node], float]) -> float:
    """Seconds: of the longest branch, of every slice or turn of a scan, of one turn of another loop."""
    inside = [[inner for inner in gm.graph.nodes if inner.op.startswith("call")] for gm in graphs_of(node)]
    costs = [sum(map(cost, operators)) for operators in inside]
    if node.target is torch.ops.higher_order.cond:
        return max(costs)
    turns = node.target.extent / node.target.rows if isinstance(node.target, InSlices) else 1
    if node.target is torch.ops.higher_order.scan:
        scanned = [leaf for leaf in pytree.tree_leaves(node.args[2]) if isinstance(leaf, Node)]
        turns = int(scanned[0].meta["val"].shape[0]) if scanned else 1
    return turns * sum(costs)
