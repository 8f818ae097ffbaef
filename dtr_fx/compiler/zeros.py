"""Results that the loss does not depend on: the zeros that are their gradients are made where they are read.

Autograd makes them all before the backward pass of a compiled step, and holds them to its end: for the logits
of a language model as much as for its loss, for each key and value of a cache.  Eager PyTorch makes none.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from dtr_fx.passes.tensors import is_tangent


def make_zeros_late(backward: GraphModule) -> bool:
    """Let a backward graph take None for each of its tangents, as zeros; the step then asks autograd for it.

    False where there is nothing to win, or a tangent has symbols for sizes or is no plain tensor.
    """
    tangents = [node for node in backward.graph.find_nodes(op="placeholder") if is_tangent(node)]
    if len(tangents) < 2 or not all(map(_is_plain, tangents)):
        return False
    for tangent in (node for node in tangents if node.users):
        value = tangent.meta["val"]
        layout = tuple(value.shape), value.stride(), value.dtype, value.device
        with backward.graph.inserting_before(min(tangent.users)):
            given = backward.graph.call_function(given_or_zeros, (tangent, *layout))
        given.meta = dict(tangent.meta)
        tangent.replace_all_uses_with(given, lambda user, own=given: user is not own)
    return True


def given_or_zeros(
    tangent: Tensor | None,
    shape: Sequence[int],
    stride: Sequence[int],
    dtype: torch.dtype,
    device: torch.device,
) -> Tensor:
    if tangent is not None:
        return tangent
    return torch.empty_strided(shape, stride, dtype=dtype, device=device).zero_()


def _is_plain(tangent: Node) -> bool:
    value = tangent.meta.get("val")
    if not isinstance(value, Tensor) or value.layout is not torch.strided:
        return False
    return all(isinstance(size, int) for size in (*value.shape, *value.stride()))
