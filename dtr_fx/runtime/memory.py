"""The state of storages and tensors, and how it changes (Appendix C.1 and C.2)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Literal, TypeAlias

from .graph import Frame, Operator, Storage, Tensor
from .heuristics import Heuristic, Score, resolve
from .neighborhood import track
from .pool import Pool
from .steps import Step

Deallocation: TypeAlias = Literal["eager", "banish", "ignore"]
Order: TypeAlias = Literal["depth first", "program"]


class Memory(ABC):
    """The storages of a run, the bytes that they hold, and the pool of those that can be evicted."""

    def __init__(
        self,
        budget: float,
        heuristic: str | Heuristic | Score = "dtr-eq",
        *,
        deallocation: Deallocation = "eager",
        keep_passed: bool = True,
        order: Order = "depth first",
        max_recompute: float = math.inf,
        execute: Callable[[Operator], float] | None = None,
    ) -> None:
        self.budget = budget
        self.heuristic = resolve(heuristic)
        self.deallocation = deallocation
        self.keep_passed = keep_passed
        self.order = order
        self.max_recompute = max_recompute
        self.execute = execute
        self.clock = 0.0
        self.base_cost = 0.0
        self.now = 0.0
        self.used = 0
        self.peak = 0
        self.steps: list[Step] = []
        self.storages: list[Storage] = []
        self._operators = 0
        self._score = self.heuristic.make_score()
        self._pool = Pool()
        self._neighborhood = track(self.heuristic, self._pool)
        self._frames: list[Frame] = []
        self._waiting: dict[Storage, list[Frame]] = {}
        self._locked: dict[Storage, None] = {}
        self._banishing: list[Storage] = []

    @property
    def recompute_cost(self) -> float:
        """The cost of the rematerialized operators so far."""
        return self.clock - self.base_cost

    @property
    def scored(self) -> int:
        """Storages that the heuristic was evaluated for so far (Appendix D.3)."""
        return self._pool.scored

    @property
    def maintained(self) -> int:
        """Storages that were visited so far to keep the heuristic's metadata (Appendix D.3)."""
        return self._neighborhood.visits

    def constant(self, size: int) -> Tensor:
        """A tensor of ``size`` bytes that is resident from the start and is never evicted (C.1)."""
        storage = self._storage(size)
        storage.resident = storage.pinned = True
        tensor = Tensor(storage, None)
        tensor.defined = True
        storage.root = tensor
        storage.tensors.append(tensor)
        self.used += size
        self.peak = max(self.peak, self.used)
        return tensor

    def expect(self, tensor: Tensor, time: float) -> None:
        """Say when the tensor is used next (``math.inf``: never), in the unit of ``now``.

        ``now`` is the cost of the program's own operators so far, unless the caller sets it.
        """
        storage = tensor.storage
        storage.next_use = time
        if storage.slot >= 0:
            self._pool.next_use[storage.slot] = time

    def retain(self, tensor: Tensor) -> None:
        """Add an external reference; a new tensor has one."""
        storage = tensor.storage
        storage.refs += 1
        if storage.refs == 1 and storage.evicted:
            self._neighborhood.referenced(storage)

    @abstractmethod
    def perform_eviction(
        self, storage: Storage, op: Operator, reason: str, score: float | None = None
    ) -> None:
        """See ``figure1``."""

    @abstractmethod
    def _pin(self, storage: Storage) -> None:
        """See ``deallocation``."""

    @abstractmethod
    def _hold(self, storage: Storage, frame: Frame) -> None:
        """See ``waiting``."""

    def _storage(self, size: int) -> Storage:
        storage = Storage(len(self.storages), size)
        self.storages.append(storage)
        return storage

    def _output(self, op: Operator, spec: int | Tensor) -> Tensor:
        if isinstance(spec, Tensor):
            tensor = Tensor(spec.storage, op)
        else:
            storage = self._storage(spec)
            storage.pinned = not op.recomputable
            storage.root = tensor = Tensor(storage, op)
            op.allocates += spec
        tensor.storage.tensors.append(tensor)
        tensor.storage.refs += 1
        return tensor

    def _link(self, op: Operator, storage: Storage) -> None:
        """Record what the storage would be recomputed from, and at what cost (C.2)."""
        storage.cost += op.cost
        if storage.pinned:
            return
        for parent in op.reads:
            if parent is storage or parent.root.op is None or parent in storage.parents:
                continue
            storage.parents.append(parent)
            parent.children.append(storage)
            parent.dependents += 1

    def _extend(self, op: Operator, storage: Storage) -> None:
        """A new view adds its operator's cost and dependencies to the storage that it aliases (C.2)."""
        in_pool = storage.slot >= 0
        if in_pool:
            self._neighborhood.left(storage)
        self._link(op, storage)
        storage.last_access = self.clock
        if in_pool:
            self._pool.last_access[storage.slot] = self.clock
            self._pool.cost[storage.slot] = storage.cost
            self._neighborhood.entered(storage)
        if not op.recomputable:
            self._pin(storage)

    def _enter(self, storage: Storage, *, first: bool) -> None:
        """A storage's buffer is filled, by its first computation or by a rematerialization."""
        if first:
            storage.last_access = self.clock
        else:
            storage.evicted = False
            self._neighborhood.restored(storage)
        storage.resident = True
        storage.root.defined = True
        if not storage.pinned and storage.size:
            self._pool.add(storage)
            self._neighborhood.entered(storage)
        for frame in self._waiting.pop(storage, ()):
            if not frame.done and storage not in frame.held:
                self._hold(storage, frame)

    def _free(self, storage: Storage) -> None:
        self.used -= storage.size
        storage.resident = False
        for tensor in storage.tensors:
            tensor.defined = False

    def _leave_pool(self, storage: Storage) -> None:
        if storage.slot >= 0:
            self._pool.remove(storage)
            self._neighborhood.left(storage)

    def _take_time(self, op: Operator, cost: float) -> None:
        """Set the cost of an operator, known now, for the storages that were linked to it before, too."""
        if op.runs == 0:
            for tensor in op.outputs:
                if tensor is tensor.storage.root:
                    tensor.storage.cost += cost - op.cost
            op.cost = cost
