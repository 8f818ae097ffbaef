"""``card``: a device in software, whose memory is the host's and whose operators are those of the CPU.

Its tensors are no CPU tensors: PyTorch dispatches, traces and differentiates them as those of an accelerator
that was registered from outside (the key ``PrivateUse1``).  Every storage is a block of a
``CachingAllocator`` from when an operator returns it to when the last tensor lets it go, so that
``memory_allocated`` and ``memory_reserved`` are, by its rules, those of a CUDA card that runs the same
operators.  Its generator is its own.

What it cannot show: kernels, their times and their temporaries; work that goes on beside the program, as all
runs at once; memory that is pinned.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils import backend_registration as registration
from torch.utils._pytree import tree_flatten, tree_map

from dtr_fx.runtime.caching_allocator import Block, CachingAllocator

aten = torch.ops.aten

NAME = "card"
_CPU = torch.device("cpu")
_HERE = torch.device("privateuseone", 0)  # which is what it is called until it is registered
_TOTAL = 80 * 2**30
_MAKE_STORAGE = "_construct_storage_from_data_pointer"
_ON_HOST = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)


class _Memory:
    """The storages of the card, by the addresses of the host's memory that they have."""

    def __init__(self) -> None:
        self.allocator = CachingAllocator()
        self._blocks: dict[int, Block] = {}

    def adopt(self, host: torch.UntypedStorage) -> torch.UntypedStorage:
        """A storage of the card, in memory that is the host's; it keeps that until it dies."""
        nbytes, address = host.nbytes(), host.data_ptr()
        storage: torch.UntypedStorage = getattr(torch._C, _MAKE_STORAGE)(address, _HERE, nbytes)
        block = self.allocator.malloc(nbytes) if nbytes else None
        weakref.finalize(storage, self._free, self.allocator, block, host).atexit = False
        return storage

    @staticmethod
    def _free(allocator: CachingAllocator, block: Block | None, host: torch.UntypedStorage) -> None:
        if block is not None:
            allocator.free(block)


class Module(registration._DummyBackendModule):
    """What ``torch.card`` is."""

    def __init__(self) -> None:
        self._state = torch.Generator().manual_seed(0).get_state()
        self._memory = _Memory()

    def manual_seed_all(self, seed: int) -> None:
        self._state = torch.Generator().manual_seed(seed).get_state()

    def get_rng_state(self, device: Any = None) -> torch.Tensor:
        return self._state.clone()

    def set_rng_state(self, state: torch.Tensor, device: Any = None) -> None:
        self._state = state.clone()

    def synchronize(self, device: Any = None) -> None:
        """Nothing is under way."""

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        return _TOTAL - self.memory_reserved(), _TOTAL

    def memory_allocated(self, device: Any = None) -> int:
        return self._memory.allocator.allocated

    def memory_reserved(self, device: Any = None) -> int:
        return self._memory.allocator.reserved

    def max_memory_allocated(self, device: Any = None) -> int:
        return self._memory.allocator.peak_allocated

    def drawing(self, run: Callable[[], Any]) -> Any:
        """Run what draws with the generator of the card in the place of the CPU's."""
        of_host = torch.get_rng_state()
        torch.set_rng_state(self._state)
        try:
            return run()
        finally:
            self._state = torch.get_rng_state()
            torch.set_rng_state(of_host)

    def start_anew(self, **settings: Any) -> CachingAllocator:
        """An empty allocator for all that is made from now on."""
        self._memory.allocator = CachingAllocator(**settings)
        return self._memory.allocator


def install() -> Module:
    """Register the device, once in a process."""
    if not hasattr(torch, NAME):
        registration._setup_privateuseone_for_python_backend(NAME, backend_module=Module())
        library = torch.library.Library("_", "IMPL")
        library.fallback(_on_host, "PrivateUse1")
        own = torch.library.Library("aten", "IMPL")
        for name, function in {**_composites(), **_OWN}.items():
            own.impl(name, function, "PrivateUse1")
        _KEPT.extend([library, own])
    module: Module = getattr(torch, NAME)
    return module


_KEPT: list[Any] = []  # a library takes back what it registered when it goes


