"""The pool of evictable storages, as arrays: choosing a victim is one vector expression, not a loop."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from dtr_fx.runtime.graph import Storage
from dtr_fx.runtime.heuristics import Array, Score, Time

# A storage read at this very moment has a staleness of zero, and the paper divides by it.
MIN_TIME = 1e-12


class Pool:
    """Evictable storages in contiguous slots: bytes, last access, next use, and cost with its neighbourhood.

    Removing a storage moves the last one into its slot, so the arrays never have holes.  ``scored`` counts
    the storages that were scored in all choices so far; ``scores`` are those of the latest choice, infinite
    where a storage is locked.
    """

    def __init__(self) -> None:
        self.members: list[Storage] = []
        self.scored = 0
        self.scores: Array = np.empty(0)
        self._resize(np.empty((4, 64)))

    def _resize(self, columns: Array) -> None:
        self._columns = columns
        self.size, self.last_access, self.next_use, self.cost = columns

    def add(self, storage: Storage) -> None:
        slot = len(self.members)
        if slot == len(self.size):
            self._resize(np.concatenate([self._columns, np.empty_like(self._columns)], axis=1))
        storage.slot = slot
        self.members.append(storage)
        self.size[slot] = storage.size
        self.last_access[slot] = storage.last_access
        self.next_use[slot] = storage.next_use
        self.cost[slot] = storage.cost

    def remove(self, storage: Storage) -> None:
        slot = storage.slot
        storage.slot = -1
        last = self.members.pop()
        if last is not storage:
            end = len(self.members)
            self.members[slot] = last
            last.slot = slot
            self.size[slot] = self.size[end]
            self.last_access[slot] = self.last_access[end]
            self.next_use[slot] = self.next_use[end]
            self.cost[slot] = self.cost[end]

    def victim(
        self, score: Score, time: Time, clock: float, locked: Iterable[Storage]
    ) -> tuple[Storage, float] | None:
        """The unlocked storage of lowest score, or None; ties go to the first slot."""
        if not self.members:
            return None
        scores = self.score(score, time, clock, locked)
        storage = self.members[int(scores.argmin())]
        if storage.locks:
            # None is left, unless those that are have infinite scores, too.
            unlocked = [other for other in self.members if not other.locks]
            if not unlocked:
                return None
            storage = unlocked[0]
        return storage, float(scores[storage.slot])

    def score(self, score: Score, time: Time, clock: float, locked: Iterable[Storage]) -> Array:
        """The scores of all members, which become the latest."""
        scores = self._scored(score, np.maximum(self._elapsed(time, clock), MIN_TIME))
        for storage in locked:
            if storage.slot >= 0:
                scores[storage.slot] = np.inf
        self.scores = scores
        return scores

    def _elapsed(self, time: Time, clock: float) -> Array:
        n = len(self.members)
        elapsed: Array = clock - self.last_access[:n] if time == "staleness" else self.next_use[:n] - clock
        return elapsed

    def _scored(self, score: Score, elapsed: Array) -> Array:
        n = len(elapsed)
        self.scored += n
        # A copy: a score may return one of its arguments, and locked storages are crossed out.
        scores = np.array(score(elapsed, self.size[:n], self.cost[:n]), np.float64)
        if scores.shape != (n,):
            raise ValueError(f"the heuristic's scores for {n} storages have the shape {scores.shape}")
        return scores
