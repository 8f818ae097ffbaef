"""Operators that wait for their inputs, and the storages that they lock meanwhile.

The paper recurses (Fig. 1, Rematerialize); here each waiting operator is a frame on a stack.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence

from .graph import Frame, Operator, Storage, Tensor
from .memory import Memory


class Waiting(Memory):
    """The frames of a run, the operator that runs next on top."""

    @abstractmethod
    def rematerialize(self, wanted: Sequence[Tensor]) -> Frame:
        """See ``figure1``."""

    def _touch(self, op: Operator) -> None:
        """Inputs count as accessed before they are rematerialized, an output after its first run."""
        clock = self.clock
        for storage in op.reads:
            storage.last_access = clock
            if storage.slot >= 0:
                self._pool.last_access[storage.slot] = clock

    def _hold_inputs(self, frame: Frame) -> list[Tensor]:
        """Lock the inputs that are resident; those that are not defined."""
        for storage in frame.op.reads:
            if storage.resident and not storage.pinned and storage not in frame.held:
                self._hold(storage, frame)
        return [tensor for tensor in frame.op.inputs if not tensor.defined]

    def _hold(self, storage: Storage, frame: Frame) -> None:
        storage.locks += 1
        self._locked[storage] = None
        frame.held.append(storage)

    def _unlock(self, storage: Storage) -> None:
        storage.locks -= 1
        if storage.locks == 0:
            del self._locked[storage]

    def _in_program_order(self, waiting: Frame, missing: Sequence[Tensor]) -> list[Frame]:
        """Frames for all that is missing up to what is defined, the program's first operator on top.

        A value is held from when it is there until the last of these operators has read it.
        """
        wanted: dict[Operator, list[Tensor]] = {}
        pending = list(missing)
        while pending:
            tensor = pending.pop()
            assert tensor.op is not None
            if tensor.op not in wanted:
                wanted[tensor.op] = []
                pending += [other for other in tensor.op.inputs if not other.defined]
            wanted[tensor.op].append(tensor)
        frames = [self.rematerialize(wanted[op]) for op in sorted(wanted, key=_by_number, reverse=True)]
        for frame in (waiting, *frames):
            self._hold_inputs(frame)
            for storage in frame.op.reads:
                if not storage.resident:
                    self._waiting.setdefault(storage, []).append(frame)
        return frames

    def _borrow(self, op: Operator) -> tuple[Storage, float] | None:
        """An input of an operator that waits, unlocked so that it can be evicted; the outermost first.

        The paper stops here, out of memory.  The waiting operator rematerializes the input again when
        its turn comes, at most twice per input, so that no two operators can starve each other forever.
        """
        for frame in self._frames[:-1]:
            if frame.lent >= 2 * len(frame.op.reads):
                continue
            for storage in frame.held:
                if storage.locks == 1 and storage.slot >= 0:
                    frame.held.remove(storage)
                    frame.lent += 1
                    self._unlock(storage)
                    return storage, math.inf
        return None


def _by_number(op: Operator) -> int:
    return op.id
