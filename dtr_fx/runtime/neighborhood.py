"""Evicted neighbourhoods (section 4.1, C.2): what else must be recomputed if a storage is evicted.

Each class keeps ``pool.cost`` equal to a storage's own cost plus that of its neighbourhood, and is told
of every change.  ``visits`` counts the storages and sets that it looks at on the way (Appendix D.3).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from itertools import chain
from operator import attrgetter
from typing import TypeAlias

import numpy as np

from dtr_fx.runtime.graph import Storage
from dtr_fx.runtime.heuristics import Heuristic
from dtr_fx.runtime.pool import Pool

Step: TypeAlias = Callable[[Storage], list[Storage]]
parents: Step = attrgetter("parents")
children: Step = attrgetter("children")


class Local:
    """c(S) alone: no neighbourhood (h_DTR^local, h_LRU, h_size)."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self.visits = 0

    def entered(self, storage: Storage) -> None:
        """The storage has joined the pool."""

    def evicted(self, storage: Storage) -> None:
        """The storage was evicted and has left the pool."""

    def restored(self, storage: Storage) -> None:
        """An evicted storage was rematerialized; it has not joined the pool yet."""

    def left(self, storage: Storage) -> None:
        """The storage left the pool, or stopped being evicted, for good."""

    def referenced(self, storage: Storage) -> None:
        """The program took its first, or gave up its last, reference to an evicted storage."""

    def refresh(self) -> None:
        """Called before a victim is chosen: bring ``pool.cost`` up to date."""


class EquivalenceClasses(Local):
    """ẽ*: the evicted components that a storage touches, as union-find sets with a running cost.

    Eviction unites a storage with the evicted storages around it.  Rematerialization cannot split a
    set: the storage's cost is subtracted and the rest stays one set (C.2), an overestimate of e*.
    ``_touches[S]`` counts, per set, the evicted neighbours of a storage in the pool; ``_border`` is
    its inverse, so that a change of a set's cost reaches exactly the scores that count it.  Scores are
    only needed when a victim is chosen: until then ``_pending`` keeps what a set's border has not been told.
    """

    def __init__(self, pool: Pool) -> None:
        super().__init__(pool)
        self._up: list[int] = []
        self._cost: list[float] = []
        self._border: list[dict[Storage, None]] = []
        self._member: dict[Storage, int] = defaultdict(lambda: self._unite(()))
        self._touches: dict[Storage, dict[int, int]] = {}
        self._pending: dict[int, float] = {}

    def entered(self, storage: Storage) -> None:
        touches: dict[int, int] = {}
        self._touches[storage] = touches
        for other in self._around(storage):
            if other.evicted:
                number = self._find(self._member[other])
                touches[number] = touches.get(number, 0) + 1
                self._border[number][storage] = None
        self._rescore(storage)

    def evicted(self, storage: Storage) -> None:
        number = self._unite(self._withdraw(storage))
        self._member[storage] = number
        self._change(number, storage.cost)
        border = self._border[number]
        for other in self._around(storage):
            if other.slot >= 0:
                touches = self._touches[other]
                touches[number] = touches.get(number, 0) + 1
                if other not in border:
                    border[other] = None
                    self._pool.cost[other.slot] += self._told(number)

    def restored(self, storage: Storage) -> None:
        number = self._find(self._member[storage])
        del self._member[storage]
        border = self._border[number]
        for other in self._around(storage):
            if other.slot >= 0:
                touches = self._touches[other]
                touches[number] -= 1
                if not touches[number]:
                    del touches[number], border[other]
                    self._rescore(other)
        self._change(number, -storage.cost)

    def left(self, storage: Storage) -> None:
        if storage in self._member:
            self.restored(storage)
        elif storage in self._touches:
            self._withdraw(storage)

    def _around(self, storage: Storage) -> list[Storage]:
        around = storage.parents + storage.children
        self.visits += len(around)
        return around

    def _find(self, number: int) -> int:
        up = self._up
        self.visits += 1
        while up[number] != number:
            self.visits += 1
            up[number] = up[up[number]]
            number = up[number]
        return number

    def _withdraw(self, storage: Storage) -> dict[int, int]:
        touches = self._touches.pop(storage)
        for number in touches:
            del self._border[number][storage]
        return touches

    def _unite(self, numbers: Collection[int]) -> int:
        """One set for all: those with smaller borders join the one with the largest."""
        if not numbers:
            self._up.append(len(self._up))
            self._cost.append(0.0)
            self._border.append({})
            return len(self._up) - 1
        if len(numbers) == 1:
            return next(iter(numbers))
        root = max(numbers, key=lambda number: len(self._border[number]))
        self._change(root, sum(self._cost[number] for number in numbers if number != root))
        for number in numbers:
            if number != root:
                self._join(number, root)
        return root

    def _join(self, number: int, root: int) -> None:
        self._up[number] = root
        self._pending.pop(number, None)
        self.visits += len(self._border[number])
        for storage in self._border[number]:
            touches = self._touches[storage]
            touches[root] = touches.get(root, 0) + touches.pop(number)
            self._border[root][storage] = None
            self._rescore(storage)
        self._border[number] = {}

    def _change(self, number: int, cost: float) -> None:
        self._cost[number] += cost
        self._pending[number] = self._pending.get(number, 0.0) + cost

    def _told(self, number: int) -> float:
        return self._cost[number] - self._pending.get(number, 0.0)

    def _rescore(self, storage: Storage) -> None:
        cost = storage.cost
        for number in self._touches[storage]:
            cost += self._told(number)
        self._pool.cost[storage.slot] = cost

    def refresh(self) -> None:
        for number, cost in self._pending.items():
            border = self._border[number]
            self.visits += len(border)
            if len(border) > 16:
                self._pool.cost[np.fromiter((s.slot for s in border), np.intp, len(border))] += cost
            else:
                for storage in border:
                    self._pool.cost[storage.slot] += cost
        self._pending.clear()


