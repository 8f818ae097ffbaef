"""Tensors of a CPU in a file.  It has no name, so that nothing stays of it, however the process ends."""

from __future__ import annotations

import errno
import os
import queue
import tempfile
import threading
from collections import deque
from collections.abc import Callable
from typing import IO, Any, TypeAlias

from torch import Tensor

from dtr_fx.errors import OffloadError
from dtr_fx.tiers.store import Slot, Usage, bytes_of, check_limit, span
from dtr_fx.tiers.tier import Tier
from dtr_fx.units import format_bytes

_Part: TypeAlias = "tuple[int, int]"  # the first byte, and how many
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
    """Parts of the file, ``place``, filled one after the other."""

    written: Copy
    reads: dict[int, Copy]  # by the address of what is filled


class Disk:
    """A file in the tier's folder, made with the first copy, and a thread for each direction."""

    def __init__(self, tier: Tier) -> None:
        self._tier = tier
        self._lock = threading.Lock()
        self._space = _Space()
        self._dead: deque[tuple[list[_Part], int]] = deque()
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
            taken = self._tier.taken_by(nbytes)
            check_limit(self._tier, self._now, taken)
            self._now += taken
            self._peak = max(self._peak, self._now)
            return DiskSlot(self, self._space.take(taken), nbytes, self._dead)

    def _collect(self) -> None:
        while self._dead:
            parts, nbytes = self._dead.popleft()
            self._now -= self._tier.taken_by(nbytes)
            self._space.give_back(parts)

    def _write(self, slot: Slot, tensor: Tensor) -> None:
        try:
            file = self._with_room_for(max(map(sum, slot.place), default=0))
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
                    os.ftruncate(file, self._reserved)  # ext4 keeps what it had
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


def _move(
    call: Callable[[int, list[memoryview], int], int], file: int, tensor: Tensor, parts: list[_Part]
) -> None:
    """Write or read all of a tensor's memory: one call may do less than it is asked."""
    memory = bytes_of(tensor).numpy().data
    for offset, size in parts:
        part, memory = memory[:size], memory[size:]
        while part:
            done = call(file, [part], offset)
            if not done:
                raise OSError(errno.EIO, "the file has ended early")
            part, offset = part[done:], offset + done


class _Space:
    """Parts of the file: the best fit among those given back, else several, only then its end, which grows.

    So it is never longer than what was out at one time, in whole pages.
    """

    def __init__(self) -> None:
        self._free: list[_Part] = []  # in order, no two side by side
        self._end = 0

    def take(self, nbytes: int) -> list[_Part]:
        parts = []
        while nbytes and self._free:
            fitting = [size for _, size in self._free if size >= nbytes]
            wanted = min(fitting) if fitting else max(size for _, size in self._free)
            at = next(at for at, (_, size) in enumerate(self._free) if size == wanted)
            offset, size = self._free.pop(at)
            taken = min(size, nbytes)
            if size > taken:
                self._free.insert(at, (offset + taken, size - taken))
            parts.append((offset, taken))
            nbytes -= taken
        if nbytes:
            parts.append((self._end, nbytes))
            self._end += nbytes
        return parts

    def give_back(self, parts: list[_Part]) -> None:
        merged: list[_Part] = []
        for offset, size in sorted(self._free + parts):
            if merged and sum(merged[-1]) == offset:
                offset, size = merged[-1][0], merged.pop()[1] + size
            merged.append((offset, size))
        self._free = merged
