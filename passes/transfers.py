"""Offload, Reload and Wait nodes: what a plan moves out of the device's memory, and brings back.

    handle = offload(value, tier)          the copy out starts
    moved = wait_offload(handle, value)    it has ended; the value may be freed
    value = reload(moved, size, …)         memory for the value, and the copy back starts
    value = wait_reload(value, moved)      it has ended; the value may be read

Plain functions, each of which gives what the next one takes: dead code and partitions follow the values.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dtr_fx.tiers import operators as tiers


def offload(value: Tensor, tier: str) -> Tensor:
    """Start to move ``value`` out; the handle is a tensor on the CPU that takes no memory to speak of."""
    handle: Tensor = tiers.offload(value, tier)
    return handle


def wait_offload(handle: Tensor, value: Tensor) -> Tensor:
    """Wait until ``value`` has been moved out."""
    tiers.wait_offload(handle, value)
    return handle


def reload(
    handle: Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: str
) -> Tensor:
    """Start to bring back what was moved out."""
    value: Tensor = tiers.reload(handle, size, stride, dtype, torch.device(device))
    return value


def wait_reload(value: Tensor, handle: Tensor) -> Tensor:
    """Wait until ``value`` is there."""
    tiers.wait_reload(value, handle)
    return value