class Evicted(Local):
    """e*: the evicted storages on an evicted path up, and (for h_DTR) down, found by search.

    A search is repeated only for the storages whose neighbourhood has changed since the last choice: those
    that a search from what was evicted, restored or freed since then, ``_turned``, reaches.  ``downward``
    says which evicted descendants count (if None, no descendant does); one that does not count still
    conducts.  A search ends after ``horizon`` storages.
    """

    def __init__(
        self, pool: Pool, downward: Callable[[Storage], bool] | None, horizon: int | None = None
    ) -> None:
        super().__init__(pool)
        self._downward = downward
        self._horizon = math.inf if horizon is None else horizon
        self._changed: dict[Storage, None] = {}
        self._turned: dict[Storage, None] = {}

    def entered(self, storage: Storage) -> None:
        self._changed[storage] = None
        self._ended(storage)

    def evicted(self, storage: Storage) -> None:
        self._turned[storage] = None

    restored = evicted

    def left(self, storage: Storage) -> None:
        self._changed.pop(storage, None)
        self._ended(storage)

    def _ended(self, storage: Storage) -> None:
        """A neighborhood ended at the storage, or did not: it was retired, moved or brought back."""
        if storage.retired or storage.outside is not None:
            self._turned[storage] = None

    def referenced(self, storage: Storage) -> None:
        if self._downward is _is_used_again:
            self._turned[storage] = None

    def refresh(self) -> None:
        for step in (children,) if self._downward is None else (children, parents):
            for conductor in (*self._turned, *self._reach(self._turned, step)):
                around = step(conductor)
                self.visits += len(around)
                self._changed.update((other, None) for other in around if other.slot >= 0)
        for storage in self._changed:
            if storage.slot >= 0:
                self._pool.cost[storage.slot] = self._neighborhood_cost(storage)
        self._turned.clear()
        self._changed.clear()

    def _neighborhood_cost(self, storage: Storage) -> float:
        ancestors = self._reach([storage], parents)
        cost = storage.cost + sum(other.cost for other in ancestors)
        cost += sum(other.seconds_back for other in self._moved_before(storage, *ancestors))
        if self._downward is not None:
            for other in self._reach([storage], children):
                # Views of several storages can make one both an ancestor and a descendant.
                if other not in ancestors and self._downward(other):
                    cost += other.cost
        return cost

    def _moved_before(self, *storages: Storage) -> dict[Storage, None]:
        """What was moved out and would have to come back for some storages."""
        around = chain.from_iterable(storage.parents for storage in storages)
        return dict.fromkeys(each for each in around if each.outside is not None and not each.resident)

    def _reach(self, start: Iterable[Storage], step: Step) -> dict[Storage, None]:
        """The evicted storages reached by steps through evicted storages only."""
        reached: dict[Storage, None] = {}
        pending = list(start)
        while pending and len(reached) < self._horizon:
            around = step(pending.pop())
            self.visits += len(around)
            for other in around:
                if other.evicted and other not in reached:
                    reached[other] = None
                    pending.append(other)
        return reached


def _is_used_again(storage: Storage) -> bool:
    return storage.refs > 0


def track(heuristic: Heuristic, pool: Pool) -> Local:
    """The tracker that keeps ``pool.cost`` for a heuristic's ``neighborhood``."""
    neighborhood = heuristic.neighborhood
    if neighborhood == "eq":
        return EquivalenceClasses(pool)
    if neighborhood == "exact":
        return Evicted(pool, lambda storage: True)
    if neighborhood == "needed":
        return Evicted(pool, _is_used_again, heuristic.horizon)
    return Evicted(pool, None) if neighborhood == "ancestors" else Local(pool)
