"""Tensors of a CPU in a file.  It has no name, so that nothing stays of it, however the process ends."""

from __future__ import annotations

import errno
import os
import queue
import tempfile
import threading
from bisect import insort
from collections import deque
from collections.abc import Callable
from typing import IO, Any

from torch import Tensor

from dtr_fx.errors import OffloadError
from dtr_fx.tiers.store import Slot, Usage, bytes_of, check_limit, span
from dtr_fx.tiers.tier import Tier
from dtr_fx.units import format_bytes

_PAGE = 4096  # bytes: a copy that begins at a multiple is faster
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_CANNOT_RESERVE = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class Copy:
    """One copy out or back.  Until it has ended it keeps slot and tensor."""

    def __init__(self, move: Callable[[Slot, Tensor], None], slot: Slot, tensor: Tensor) -> None:
        self._left: list[Any] = [move, slot, tensor]
        self._ended = threading.Event()
        self._failure = ""

    def run(self) -> None:
        """Copy, and let go of the tensor before anyone who waits goes on."""
        self._failure = self._run()
        self._left.clear()
        self._ended.set()

    def _run(self) -> str:
        # An error would keep the frames that it passed, and with them the tensor: its text is enough.
        move, *operands = self._left
        try:
            move(*operands)
        except Exception as error:
            return str(error) if isinstance(error, OffloadError) else f"{type(error).__name__}: {error}"
        return ""

    def wait(self) -> None:
        """Return when the copy has ended; OffloadError if it failed."""
        self._ended.wait()
        if self._failure:
            raise OffloadError(self._failure)


class _Channel:
    """A thread that makes one copy after the other, started with the first."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._copies: queue.SimpleQueue[Copy | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def put(self, copy: Copy) -> Copy:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
        self._copies.put(copy)
        return copy

    def close(self) -> None:
        with self._lock:
            if self._thread is not None:
                self._copies.put(None)
                self._thread.join()
                self._thread = None

    def _run(self) -> None:
        while (copy := self._copies.get()) is not None:
            copy.run()
            del copy


class DiskSlot(Slot):
    """A part of the file; ``place`` is its first byte."""

    written: Copy
    reads: dict[int, Copy]  # by the address of what is filled


class Disk:
    """A file in the tier's folder, made with the first copy, and a thread for each direction."""

    def __init__(self, tier: Tier) -> None:
        self._tier = tier
        self._lock = threading.Lock()
        self._space = _Space()
        self._dead: deque[tuple[int, int]] = deque()
        self._now = self._peak = 0
        self._file: IO[bytes] | None = None
        self._reserved = 0
        self._out, self._back = _Channel("dtr_fx offload"), _Channel("dtr_fx reload")

    def offload(self, tensor: Tensor) -> DiskSlot:
        if tensor.device.type != "cpu":
            raise OffloadError(
                f"offload={str(self._tier)!r} takes tensors of the CPU, and this one is on {tensor.device}: "
                "write 'host'"
            )
        slot = self._take(span(tensor))
        slot.written, slot.reads = Copy(self._write, slot, tensor), {}
        self._out.put(slot.written)
        return slot

    def wait_offload(self, slot: DiskSlot) -> None:
        slot.written.wait()

    def reload(self, slot: DiskSlot, tensor: Tensor) -> None:
        slot.reads[tensor.data_ptr()] = self._start_read(slot, tensor)

    def wait_reload(self, slot: DiskSlot, tensor: Tensor) -> None:
        # A compiler may have put a copy in the place of what was made for it.
        (slot.reads.pop(tensor.data_ptr(), None) or self._start_read(slot, tensor)).wait()

    def _start_read(self, slot: DiskSlot, tensor: Tensor) -> Copy:
        return self._back.put(Copy(self._read, slot, tensor))

    def usage(self) -> Usage:
        with self._lock:
            self._collect()
            return Usage(self._now, self._peak, self._reserved)

    def close(self) -> None:
        self._out.close()
        self._back.close()
        with self._lock:
            if self._file is not None:
                self._file.close()
            self._file, self._reserved = None, 0

    def _take(self, nbytes: int) -> DiskSlot:
        with self._lock:
            self._collect()
            check_limit(self._tier, self._now, nbytes)
            self._now += nbytes
            self._peak = max(self._peak, self._now)
            return DiskSlot(self, self._space.take(nbytes), nbytes, self._dead)

    def _collect(self) -> None:
        while self._dead:
            offset, nbytes = self._dead.popleft()
            self._now -= nbytes
            self._space.give_back(offset, nbytes)

    def _write(self, slot: Slot, tensor: Tensor) -> None:
        try:
            file = self._with_room_for(slot.place + _whole_pages(slot.nbytes))
            _move(os.pwritev, file, tensor, slot.place)
        except OSError as error:
            raise OffloadError(self._explain(error, "write", slot.nbytes)) from None

    def _read(self, slot: Slot, tensor: Tensor) -> None:
        assert isinstance(slot, DiskSlot)
        slot.written.wait()
        if span(tensor) != slot.nbytes:
            raise OffloadError(f"{slot.nbytes} bytes were moved out, and {span(tensor)} are asked back")
        try:
            _move(os.preadv, self._opened().fileno(), tensor, slot.place)
        except OSError as error:
            raise OffloadError(self._explain(error, "read", slot.nbytes)) from None

    def _opened(self) -> IO[bytes]:
        with self._lock:
            if self._file is None:
                self._file = tempfile.TemporaryFile(dir=self._tier.folder, buffering=0)  # noqa: SIM115
            return self._file

    def _with_room_for(self, end: int) -> int:
        """The file, as long as it has to be; only the thread that writes comes here."""
        file = self._opened().fileno()
        if end > self._reserved:
            try:
                if hasattr(os, "posix_fallocate"):  # macOS has none
                    os.posix_fallocate(file, self._reserved, end - self._reserved)
            except OSError as error:
                if error.errno not in _CANNOT_RESERVE:
                    raise
            self._reserved = end
        return file

    def _explain(self, error: OSError, verb: str, nbytes: int) -> str:
        folder = self._tier.folder
        if error.errno in _FULL:
            advice = f"free some of the disk, or name another folder, as in offload={'/a/folder'!r}"
        elif error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EROFS):
            advice = f"make the folder, or name another, as in offload={'/a/folder'!r}"
        else:
            advice = "look at the disk, or train without offload"
        return (
            f"offload={str(self._tier)!r} cannot {verb} {format_bytes(nbytes)} in {folder}: "
            f"{error.strerror}; {advice}"
        )