def _is_here(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == NAME


def _host_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory, as a tensor of the CPU; one without memory may be given some."""
    whole = tensor.untyped_storage()
    if not whole.nbytes():
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
    storage = getattr(torch._C, _MAKE_STORAGE)(whole.data_ptr(), _CPU, whole.nbytes())
    layout = tensor.storage_offset(), tensor.shape, tensor.stride()
    return torch.empty(0, dtype=tensor.dtype).set_(storage, *layout)


def _card_tensor(storage: torch.UntypedStorage, like: torch.Tensor) -> torch.Tensor:
    """A tensor of the card in a storage of the card."""
    made = torch._C._acc.create_empty_tensor((0,), like.dtype)
    layout = like.storage_offset(), list(like.shape), list(like.stride())
    return _set(made, storage, *layout)


def _set(tensor: torch.Tensor, source: Any, *layout: Any) -> torch.Tensor:
    op = aten.set_.source_Storage_storage_offset if layout else aten.set_.source_Storage
    return op.redispatch(_ON_HOST, tensor, source, *layout)


def _on_host(op: Any, *args: Any, **kwargs: Any) -> Any:
    """Run an operator on the CPU; what it makes is of the card, in the memory that it was made in."""
    given = [value for value in tree_flatten((args, kwargs))[0] if _is_here(value)]
    hosts = {id(tensor): _host_tensor(tensor) for tensor in given}
    same = {id(hosts[id(tensor)]): tensor for tensor in given}
    made = {tensor.untyped_storage().data_ptr(): tensor.untyped_storage() for tensor in given}

    def to_host(value: Any) -> Any:
        if isinstance(value, torch.device):
            return _CPU if value.type == NAME else value
        return hosts.get(id(value), value) if isinstance(value, torch.Tensor) else value

    def to_card(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) in same:
            return same[id(value)]
        return _card_tensor(storage_of(value), value)

    def storage_of(host: torch.Tensor) -> torch.UntypedStorage:
        """What is in memory that an argument has shares its storage."""
        memory = host.untyped_storage()
        if not memory.nbytes() or memory.data_ptr() not in made:
            made[memory.data_ptr()] = module._memory.adopt(memory)
        return made[memory.data_ptr()]

    module: Module = getattr(torch, NAME)
    args, kwargs = tree_map(to_host, (args, kwargs))
    is_random = torch.Tag.nondeterministic_seeded in op.tags
    with torch.no_grad():
        result = module.drawing(lambda: op(*args, **kwargs)) if is_random else op(*args, **kwargs)
    for tensor in given:
        host = hosts[id(tensor)]
        if host.untyped_storage().nbytes() and not tensor.untyped_storage().nbytes():  # resized
            _set(tensor, storage_of(host), host.storage_offset(), list(host.shape), list(host.stride()))
    return tree_map(to_card, result)


def _composites() -> dict[str, Callable[..., Any]]:
    """Operators that other devices compose of others, by a rule that would come before the fallback."""
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    rules = "CompositeExplicitAutograd", "CompositeExplicitAutogradNonFunctional"
    found = {}
    for full in torch._C._dispatch_get_all_op_names():
        space, _, name = full.partition("::")
        if space == "aten" and has(full, "CPU") and any(has(full, rule) for rule in rules):
            packet, _, overload = name.partition(".")
            found[name] = partial(_on_host, getattr(getattr(aten, packet), overload or "default"))
    return found


def _copy_from(source: torch.Tensor, target: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    sides = (_host_tensor(side) if _is_here(side) else side for side in (target, source))
    next(sides).copy_(next(sides))
    return target


def _convolution(*args: Any) -> Any:
    return _on_host(aten.convolution.default, *args)


def _convolution_backward(grad: Any, input: Any, weight: Any, *args: Any) -> Any:
    *geometry, mask = args
    return _on_host(aten.convolution_backward.default, grad, input, weight, None, *geometry, mask)


_OWN = {
    "_copy_from": _copy_from,
    "set_.source_Storage_storage_offset": _set,
    "set_.source_Storage": _set,
    "convolution_overrideable": _convolution,
    "convolution_backward_overrideable": _convolution_backward,
}
