"""What the code that Inductor generates computes, by kinds of operators that take alike on a CPU.

What is not listed is free: vectorized additions and reductions hide behind the memory that they read.  So are
random numbers: a mask that is drawn again is not stored, and storing booleans takes as long as drawing them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import cast

import torch
from torch.fx import Node

from dtr_fx.passes import kernels
from dtr_fx.passes.tensors import hint, tensors_of

_aten = torch.ops.aten

FUNCTION = "function"  # vectorized
SCALAR = "scalar"  # one element after the other

_KINDS = {
    FUNCTION: {
        *(_aten.erf, _aten.exp, _aten.exp2, _aten.expm1, _aten.log, _aten.log1p, _aten.log2),
        *(_aten.sigmoid, _aten.sin, _aten.cos),
    },
    SCALAR: {_aten.tanh, _aten.sinh, kernels.MAX_POOL},
}


def seconds(node: Node, per_element: Mapping[str, float]) -> float:
    """Seconds of one run of a kernel whose operands are at hand; ``per_element`` is by kind."""
    if not isinstance(node.target, kernels.Kernel):
        return _seconds(node, per_element)
    inside = (inner for inner in node.target.graph.nodes if inner.op == "call_function")
    return sum(_seconds(inner, per_element) for inner in inside)


def _seconds(node: Node, per_element: Mapping[str, float]) -> float:
    operator = getattr(node.target, "overloadpacket", None)
    kind = next((kind for kind, operators in _KINDS.items() if operator in operators), None)
    return 0.0 if kind is None else per_element.get(kind, 0.0) * _elements(node)


def _elements(node: Node) -> int:
    """The elements that the operator computes; a maximum is one of a window."""
    made = hint(tensors_of(node.meta["val"])[0].numel())
    if getattr(node.target, "overloadpacket", None) is kernels.MAX_POOL:
        made *= math.prod(cast("Sequence[int]", node.args[1]))
    return made