def _move(call: Callable[[int, list[memoryview], int], int], file: int, tensor: Tensor, offset: int) -> None:
    """Write or read all of a tensor's memory: one call may do a part of it."""
    memory = bytes_of(tensor).numpy().data
    while memory:
        done = call(file, [memory], offset)
        if not done:
            raise OSError(errno.EIO, "the file has ended early")
        memory, offset = memory[done:], offset + done


class _Space:
    """Offsets, from 0 up: best fit among those given back, else at the end, which grows."""

    def __init__(self) -> None:
        self._free: list[tuple[int, int]] = []  # offset and bytes, in order, no two side by side
        self._end = 0

    def take(self, nbytes: int) -> int:
        needed = _whole_pages(nbytes)
        fitting = [piece for piece in self._free if piece[1] >= needed]
        if fitting:
            offset, size = min(fitting, key=lambda piece: piece[1])
            self._free.remove((offset, size))
            if size > needed:
                insort(self._free, (offset + needed, size - needed))
            return offset
        offset = self._end
        if self._free and sum(self._free[-1]) == self._end:
            offset, _ = self._free.pop()
        self._end = offset + needed
        return offset

    def give_back(self, offset: int, nbytes: int) -> None:
        insort(self._free, (offset, _whole_pages(nbytes)))
        merged: list[tuple[int, int]] = []
        for start, size in self._free:
            if merged and sum(merged[-1]) == start:
                start, size = merged[-1][0], merged.pop()[1] + size
            merged.append((start, size))
        self._free = merged


def _whole_pages(nbytes: int) -> int:
    return max(1, -(-nbytes // _PAGE)) * _PAGE
