"""Seconds per operator: by a roofline, the longer of computing its FLOPs and moving its bytes, or a profile.

FLOPs come from ``torch.utils.flop_counter``; bytes are those of tensors read and written.  Views are free.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.utils.flop_counter import flop_registry

from dtr_fx.costs.figures import CPU, Device
from dtr_fx.costs.files import cache_folder
from dtr_fx.costs.machine import are_several
from dtr_fx.errors import OptionError, ask
from dtr_fx.passes import subgraphs
from dtr_fx.passes.tensors import held_by, hint, tensors_of

Cost = Callable[[Node], float]
_aten = torch.ops.aten
# What a CPU's operators are on a card, for graphs that were traced without one.
_ON_CARDS = {
    _aten._scaled_dot_product_flash_attention_for_cpu: _aten._scaled_dot_product_flash_attention,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: (
        _aten._scaled_dot_product_flash_attention_backward
    ),
}


def roofline(device: torch.device | Device) -> Cost:
    """A cost function for the nodes of a graph on a device that is here, or one with these figures."""
    figures = device if isinstance(device, Device) else figures_of(device)

    def cost(node: Node) -> float:
        if subgraphs.is_higher_order(node) and subgraphs.graphs_of(node):
            joined = (
                sum(held.elements for held in held_by(node))
                if isinstance(node.target, subgraphs.InSlices)
                else 0
            )
            return figures.launch + subgraphs.cost_inside(node, cost) + 2 * joined / figures.bandwidth
        written = tensors_of(node.meta.get("val"))
        moved = sum(held.elements for touched in (node, *node.all_input_nodes) for held in held_by(touched))
        width = written[0].element_size() if written else 4
        speed = figures.flops.get(width, figures.flops[4])
        return figures.launch + max(flops(node) / speed, moved / figures.bandwidth)

    return cost


def figures_of(device: torch.device) -> Device:
    """The figures of a device that is here."""
    if device.type == "cpu":
        return CPU
    from dtr_fx.costs.devices import device_figures  # only here: the cards by name

    return device_figures(device)


def flops(node: Node) -> int:
    """Floating-point operations of one run, 0 for what the counter does not know."""
    facts = node.meta.get("dtr_facts")
    if facts is not None:
        return int(facts.flops)
    operator = getattr(node.target, "overloadpacket", None)
    if operator in _ON_CARDS and held_by(node)[0].device != "cpu":
        operator = _ON_CARDS[operator]
    formula = flop_registry.get(operator)
    if formula is None:
        return 0
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
    return hint(formula(*args, **kwargs, out_val=node.meta.get("val")))


def resolve(
    costs: str | Cost | Mapping[Any, float],
    device: torch.device,
    graph: Graph | None = None,
    cache: str | bool | None = None,
    room: float = math.inf,
) -> Cost:
    """``"roofline"``, ``"profile"``, a function of a node, or seconds by name or target; ``OptionError``.

    ``"auto"`` is the profile where the ``graph`` is timed in little time, times are kept in the folder of
    ``cache``, so that the next plan is made with the same, and no other rank plans with its own.  To time
    operators takes ``room`` bytes at most.
    """
    if callable(costs):
        return lambda node: _seconds(ask("costs", costs, node), costs, node)
    if isinstance(costs, Mapping):
        estimate = roofline(device)

        def look_up(node: Node) -> float:
            key = node.name if node.name in costs else node.target
            return _seconds(costs[key], "a mapping", node) if key in costs else estimate(node)

        return look_up
    if costs not in ("auto", "roofline", "profile"):
        raise OptionError(
            f"costs={costs!r} is unknown: write 'roofline', 'profile', 'auto', a function of a node that "
            "returns seconds, or a mapping from node names or targets to seconds"
        )
    estimate, is_kept = roofline(device), cache_folder(cache) is not None and not are_several()
    if costs == "roofline" or (costs == "auto" and not (device.type == "cpu" and graph and is_kept)):
        return estimate
    # Only here: the roofline runs no operator.
    from dtr_fx.costs.profile import Profile

    profile = Profile(device, estimate, cache, room, runs_custom=costs == "profile")
    return profile if costs == "profile" or (graph and profile.is_quick(graph)) else estimate


def _seconds(told: object, by: object, node: Node) -> float:
    """What a user says that a node costs."""
    is_number = isinstance(told, numbers.Real) and not isinstance(told, bool)
    if not is_number or not 0 <= (seconds := float(told)) < math.inf:  # type: ignore[arg-type]
        raise OptionError(f"costs: {by} says {told!r} for the node {node.name}: give seconds, 0 or more")
    return seconds
