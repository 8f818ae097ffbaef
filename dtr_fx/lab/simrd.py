"""The rules of the original artifact's simulator, to compare results with.

Source: uwsampl/dtr-prototype, folder simrd, runtime ``V2EagerOptimized``.  ``read_log(..., simrd=True)`` has
those by which it reads a log.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from operator import attrgetter
from typing import Any

import numpy as np

from dtr_fx.runtime import Heuristic, Runtime
from dtr_fx.runtime.graph import Frame, Operator, Storage, Tensor
from dtr_fx.runtime.heuristics import Score, Time
from dtr_fx.runtime.neighborhood import Evicted, Step, children, parents, track
from dtr_fx.runtime.pool import Pool
from dtr_fx.runtime.steps import RELEASED


class SimrdRuntime(Runtime):
    """Eager eviction as the original simulator has it; ``_Ordered`` and ``_Regions`` choose its victims.

    - A storage that nothing can ask for again stays evicted, and goes on counting in its neighbours' scores.
    - An operator that waits for its inputs has its outputs already, evicted, and a view its cost.
    - It locks the inputs that are defined when it begins to wait, and each of the others once it is
      rematerialized.  It lends none: where all is locked the run is out of memory.
    - Storages of no bytes are evicted, too, and constants evict what is in their way.
    """

    def __init__(self, *limits: Any, **options: Any) -> None:
        super().__init__(*limits, **options)
        self._pool: _Ordered = _Ordered()
        has_regions = self.heuristic.neighborhood in ("exact", "ancestors")
        self._neighborhood = (_Regions if has_regions else track)(self.heuristic, self._pool)

    def constant(self, size: int) -> Tensor:
        self.allocate_buffer(Operator(self._operators, (), 0.0, size, recomputable=False))
        return super().constant(size)

    def access(self, tensor: Tensor) -> None:
        if not tensor.defined:
            assert tensor.op is not None
            self._perform(tensor.op, [tensor])

    def _perform(self, op: Operator, wanted: Sequence[Tensor] = ()) -> None:
        if op.runs:
            return super()._perform(op, wanted)
        self._declare(op)
        super()._perform(op)
        for tensor in op.outputs:
            self._touch(tensor.storage)

    def _declare(self, op: Operator) -> None:
        outputs = dict.fromkeys(tensor.storage for tensor in op.outputs)
        around = [storage for storage in {**outputs, **dict.fromkeys(op.reads)} if storage.slot >= 0]
        for storage in around:
            self._neighborhood.left(storage)
        for storage in outputs:
            storage.evicted = not storage.resident
            if storage.root.op is not op:
                known = len(storage.parents)
                self._link(op, storage)
                if len(storage.parents) > known and isinstance(self._neighborhood, _Regions):
                    self._neighborhood.are_exact = False
        for storage in around:
            self._pool.cost[storage.slot] = storage.cost
            self._neighborhood.entered(storage)

    def _extend(self, op: Operator, storage: Storage) -> None:
        """The view is linked already."""

    def _frame(self, op: Operator, wanted: Sequence[Tensor] = ()) -> Frame:
        frame = super()._frame(op, wanted)
        for tensor in op.inputs:
            if tensor.defined:
                self._lock(tensor.storage, frame)
        return frame

    def _hold_inputs(self, frame: Frame) -> list[Tensor]:
        for tensor in frame.op.inputs:
            if not tensor.defined:
                return [tensor]
            self._lock(tensor.storage, frame)
        return []

    def _lock(self, storage: Storage, frame: Frame) -> None:
        if storage.slot >= 0 and storage not in frame.held:
            self._hold(storage, frame)

    def _run_and_record(self, op: Operator) -> None:
        made = [tensor for tensor in op.outputs if not tensor.storage.resident]
        super()._run_and_record(op)
        self._neighborhood.refresh()
        asked = (self._frames[-1].wanted or op.outputs)[0]
        self._pool.put_last(tensor.storage for tensor in sorted(made, key=lambda tensor: tensor is asked))

    def _enter(self, storage: Storage, *, first: bool) -> None:
        storage.evicted = False
        self._neighborhood.restored(storage)
        storage.resident = storage.root.defined = True
        self._pool.add(storage)
        self._neighborhood.entered(storage)

    def _finish(self, frame: Frame) -> None:
        super()._finish(frame)
        last_read_first = dict.fromkeys(tensor.storage for tensor in reversed(frame.op.inputs))
        self._pool.put_last(storage for storage in reversed(last_read_first) if not storage.locks)

    def _pin(self, storage: Storage) -> None:
        self._leave_pool(storage)
        storage.pinned = True

    def _retire(self, storage: Storage) -> None:
        if storage.slot >= 0 and storage.root.op is not None:
            self.perform_eviction(storage, storage.root.op, RELEASED)

    def _borrow(self, op: Operator) -> None:
        return None


class _Ordered(Pool):
    """The pool in the order in which its storages became evictable: when they were made or last unlocked.

    The original goes through it to the end, or to the first score of zero, and takes the last of the lowest
    scores.  A score that divides by zero is infinite.  Its bytes and times are whole numbers, whose products
    are beyond what a float has digits for.
    """

    def __init__(self) -> None:
        super().__init__()
        self._clock = count()
        self._since: dict[Storage, int] = {}

    def put_last(self, storages: Iterable[Storage]) -> None:
        self._since.update(zip(storages, self._clock))

    def victim(
        self, score: Score, time: Time, clock: float, locked: Iterable[Storage]
    ) -> tuple[Storage, float] | None:
        with np.errstate(divide="ignore", invalid="ignore"):
            scores = self._scored(score, self._elapsed(time, clock).astype(np.longdouble))
        scores[~np.isfinite(scores)] = np.inf
        is_free = np.ones(len(scores), np.bool_)
        is_free[[storage.slot for storage in locked if storage.slot >= 0]] = False
        if not is_free.any():
            return None
        lowest = scores[is_free].min()
        [slots] = np.nonzero(is_free & (scores <= max(lowest, 0.0)))
        candidates = sorted((self.members[slot] for slot in slots), key=self._since.__getitem__)
        if lowest <= 0:
            zero = next((n for n, storage in enumerate(candidates) if scores[storage.slot] == 0), len(slots))
            candidates = candidates[: zero + 1]
            lowest = min(scores[storage.slot] for storage in candidates)
            candidates = [storage for storage in candidates if scores[storage.slot] == lowest]
        return candidates[-1], float(lowest)


_cost = attrgetter("cost")


@dataclass(slots=True)
class _Region:
    """The evicted storages from one up, or down, and their cost; ``edge`` are the resident ones behind."""

    evicted: set[Storage]
    edge: set[Storage]
    cost: float


class _Regions(Evicted):
    """e* as the original keeps it: a region above and one below each resident storage.

    It searches those again that end at a storage that was made, and adds to those that end at one that was
    evicted what is behind it.  A new view, and its cost, is not seen before.  While no view reads more than
    the storage that it is of, regions ``are_exact``, and one above can be cut short instead.
    """

    def __init__(self, heuristic: Heuristic, pool: Pool) -> None:
        super().__init__(pool, None if heuristic.neighborhood == "ancestors" else lambda storage: True)
        self.are_exact = True
        self._above: dict[Storage, _Region] = {}
        self._below: dict[Storage, _Region] = {}

    def evicted(self, storage: Storage) -> None:
        for ahead, back in ((self._above, self._below), (self._below, self._above)):
            behind = back[storage]
            for other in ahead[storage].edge:
                if other.resident:
                    region = back[other]
                    new = (behind.evicted - region.evicted) | {storage}
                    self.visits += len(new)
                    region.evicted |= new
                    region.edge |= behind.edge
                    region.edge.discard(storage)
                    region.cost += sum(map(_cost, new))
                    self._changed[other] = None
        del self._above[storage], self._below[storage]

    def refresh(self) -> None:
        above, below, made = self._above, self._below, {*self._turned}
        self._turned.clear()
        for storage in made:
            above[storage], below[storage] = self._search(storage, parents), self._search(storage, children)
        over = {other for storage in made for other in above[storage].edge}
        under = {other for storage in made for other in below[storage].edge}
        for storage in over:
            below[storage] = self._search(storage, children)
        for storage in under:
            if self.are_exact and storage not in made:
                self._cut_short(storage, above[storage], made & above[storage].evicted)
            else:
                above[storage] = self._search(storage, parents)
        self._changed.update(dict.fromkeys(over | under))
        super().refresh()

    def _search(self, storage: Storage, step: Step) -> _Region:
        evicted = set(self._reach([storage], step))
        edge = {other for each in (storage, *evicted) for other in step(each) if other.resident}
        return _Region(evicted, edge - {storage}, sum(map(_cost, evicted)))

    def _cut_short(self, storage: Storage, region: _Region, made: set[Storage]) -> None:
        """End the region above the storage at what was made from what is all resident."""
        region.evicted -= made
        region.edge |= made
        for parent in {parent for each in made for parent in each.parents}:
            if not any(child in region.evicted or child is storage for child in parent.children):
                region.edge.discard(parent)
        region.cost = sum(map(_cost, region.evicted))

    def _neighborhood_cost(self, storage: Storage) -> float:
        below = self._below[storage].cost if self._downward else 0.0
        return storage.cost + self._above[storage].cost + below
