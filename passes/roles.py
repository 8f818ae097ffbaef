"""The roles of nodes in a rewritten graph: ``meta["dtr"]``."""

from __future__ import annotations

from typing import Any

from torch.fx import Node

from dtr_fx.runtime.steps import COMPUTE, WAIT

ARRIVE = "arrive"  # an input that comes late: a tangent, when the backward pass starts
SAVE_RNG = "save rng"  # the generator's state, saved before a random operator
KEEP = "keep"  # a copy of an input that the graph changes later


def facts(node: Node) -> dict[str, Any]:
    """The facts that a plan gives of a node; a node without them is the original graph's."""
    return node.meta.get("dtr") or {"role": COMPUTE, "origin": node.name}


def role(node: Node) -> str:
    """One of the above, or a kind of step: recompute, drop, offload, reload, wait."""
    return str(facts(node)["role"])


def is_over(node: Node) -> bool:
    """True if the node waits for a copy that has ended by then, as planned."""
    return role(node) == WAIT and not facts(node)["seconds"]


def origin_name(node: Node) -> str:
    """The node of the original graph that a node stands for."""
    return str(facts(node)["origin"])
