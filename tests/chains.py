"""A small program that no budget below its peak fits without recomputation."""

from __future__ import annotations

from torch import Tensor


def chain(x: Tensor) -> Tensor:
    """Six values of x's size, each read again at the end, the last first."""
    values = [x]
    for _ in range(6):
        values.append(values[-1].sin())
    total = values[-1].sum()
    for value in reversed(values[1:-1]):
        total = total + value.exp().sum()
    return total
