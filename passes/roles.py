"""What the nodes of a rewritten graph are for: ``meta["dtr"]``."""

from __future__ import annotations

from typing import Any

from torch.fx import Node

from dtr_fx.runtime.steps import COMPUTE

ARRIVE = "arrive"  # an input that comes late: a tangent, when the backward pass starts
SAVE_RNG = "save rng"  # the generator's state, saved before a random operator
KEEP = "keep"  # a copy of an input that the graph changes later


def facts(node: Node) -> dict[str, Any]:
    """What a plan says of a node; one of which it says nothing is the original graph's."""
    return node.meta.get("dtr") or {"role": COMPUTE, "origin": node.name}


def role(node: Node) -> str:
    """One of the above, ``"recompute"`` or ``"drop"``."""
    found: str = facts(node)["role"]
    return found


def origin_name(node: Node) -> str:
    """The node of the original graph that a node stands for."""
    found: str = facts(node)["origin"]
    return found
