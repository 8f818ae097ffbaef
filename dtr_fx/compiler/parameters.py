"""The parameters of graphs that share a budget, and their gradients."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

from dtr_fx.passes.tensors import storage_bytes


class Parameters:
    """Parameters by their storages; one that several graphs read counts once.

    Bytes are those of the time: FSDP frees what it has gathered.
    """

    def __init__(self) -> None:
        self._known: dict[StorageWeakRef, weakref.ref[nn.Parameter]] = {}

    def learn(self, arguments: Iterable[Any]) -> bool:
        """Take up those among a graph's arguments; True if some are new."""
        self._known = {storage: ref for storage, ref in self._known.items() if ref() is not None}
        before = len(self._known)
        for argument in arguments:
            if isinstance(argument, nn.Parameter):
                for storage in storages([argument], argument.device):
                    self._known[storage] = weakref.ref(argument)
        return len(self._known) > before

    def update(self, others: Parameters) -> None:
        self._known.update(others._known)

    def among(self, storages: AbstractSet[StorageWeakRef]) -> frozenset[StorageWeakRef]:
        """Those storages that are parameters'."""
        return frozenset(self._known.keys() & storages)

    def elsewhere(
        self, own: AbstractSet[StorageWeakRef], later: AbstractSet[StorageWeakRef], device: torch.device
    ) -> int:
        """Bytes of all but a graph's own, with the gradients that are there, or are when it goes backward.

        By then graphs that ran later have made those of theirs.
        """
        total = 0
        for storage in self._known.keys() - own:
            parameter = self._known[storage]()
            if parameter is not None:
                has_gradient = parameter.grad is not None or (storage in later and parameter.requires_grad)
                total += storage_bytes(parameter, device) * (1 + has_gradient)
        return total

    @property
    def gradients(self) -> int:
        """How many have a gradient now."""
        found = (ref() for ref in self._known.values())
        return sum(parameter is not None and parameter.grad is not None for parameter in found)


def storages(values: Iterable[Any], device: torch.device) -> dict[StorageWeakRef, int]:
    """Bytes of the tensors' storages; a storage that several share counts once."""
    found = {}
    for value in values:
        if isinstance(value, Tensor):
            with contextlib.suppress(NotImplementedError, RuntimeError):  # it has no storage
                found[StorageWeakRef(value.untyped_storage())] = storage_bytes(value, device)
    return found


def device_of(arguments: Sequence[Any]) -> torch.device:
    """The first accelerator among the arguments' devices, else the CPU."""
    devices = [argument.device for argument in arguments if isinstance(argument, Tensor)]
    accelerators = (device for device in devices if device.type not in ("cpu", "meta"))
    return next(accelerators, torch.device("cpu"))
