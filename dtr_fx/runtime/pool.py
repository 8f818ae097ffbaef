"""The pool of evictable storages, as arrays: choosing a victim is one vector expression, not a loop."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from dtr_fx.runtime.channels import Channels
from dtr_fx.runtime.graph import Storage
from dtr_fx.runtime.heuristics import Array, Score, Time

# A storage read at this very moment has a staleness of zero, and the paper divides by it.
MIN_TIME = 1e-12


class Pool:
    """Evictable storages in contiguous slots: bytes, last access, next use, and cost with its neighbourhood.

    With transfers also when each is outside, infinite where it is not, and the seconds to bring it back.

    Removing a storage moves the last one into its slot, so the arrays never have holes.  ``scored`` counts
    the storages that were scored in all choices so far; ``scores`` are those of the latest choice, infinite
    where a storage is locked.
    """

    def __init__(self) -> None:
        self.members: list[Storage] = []
        self.scored = 0
        self.scores: Array = np.empty(0)
        self.again: Array | None = None
        self._resize(np.empty((6, 64)))

    def _resize(self, columns: Array) -> None:
        self._columns = columns
        self.size, self.last_access, self.next_use, self.cost, self.outside, self.back = columns

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
        self.outside[slot] = math.inf if storage.outside is None else storage.outside
        self.back[slot] = storage.seconds_back

    def remove(self, storage: Storage) -> None:
        slot = storage.slot
        storage.slot = -1
        last = self.members.pop()
        if last is not storage:
            end = len(self.members)
            self.members[slot] = last
            last.slot = slot
            self._columns[:, slot] = self._columns[:, end]

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

    def weigh(self, channels: Channels, clock: float) -> Array:
        """Take for what a member costs the cheaper way to have it again, by now; what transfers alone cost.

        A transfer costs what is not hidden of it: the rest of a copy out, and the copy back.
        """
        n = len(self.members)
        is_outside = self.outside[:n] < math.inf
        fresh = max(clock, channels.out_ends) + channels.bandwidth.seconds_out(self.size[:n])
        ends = np.where(is_outside, self.outside[:n], fresh)
        transfer: Array = np.maximum(ends - clock, 0.0) + self.back[:n]
        self.again = np.where(is_outside, transfer, np.minimum(self.cost[:n], transfer))
        return transfer

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
        costs = self.cost[:n] if self.again is None else self.again
        self.scored += n
        # A copy: a score may return one of its arguments, and locked storages are crossed out.
        scores = np.array(score(elapsed, self.size[:n], costs), np.float64)
        if scores.shape != (n,):
            raise ValueError(f"the heuristic's scores for {n} storages have the shape {scores.shape}")
        return scores
