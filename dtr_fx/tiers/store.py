"""What the stores of all tiers share: slots, which tensors are moved to, and the bytes that they hold."""

from __future__ import annotations

import itertools
import sys
import weakref
from collections import deque
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from dtr_fx.errors import OffloadError
from dtr_fx.tiers.tier import Tier
from dtr_fx.units import format_bytes


@dataclass(frozen=True)
class Usage:
    """Bytes that tensors take there ``now``, and took at most (``peak``); ``held`` of disk or host memory."""

    now: int
    peak: int
    held: int


class Slot(bytearray):
    """A ``place`` for the bytes of one tensor, given back to ``dead`` when nothing refers to it.

    As a buffer it is its number, and that is a tensor's memory, its handle's: with the handle dies the slot.
    Slots die wherever garbage is collected, in the midst of a store's work, too: they are only noted.
    """

    _numbers = itertools.count(1)

    def __init__(self, store: Store, place: Any, nbytes: int, dead: deque[tuple[Any, int]]) -> None:
        number = next(self._numbers)
        super().__init__(number.to_bytes(8, sys.byteorder))
        self.store, self.place, self.nbytes, self._dead = store, place, nbytes, dead
        SLOTS[number] = self

    def __del__(self) -> None:
        self._dead.append((self.place, self.nbytes))


SLOTS: weakref.WeakValueDictionary[int, Slot] = weakref.WeakValueDictionary()


class Store(Protocol):
    """The tensors that were moved to one tier.  What cannot be is an OffloadError, where it is waited for."""

    def offload(self, tensor: Tensor) -> Slot:
        """Start to copy a tensor out."""

    def wait_offload(self, slot: Any) -> None:
        """Return when the tensor may be freed."""

    def reload(self, slot: Any, tensor: Tensor) -> None:
        """Start to fill a tensor."""

    def wait_reload(self, slot: Any, tensor: Tensor) -> None:
        """Return when the tensor may be read."""

    def usage(self) -> Usage:
        """The bytes that are out."""

    def close(self) -> None:
        """Give back what is held, when no copy is under way."""


def check_limit(tier: Tier, taken: int, nbytes: int) -> None:
    """OffloadError if a tensor of so many bytes does not fit beside what is taken."""
    if tier.limit is not None and taken + nbytes > tier.limit:
        raise OffloadError(
            f"{format_bytes(nbytes)} cannot be moved out: {format_bytes(taken)} of the "
            f"{format_bytes(tier.limit)} of offload={str(tier)!r} are taken; raise that limit, or run fewer "
            "steps side by side"
        )


def span(tensor: Tensor) -> int:
    """The bytes from a tensor's first element to its last: what ``empty_strided`` gives it."""
    if not tensor.numel():
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))
    return (last + 1) * tensor.element_size()


def bytes_of(tensor: Tensor) -> Tensor:
    """The memory of a tensor from its first element to its last, as bytes."""
    offset = tensor.storage_offset() * tensor.element_size()
    memory = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    return memory.set_(tensor.untyped_storage(), offset, (span(tensor),), (1,))
