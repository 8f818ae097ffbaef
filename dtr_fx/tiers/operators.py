"""The operators that move tensors out of a device's memory and back, beside what it computes.

    handle = offload(t, tier)         the copy out starts; the handle is a tensor on the CPU, of 8 bytes
    wait_offload(handle, t)           it has ended: t may be freed
    t = reload(handle, size, ...)     memory for t, and the copy back starts; as often as wanted
    wait_reload(t, handle)            it has ended: t may be read

A tensor is kept until its copy has ended, waited for or not.  What was moved out is given up when the memory
of its handle is freed.  What goes wrong is an OffloadError in the wait; autograd records nothing of it.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx.node import has_side_effect

from dtr_fx.errors import OffloadError
from dtr_fx.tiers.disk import Disk
from dtr_fx.tiers.forms import tier_of
from dtr_fx.tiers.pinned import Pinned
from dtr_fx.tiers.store import SLOTS, Slot, Store, Usage
from dtr_fx.tiers.tier import Tier
from dtr_fx.torch_private import OpOverload

_stores: dict[str, Store] = {}
_lock = threading.Lock()


def make_store(tier: Tier) -> Store:
    """A store of one's own, with a file or buffers of its own."""
    return Disk(tier) if tier.kind == "disk" else Pinned(tier)


def usage(tier: Tier | str) -> Usage:
    """The bytes that this process has in a tier."""
    return _store(str(tier)).usage()


def _store(text: str) -> Store:
    if text not in _stores:
        with _lock:
            _stores.setdefault(text, make_store(tier_of(text)))
    return _stores[text]


def _slot(handle: Tensor) -> Slot:
    slot = SLOTS.get(int(handle))
    if slot is None:
        raise OffloadError(
            "this process has not moved out what the handle stands for: run forward and backward pass in one "
            "process, and keep the handle itself"
        )
    return slot


def _forget() -> None:
    """In a child, which has no threads, and shares its parent's file."""
    global _lock
    _lock = threading.Lock()
    _stores.clear()
    SLOTS.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


# --- the operators -----------------------------------------------------------------------------------------


def _offload(t: Tensor, tier: str) -> Tensor:
    return torch.frombuffer(_store(tier).offload(t.detach()), dtype=torch.int64)


def _wait_offload(handle: Tensor, t: Tensor) -> None:
    slot = _slot(handle)
    slot.store.wait_offload(slot)


def _reload(
    handle: Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: torch.device
) -> Tensor:
    slot = _slot(handle)
    tensor = torch.empty_strided(size, stride, dtype=dtype, device=device)
    slot.store.reload(slot, tensor)
    return tensor


def _wait_reload(t: Tensor, handle: Tensor) -> None:
    slot = _slot(handle)
    slot.store.wait_reload(slot, t)


def _fake_offload(t: Tensor, tier: str) -> Tensor:
    return torch.empty(1, dtype=torch.int64)


def _fake_reload(
    handle: Tensor, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype, device: torch.device
) -> Tensor:
    return torch.empty_strided(size, stride, dtype=dtype, device=device)


def _fake_wait(*tensors: Tensor) -> None:
    pass


def _register(name: str, schema: str, run: Callable[..., Any], fake: Callable[..., Any]) -> OpOverload:
    # ``torch.library.custom_op`` would take five times as long for each call.
    torch.library.define(f"dtr_fx::{name}", schema, tags=(torch.Tag.needs_exact_strides,))
    torch.library.impl(f"dtr_fx::{name}", "CompositeExplicitAutograd", run)
    torch.library.register_fake(f"dtr_fx::{name}", fake)
    operator: OpOverload = getattr(torch.ops.dtr_fx, name).default
    return operator


offload = _register("offload", "(Tensor t, str tier) -> Tensor", _offload, _fake_offload)
wait_offload = has_side_effect(
    _register("wait_offload", "(Tensor handle, Tensor t) -> ()", _wait_offload, _fake_wait)
)
reload = _register(
    "reload",
    "(Tensor handle, SymInt[] size, SymInt[] stride, ScalarType dtype, Device device) -> Tensor",
    _reload,
    _fake_reload,
)
wait_reload = has_side_effect(
    _register("wait_reload", "(Tensor(a!) t, Tensor handle) -> ()", _wait_reload, _fake_wait)
)
