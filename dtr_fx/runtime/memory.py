"""The state of storages and tensors, and how it changes (Appendix C.1 and C.2).

The paper recurses (Fig. 1, Rematerialize); here each operator that waits for its inputs, and locks those that
are there, is a frame on a stack.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

from dtr_fx.tiers.tier import Tier

from .caching_allocator import CachingAllocator
from .channels import Channels
from .graph import Frame, Operator, Storage, Tensor
from .heuristics import Heuristic, Score, resolve
from .neighborhood import track
from .pool import Pool
from .steps import Step

Deallocation: TypeAlias = Literal["eager", "banish", "ignore"]
Order: TypeAlias = Literal["depth first", "program"]


class Memory(ABC):
    """The storages of a run, the bytes that they hold, the pool of those that can be evicted, the frames."""

    def __init__(
        self,
        budget: float,
        heuristic: str | Heuristic | Score = "dtr-eq",
        *,
        deallocation: Deallocation = "eager",
        keep_passed: bool = True,
        order: Order = "depth first",
        max_recompute: float = math.inf,
        allocator: CachingAllocator | None = None,
        tier: Tier | None = None,
        moves: bool = False,
    ) -> None:
        self.budget = budget
        self.heuristic = resolve(heuristic)
        self.deallocation = deallocation
        self.keep_passed = keep_passed
        self.order = order
        self.max_recompute = max_recompute
        if allocator is None and self.heuristic.frees != "storage":
            allocator = CachingAllocator(expandable_segments=True)
        self.allocator = allocator
        self.tier = tier
        self.channels = None if tier is None or tier.speed is None else Channels(tier.speed)
        self.moves = moves and self.channels is not None
        self.execute: Callable[[Operator], float] | None = None
        self.clock = self.base_cost = self.waited = 0.0
        self.used = self.peak = 0
        self.outside = self.outside_peak = 0
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
        self._leaving: list[Tensor] = []

    @property
    def recompute_cost(self) -> float:
        """The cost of the rematerialized operators so far."""
        return self.clock - self.base_cost - self.waited

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
        tensor = self._fresh(size, None)
        tensor.storage.resident = tensor.storage.pinned = tensor.defined = True
        self.used += size
        self.peak = max(self.peak, self.used)
        return tensor

    def expect(self, tensor: Tensor, time: float) -> None:
        """Say when the tensor is used next, in the program's own cost; ``math.inf`` is never."""
        storage = tensor.storage
        storage.next_use = time
        if storage.slot >= 0:
            self._pool.next_use[storage.slot] = time

    @abstractmethod
    def rematerialize(self, wanted: Sequence[Tensor]) -> Frame:
        """See ``figure1``."""

    @abstractmethod
    def perform_eviction(
        self, storage: Storage, op: Operator, reason: str, score: float | None = None
    ) -> None:
        """See ``figure1``."""

    def _fresh(self, size: int, op: Operator | None) -> Tensor:
        storage = Storage(len(self.storages), size)
        self.storages.append(storage)
        storage.root = tensor = Tensor(storage, op)
        storage.tensors.append(tensor)
        return tensor

    def _output(self, op: Operator, spec: int | Tensor) -> Tensor:
        if isinstance(spec, Tensor):
            tensor = Tensor(spec.storage, op)
            tensor.storage.tensors.append(tensor)
        else:
            tensor = self._fresh(spec, op)
            tensor.storage.pinned = not op.recomputable
            if self.moves and op.movable and self.channels is not None:
                tensor.storage.seconds_back = self.channels.bandwidth.seconds_back(spec)
            op.allocates += spec
        tensor.storage.refs += 1
        return tensor

    def _link(self, op: Operator, storage: Storage) -> None:
        """Record what the storage would be recomputed from, and at what cost (C.2)."""
        storage.cost += op.cost
        for parent in op.reads if not storage.pinned else ():
            if parent is not storage and parent.root.op is not None and parent not in storage.parents:
                storage.parents.append(parent)
                parent.children.append(storage)
                parent.dependents += 1

    def _touch(self, storage: Storage) -> None:
        """The storage is accessed now."""
        storage.last_access = self.clock
        if storage.slot >= 0:
            self._pool.last_access[storage.slot] = self.clock

    def _refresh(self) -> None:
        """Bring up to date what each storage costs, before one is chosen."""
        self._neighborhood.refresh()
        if self.moves and self.channels is not None:
            self._pool.weigh(self.channels, self.clock)

    def _enter(self, storage: Storage, *, first: bool) -> None:
        """A storage's buffer is filled, by its first computation or by a rematerialization."""
        if first:
            storage.last_access = self.clock
        else:
            if storage.evicted:
                storage.evicted = False
                self._neighborhood.restored(storage)
        storage.resident = storage.root.defined = True
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

    def _hold(self, storage: Storage, frame: Frame) -> None:
        storage.locks += 1
        self._locked[storage] = None
        frame.held.append(storage)

    def _unlock(self, storage: Storage) -> None:
        storage.locks -= 1
        if storage.locks == 0:
            del self._locked[storage]

    def _frame(self, op: Operator, wanted: Sequence[Tensor] = ()) -> Frame:
        """The operator waits; its inputs count as accessed from now on."""
        for storage in op.reads:
            self._touch(storage)
        return Frame(op, wanted)

    def _hold_inputs(self, frame: Frame) -> list[Tensor]:
        """Lock the inputs that are resident; those that are not defined."""
        for storage in frame.op.reads:
            if storage.resident and not storage.pinned and storage not in frame.held:
                self._hold(storage, frame)
        return [tensor for tensor in frame.op.inputs if not tensor.defined]

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
                pending += [each for each in tensor.op.inputs if not (each.defined or each.is_moved)]
            wanted[tensor.op].append(tensor)
        last_first = sorted(wanted, key=lambda op: op.id, reverse=True)
        frames = [self.rematerialize(wanted[op]) for op in last_first]
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
            if frame.lent < 2 * len(frame.op.reads):
                for storage in frame.held:
                    if storage.locks == 1 and storage.slot >= 0:
                        frame.held.remove(storage)
                        frame.lent += 1
                        self._unlock(storage)
                        return storage, math.inf
        return None
