"""A step of any model: its example inputs, and a loss where none is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

from dtr_fx.torch_private import pytree

# One tensor, positional arguments, or keyword arguments.
Inputs: TypeAlias = "Tensor | tuple[Any, ...] | list[Any] | Mapping[str, Any]"


def call(model: Callable[..., Any], inputs: Inputs) -> Any:
    if isinstance(inputs, Tensor):
        return model(inputs)
    return model(**inputs) if isinstance(inputs, Mapping) else model(*inputs)


def loss_of(output: Any) -> Tensor | None:
    """The output if it is a scalar, else the sum of its tensors that require a gradient; None without any."""
    leaves = [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor) and leaf.requires_grad]
    losses = [leaf.sum() if leaf.dim() else leaf for leaf in leaves]
    if len(losses) > 1:
        return torch.stack(losses).sum()
    return losses[0] if losses else None
