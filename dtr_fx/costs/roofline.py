"""Seconds per operator: by a roofline, the longer of computing its FLOPs and moving its bytes, or a profile.

FLOPs come from ``torch.utils.flop_counter``; bytes are those of tensors read and written.  Views are free.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node
from torch.utils.flop_counter import flop_registry

from dtr_fx.costs.profile import Profile
from dtr_fx.errors import OptionError, ask
from dtr_fx.passes import subgraphs
from dtr_fx.passes.slices import Sliced
from dtr_fx.passes.tensors import held_by, hint, tensors_of

Cost = Callable[[Node], float]

# What generated code computes on a CPU (see ``kernels``).
FUNCTION = "function"  # vectorized
SCALAR = "scalar"  # one element after the other


@dataclass(frozen=True)
class Device:
    """FLOP/s by bytes per element, bytes/s of memory, seconds of launching: data-sheet values (dense).

    ``arithmetic`` is seconds per element of what Inductor generates code for, by kind, where that is slow.
    """

    flops: Mapping[int, float]
    bandwidth: float
    launch: float = 4e-6
    arithmetic: Mapping[str, float] = field(default_factory=dict)


CPU = Device({4: 2e11, 2: 1e11, 8: 1e11}, 3e10, 2e-6, {FUNCTION: 1.5e-10, SCALAR: 1.2e-9})
_ACCELERATORS = {
    "H200": Device({2: 989e12, 4: 67e12, 8: 34e12}, 4.8e12),
    "H100": Device({2: 989e12, 4: 67e12, 8: 34e12}, 3.35e12),
    "A100": Device({2: 312e12, 4: 19.5e12, 8: 9.7e12}, 2.0e12),
    "L40": Device({2: 181e12, 4: 90e12, 8: 1.4e12}, 0.86e12),
    "V100": Device({2: 125e12, 4: 15.7e12, 8: 7.8e12}, 0.9e12),
    "T4": Device({2: 65e12, 4: 8.1e12, 8: 0.25e12}, 0.32e12),
}
_UNKNOWN_ACCELERATOR = Device({2: 100e12, 4: 15e12, 8: 7e12}, 1e12)


def device_figures(device: torch.device) -> Device:
    """The figures of a device, by its name."""
    if device.type == "cpu":
        return CPU
    name = torch.cuda.get_device_name(device) if device.type == "cuda" and torch.cuda.is_available() else ""
    return next((figures for key, figures in _ACCELERATORS.items() if key in name), _UNKNOWN_ACCELERATOR)


def roofline(device: torch.device) -> Cost:
    """A cost function for the nodes of a graph on ``device``."""
    figures = device_figures(device)

    def cost(node: Node) -> float:
        if subgraphs.is_higher_order(node) and subgraphs.graphs_of(node):
            joined = sum(held.elements for held in held_by(node)) if isinstance(node.target, Sliced) else 0
            return figures.launch + subgraphs.cost_inside(node, cost) + 2 * joined / figures.bandwidth
        written = tensors_of(node.meta.get("val"))
        moved = sum(held.elements for touched in (node, *node.all_input_nodes) for held in held_by(touched))
        width = written[0].element_size() if written else 4
        speed = figures.flops.get(width, figures.flops[4])
        return figures.launch + max(flops(node) / speed, moved / figures.bandwidth)

    return cost


def flops(node: Node) -> int:
    """Floating-point operations of one run, 0 for what the counter does not know."""
    facts = node.meta.get("dtr_facts")
    if facts is not None:
        return int(facts.flops)
    formula = flop_registry.get(getattr(node.target, "overloadpacket", None))
    if formula is None:
        return 0
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta.get("val"))
    return hint(formula(*args, **kwargs, out_val=node.meta.get("val")))


def resolve(costs: str | Cost | Mapping[Any, float], device: torch.device) -> Cost:
    """``"roofline"``, ``"profile"``, a function of a node, or seconds by name or target; ``OptionError``."""
    if callable(costs):
        return lambda node: _seconds(ask("costs", costs, node), costs, node)
    if isinstance(costs, Mapping):
        estimate = roofline(device)

        def look_up(node: Node) -> float:
            key = node.name if node.name in costs else node.target
            return _seconds(costs[key], "a mapping", node) if key in costs else estimate(node)

        return look_up
    if costs == "roofline":
        return roofline(device)
    if costs == "profile":
        return Profile(device, roofline(device))
    raise OptionError(
        f"costs={costs!r} is unknown: write 'roofline', 'profile', a function of a node that returns "
        "seconds, or a mapping from node names or targets to seconds"
    )


def _seconds(told: object, by: object, node: Node) -> float:
    """What a user says that a node costs."""
    is_number = isinstance(told, numbers.Real) and not isinstance(told, bool)
    if not is_number or not 0 <= (seconds := float(told)) < math.inf:  # type: ignore[arg-type]
        raise OptionError(f"costs: {by} says {told!r} for the node {node.name}: give seconds, 0 or more")
    return seconds
