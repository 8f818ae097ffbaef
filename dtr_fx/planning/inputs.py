"""A model's example inputs: one tensor, positional arguments, or keyword arguments."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch

Inputs: TypeAlias = "torch.Tensor | tuple[Any, ...] | list[Any] | Mapping[str, Any]"


def call(model: Callable[..., Any], inputs: Inputs) -> Any:
    """The model's result on its inputs."""
    if isinstance(inputs, torch.Tensor):
        return model(inputs)
    return model(**inputs) if isinstance(inputs, Mapping) else model(*inputs)
