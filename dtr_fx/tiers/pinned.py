"""Tensors of a device in pinned host memory, copied on two streams of their own.  Not tried on a device."""

from __future__ import annotations

import threading
from collections import defaultdict, deque
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from dtr_fx.errors import OffloadError, OptionError
from dtr_fx.tiers.store import Slot, Usage, bytes_of, check_limit, span
from dtr_fx.tiers.tier import Tier
from dtr_fx.units import format_bytes

_SAME_MEMORY = ("cpu", "mps", "meta")


def check_device(tier: Tier, device: torch.device) -> None:
    """OptionError if tensors of the device cannot be moved to the tier, or it saves nothing."""
    if tier.kind == "disk":
        if device.type != "cpu":
            raise OptionError(
                f"offload={str(tier)!r} takes tensors of the CPU, and these are on {device}: write 'host'"
            )
        return
    is_unified = device.type == "cuda" and torch.cuda.is_available() and _is_integrated(device)
    if device.type in _SAME_MEMORY or is_unified:
        raise OptionError(
            f"offload={str(tier)!r}: {device} has its tensors in host memory, so moving them there frees "
            "nothing; write " + ("'disk'" if device.type == "cpu" else "a budget without offload")
        )


def _is_integrated(device: torch.device) -> bool:
    return bool(torch.cuda.get_device_properties(device).is_integrated)


@dataclass
class _Buffer:
    """Pinned bytes, and the last copy to or from them."""

    memory: Tensor
    last: torch.Event | None = None


class _Copy(NamedTuple):
    """A copy of a tensor that the device may still be about."""

    tensor: Tensor
    stream: torch.Stream
    ended: torch.Event


class PinnedSlot(Slot):
    """A buffer, its ``place``, for one tensor."""

    written: torch.Event
    leaving: _Copy | None  # until it is waited for
    reads: dict[int, _Copy]  # by the address of what is filled

    def __del__(self) -> None:
        # What nobody waited for may be freed now, and is used again when its copy has ended.
        for copy in (*filter(None, [self.leaving]), *self.reads.values()):
            copy.tensor.record_stream(copy.stream)
        super().__del__()


class Pinned:
    """Buffers of the sizes that PyTorch pins, powers of two, kept for further use.

    ``torch.ops.ao.offload`` of torch 2.14 is not used: it knows no limit, and contiguous tensors only.
    """

    def __init__(self, tier: Tier) -> None:
        self._tier = tier
        self._lock = threading.Lock()
        self._free: defaultdict[int, list[_Buffer]] = defaultdict(list)
        self._dead: deque[tuple[_Buffer, int]] = deque()
        self._now = self._peak = self._held = 0
        self._streams: dict[tuple[torch.device, str], torch.Stream] = {}

    def offload(self, tensor: Tensor) -> PinnedSlot:
        try:
            check_device(self._tier, tensor.device)
        except OptionError as error:
            raise OffloadError(str(error)) from None
        slot = self._take(span(tensor))
        stream = self._stream(tensor.device, "out")
        if slot.place.last is not None:
            stream.wait_event(slot.place.last)  # it may still be on its way from the buffer
        with stream:
            slot.place.memory[: slot.nbytes].copy_(bytes_of(tensor), non_blocking=True)
        slot.place.last = slot.written = stream.record_event()
        slot.leaving = _Copy(tensor, stream, slot.written)
        return slot

    def wait_offload(self, slot: PinnedSlot) -> None:
        """The device waits, not the program: what it runs afterwards may use the tensor's memory."""
        if slot.leaving is not None:
            _current(slot.leaving.tensor.device).wait_event(slot.leaving.ended)
            slot.leaving = None

    def reload(self, slot: PinnedSlot, tensor: Tensor) -> None:
        if span(tensor) != slot.nbytes:
            raise OffloadError(f"{slot.nbytes} bytes were moved out, and {span(tensor)} are asked back")
        stream = self._stream(tensor.device, "back")
        stream.wait_event(slot.written)
        with stream:
            bytes_of(tensor).copy_(slot.place.memory[: slot.nbytes], non_blocking=True)
        slot.place.last = stream.record_event()
        slot.reads[tensor.data_ptr()] = _Copy(tensor, stream, slot.place.last)

    def wait_reload(self, slot: PinnedSlot, tensor: Tensor) -> None:
        """The device waits, not the program: what it runs afterwards may read the tensor."""
        if tensor.data_ptr() not in slot.reads:  # a copy of what was made for it
            self.reload(slot, tensor)
        _current(tensor.device).wait_event(slot.reads.pop(tensor.data_ptr()).ended)

    def usage(self) -> Usage:
        with self._lock:
            self._collect()
            return Usage(self._now, self._peak, self._held)

    def close(self) -> None:
        with self._lock:
            self._collect()
            self._give_up_free()

    def _take(self, nbytes: int) -> PinnedSlot:
        with self._lock:
            self._collect()
            size = self._tier.taken_by(nbytes)
            check_limit(self._tier, self._now, size)
            slot = PinnedSlot(self, self._buffer(size), nbytes, self._dead)
            slot.leaving, slot.reads = None, {}
            self._now += size
            self._peak = max(self._peak, self._now)
            return slot

    def _buffer(self, size: int) -> _Buffer:
        if self._free[size]:
            return self._free[size].pop()
        if self._tier.limit is not None and self._held + size > self._tier.limit:
            self._give_up_free()
        try:
            memory = torch.empty(size, dtype=torch.uint8, pin_memory=True)
        except RuntimeError as error:
            raise OffloadError(
                f"{format_bytes(size)} of host memory cannot be pinned beside {format_bytes(self._held)} of "
                f"offload={str(self._tier)!r}: {error}; give a limit, as in offload='16GiB'"
            ) from None
        self._held += size
        return _Buffer(memory)

    def _collect(self) -> None:
        while self._dead:
            buffer, _ = self._dead.popleft()
            self._now -= buffer.memory.nbytes
            self._free[buffer.memory.nbytes].append(buffer)

    def _give_up_free(self) -> None:
        for buffer in (buffer for buffers in self._free.values() for buffer in buffers):
            if buffer.last is not None:
                buffer.last.synchronize()
            self._held -= buffer.memory.nbytes
        self._free.clear()
        if hasattr(torch.accelerator, "empty_host_cache"):
            torch.accelerator.empty_host_cache()

    def _stream(self, device: torch.device, direction: str) -> torch.Stream:
        """The stream of a direction, which goes on when the device has run all that it was given so far."""
        with self._lock:
            if (device, direction) not in self._streams:
                self._streams[device, direction] = torch.Stream(device)
            stream = self._streams[device, direction]
        stream.wait_stream(_current(device))
        return stream


def _current(device: torch.device) -> torch.Stream:
    return torch.accelerator.current_stream(device)
