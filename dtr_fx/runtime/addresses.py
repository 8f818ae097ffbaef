"""Where storages lie, and heuristics that look at it: an eviction is worth most where it leaves a large gap.

Coop (Zhang et al., *Coop: Memory is not a Commodity*, NeurIPS 2023) evicts windows of storages that lie side
by side.  Its budget is one arena.  Here the budget bounds the bytes in use, and the arena is the large
segment of PyTorch's allocator: once as much as the budget is reserved, it grows only where no window can be
evicted.  Left out: Coop places dear and cheap operators at opposite ends, and PyTorch's allocator does not.

MegEngine's score counts the free bytes on both sides of a storage as its own.  Left out: a millisecond that
it adds to costs and times, since units differ, and that it leaves storages below a MiB alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from .graph import Operator, Storage, Tensor
from .memory import Memory

# By how much each recompute makes a storage dearer for MegEngine.
_COMES_BACK = 1.0001


class Addressed(Memory):
    """The storages of a run in the blocks that ``allocator``, if there is one, serves them from."""

    def constant(self, size: int) -> Tensor:
        tensor = super().constant(size)
        self._place([tensor.storage])
        return tensor

    def _place(self, storages: Iterable[Storage], workspace: int = 0) -> None:
        """Serve what is to be filled; a workspace and what is resident already are free again at once."""
        if self.allocator is None:
            return
        passing = [workspace]
        for storage in storages:
            if storage.block is not None or storage.retired:
                passing.append(storage.size)
            elif storage.size:
                storage.block = self.allocator.malloc(storage.size, storage)
        for block in [self.allocator.malloc(nbytes) for nbytes in passing if nbytes]:
            self.allocator.free(block)

    def _free(self, storage: Storage) -> None:
        super()._free(storage)
        if self.allocator is not None and storage.block is not None:
            self.allocator.free(storage.block)
            storage.block = None

    def _choose(self, op: Operator) -> list[tuple[Storage, float]]:
        """What goes first, with its score: a storage, or a window of several; nothing where all is locked."""
        if self.heuristic.frees == "window":
            window = self._window(op)
            if window:
                return window
        elif self.heuristic.frees == "gap":
            self._measure_gaps()
        self._refresh()
        choice = self._pool.victim(self._score, self.heuristic.time, self._now, self._locked)
        choice = choice or self._borrow(op)
        return [] if choice is None else [choice]

    @property
    def _now(self) -> float:
        return self.base_cost if self.heuristic.time == "next_use" else self.clock

    def _measure_gaps(self) -> None:
        """``m`` as MegEngine has it: what an eviction leaves free, less for what often comes back."""
        for slot, storage in enumerate(self._pool.members):
            assert storage.block is not None
            assert storage.root.op is not None
            self._pool.size[slot] = storage.block.gap / _COMES_BACK ** (storage.root.op.runs - 1)

    def _window(self, op: Operator) -> list[tuple[Storage, float]]:
        """The cheapest window for the largest thing that the operator allocates, if there is one."""
        from .windows import cheapest_window  # only here: one heuristic evicts windows

        assert self.allocator is not None
        self._refresh()
        scores = self._pool.score(self._score, self.heuristic.time, self._now, self._locked)

        def price(storage: Storage) -> float:
            return math.inf if storage.slot < 0 else float(scores[storage.slot])

        missing = math.ceil(self.used + op.allocates - self.budget)
        blocks = self.allocator.get_pool(_largest(op)).blocks()
        return [(each, price(each)) for each in cheapest_window(blocks, price, _largest(op), missing)]

    def _lacks_gap(self, op: Operator) -> bool:
        """True if a window is to be evicted though all fits: else more than the budget would be reserved."""
        if self.allocator is None or self.heuristic.frees != "window":
            return False
        nbytes = _largest(op)
        pool = self.allocator.get_pool(nbytes)
        gap = pool.free[-1][0] if pool.free else 0
        return not pool.is_small and gap < nbytes and self.allocator.reserved + nbytes > self.budget


def _largest(op: Operator) -> int:
    """The bytes of the largest thing that an operator allocates."""
    fresh = (tensor.storage for tensor in op.outputs if not tensor.storage.resident)
    return max([op.workspace, *(storage.size for storage in fresh)])
