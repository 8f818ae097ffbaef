"""The loss of a model that is given without one: commands and benchmarks train on it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from dtr_fx.torch_private import pytree


def loss_of(output: Any) -> Tensor | None:
    """The output itself if it is a scalar, else the sum of all its tensors that require a gradient.

    None if there are none.
    """
    leaves = pytree.tree_leaves(output)
    losses = [leaf.sum() if leaf.dim() else leaf for leaf in leaves if _is_differentiable(leaf)]
    if len(losses) > 1:
        return torch.stack(losses).sum()
    return losses[0] if losses else None


def _is_differentiable(leaf: Any) -> bool:
    return isinstance(leaf, Tensor) and leaf.requires_grad
