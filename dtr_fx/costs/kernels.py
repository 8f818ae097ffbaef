"""Seconds per kernel that Inductor generates: the longer of moving its bytes and computing its elements.

What a kernel computes is counted by kinds of operators that take alike on a CPU.  What is of no kind is free:
vectorized additions and reductions hide behind the memory that they read.  So are random numbers: a mask that
is drawn again is not stored, and storing booleans takes as long as drawing them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch.fx import Node

from dtr_fx.costs.figures import FUNCTION, SCALAR
from dtr_fx.costs.roofline import Cost, figures_of
from dtr_fx.passes import kernels
from dtr_fx.passes.tensors import hint, tensors_of

_aten = torch.ops.aten

_KINDS = {
    FUNCTION: {
        *(_aten.erf, _aten.exp, _aten.exp2, _aten.expm1, _aten.log, _aten.log1p, _aten.log2),
        *(_aten.sigmoid, _aten.sin, _aten.cos),
    },
    SCALAR: {_aten.tanh, _aten.sinh, kernels.MAX_POOL},
}


def of_kernels(cost: Cost, device: torch.device) -> Cost:
    """``cost`` where a library is called; what Inductor generates code for moves its bytes or computes.

    What is fused with its readers is part of their launch, and leaves nothing in memory that they would read.
    """
    figures = figures_of(device)

    def of(node: Node) -> float:
        if not kernels.is_kernel(node):
            return cost(node)
        launch = 0.0 if kernels.is_fused(node) else figures.launch
        computed = sum(_seconds(inner, figures.arithmetic) for inner in kernels.operators(node))
        return launch + max(kernels.moved(node) / figures.bandwidth, computed)

    return of


def apart(cost: Cost) -> Cost:
    """``cost`` of each operator of a kernel, as if there were no kernels."""
    return lambda node: sum(map(cost, kernels.operators(node)))


def _seconds(node: Node, per_element: Mapping[str, float]) -> float:
    """Of the elements that an operator computes; a maximum is one of a window."""
    operator = getattr(node.target, "overloadpacket", None)
    kind = next((kind for kind, operators in _KINDS.items() if operator in operators), None)
    if kind is None:
        return 0.0
    elements = hint(tensors_of(node.meta["val"])[0].numel())
    if operator is kernels.MAX_POOL:
        elements *= math.prod(cast("Sequence[int]", node.args[1]))
    return per_element.get(kind, 0.0) * elements
