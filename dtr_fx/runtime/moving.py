"""Moving out and bringing back, which the paper has not: an evicted storage that was copied out comes back by
a transfer instead of a rematerialization, so that its evicted neighbourhood ends there.

The heuristics score both ways, and the cheaper is taken: for c they have min(c, what is not hidden of the
transfer).  Copies run ahead in the background, one at a time each way: those out as an operating system
writes pages back, and what has been copied costs the way back alone; those back in the order of a backward
pass, which reads what was made last first: after a storage that was asked for come those made before it.
"""

from __future__ import annotations

import math
from abc import abstractmethod

import numpy as np

from . import steps
from .deallocation import Deallocating
from .graph import Operator, Storage, Tensor
from .steps import Step

# The share of the budget above which storages are copied out ahead.
_AHEAD = 0.5


class Moving(Deallocating):
    """The actions on the two queues of the link; see ``channels``."""

    @abstractmethod
    def allocate_buffer(self, op: Operator) -> None:
        """See ``figure1``."""

    def move_out(self, tensor: Tensor) -> None:
        """Start to copy the tensor's storage out; see ``let_go``."""
        assert self.channels is not None
        assert self.tier is not None
        storage = tensor.storage
        storage.outside = storage.leaves = self.channels.move_out(self.clock, storage.size)
        if storage.slot >= 0:
            self._pool.outside[storage.slot] = storage.outside
        self.outside += self.tier.taken_by(storage.size)
        self.outside_peak = max(self.outside_peak, self.outside)
        self._step(steps.OFFLOAD, storage, self.channels.bandwidth.seconds_out(storage.size))

    def move_out_if_cheaper(self, storage: Storage) -> None:
        """Move out what is to be evicted, if it comes back for less than it can be recomputed for."""
        if self.moves and storage.outside is None and self._has_room(storage):
            assert self.channels is not None
            transfer = self._pool.weigh(self.channels, self.clock)
            if transfer[storage.slot] < self._pool.cost[storage.slot]:
                self.move_out(storage.root)

    def move_out_ahead(self) -> None:
        """While the queue is idle, copy out what would be evicted first of what comes back for less."""
        if not self.moves or self.used < _AHEAD * self.budget or not self._pool.members:
            return
        assert self.channels is not None
        if self.channels.out_ends > self.clock:
            return
        self._neighborhood.refresh()
        cheaper = self._pool.weigh(self.channels, self.clock) < self._pool.cost[: len(self._pool.members)]
        cheaper &= self._pool.outside[: len(cheaper)] == math.inf
        if cheaper.any():
            scores = self._pool.score(self._score, self.heuristic.time, self._now, self._locked)
            scores = np.where(cheaper, scores, math.inf)
            first = int(scores.argmin())
            if scores[first] < math.inf and self._has_room(self._pool.members[first]):
                self.move_out(self._pool.members[first].root)

    def bring_back_ahead(self, op: Operator) -> None:
        """While the queue is idle, bring back what is likely read next, if the operator leaves room for it.

        It counts as accessed, so that it stays until then.
        """
        if not self._away or self.channels is None or self.channels.back_ends > self.clock:
            return
        room = self.budget - self.used - op.allocates
        before = (each for each in self._away if each.id < self._asked and not each.resident)
        following = max(before, key=lambda storage: storage.id, default=None)
        if following is not None and following.size <= room:
            self._touch(following)
            self.bring_back(following.root)

    def let_go(self, tensor: Tensor) -> None:
        """Evict what is being copied out when that has ended, or sooner wait for it where room is needed."""
        self._leaving.append(tensor)

    def _make_way(self, nbytes: int) -> None:
        """Evict what has been copied out and, until so many bytes fit, wait for what is next."""
        self._leaving.sort(key=lambda tensor: tensor.storage.leaves or 0.0)
        while self._leaving and (
            (self._leaving[0].storage.leaves or 0.0) <= self.clock or self.used + nbytes > self.budget
        ):
            self._leave(self._leaving.pop(0))

    def _leave_now(self, tensor: Tensor) -> None:
        """Wait for its copy out if the tensor is to leave: it comes back."""
        if tensor in self._leaving:
            self._leaving.remove(tensor)
            self._leave(tensor)

    def _leave(self, tensor: Tensor) -> None:
        storage = tensor.storage
        self.wait_for(storage)
        if storage.pinned and storage.resident:  # for no other reason than that it cannot be recomputed
            storage.pinned = False
            self._pool.add(storage)
            self._neighborhood.entered(storage)
        self.drop(tensor)

    def bring_back(self, tensor: Tensor) -> None:
        """Allocate the tensor's storage, evicting others if need be, and start to copy it back."""
        assert self.channels is not None
        storage = tensor.storage
        assert storage.outside is not None
        assert storage.root.op is not None
        self._away.pop(storage, None)
        self._asked = storage.id
        self._leave_now(tensor)
        transfer = Operator(storage.root.op.id, (), 0.0, storage.size, recomputable=False)
        self.allocate_buffer(transfer)
        self._place([storage])
        self.used += storage.size
        self.peak = max(self.peak, self.used)
        storage.arrives = self.channels.bring_back(self.clock, storage.size, storage.outside)
        self._step(steps.RELOAD, storage, self.channels.bandwidth.seconds_back(storage.size))
        self._enter(storage, first=False)
        for view in storage.tensors:  # what writes in place is not done again: its result is what comes back
            view.defined |= view.op is not None and not view.op.recomputable

    def wait_for(self, storage: Storage) -> None:
        """Wait until a storage's copies have ended, out and back."""
        for until in (storage.leaves, storage.arrives):
            if until is not None:
                waited = max(0.0, until - self.clock)
                self.waited += waited
                self.clock += waited
                self._step(steps.WAIT, storage, waited)
        storage.leaves = storage.arrives = None

    def forget(self, storage: Storage) -> None:
        """Nothing asks for the storage again: the tier has its room."""
        if storage.outside is not None and self.tier is not None:
            self.outside -= self.tier.taken_by(storage.size)
            self._away.pop(storage, None)

    def _await(self, op: Operator) -> None:
        """Wait for what an operator reads and what is still on its way back."""
        for storage in op.reads:
            if storage.arrives is not None:
                self.wait_for(storage)

    def _has_room(self, storage: Storage) -> bool:
        assert self.tier is not None
        limit = self.tier.limit
        return limit is None or self.outside + self.tier.taken_by(storage.size) <= limit

    def _step(self, kind: str, storage: Storage, seconds: float) -> None:
        assert storage.root.op is not None
        self.steps.append(Step(kind, storage.root.op.id, storage.id, self.used, seconds=seconds))
