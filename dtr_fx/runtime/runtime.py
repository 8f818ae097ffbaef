"""Dynamic Tensor Rematerialization: Figure 1 and Appendix C of Kirisame et al., ICLR 2021.

    perform_op ── what is missing is rematerialized first ──► _execute ──► _allocate_buffer
                                                                              │ over budget
                                                                              ▼
    release ──► _deallocate (C.5) ────────────────────────────────────► _evict (perform_eviction)

Deviations from the paper, each where it occurs: rematerialization keeps its own stack instead of
recursing; locks held by operators that wait for a rematerialization give way when nothing else can be
evicted; a storage that nothing can ask for again is freed for good; constants are never freed, not even
by banishing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypeAlias

from dtr_fx.runtime import events
from dtr_fx.runtime.events import Event
from dtr_fx.runtime.graph import Operator, Storage, Tensor
from dtr_fx.runtime.heuristics import Heuristic, Score, resolve
from dtr_fx.runtime.neighborhood import track
from dtr_fx.runtime.pool import Pool

Deallocation: TypeAlias = Literal["eager", "banish", "ignore"]
Order: TypeAlias = Literal["depth first", "program"]


class RunFailed(Exception):
    """A run cannot go on."""


class OutOfBudget(RunFailed):
    """Nothing is left to evict.  ``op`` needed ``needed`` bytes beside the ``used`` resident ones."""

    def __init__(self, op: int, needed: int, used: int, budget: int) -> None:
        super().__init__(
            f"operator {op} needs {needed} bytes beside {used} resident, more than the budget of {budget}"
        )
        self.op = op
        self.needed = needed
        self.used = used


class Thrash(RunFailed):
    """Rematerialization costs more than the run's limit."""


class Discarded(RunFailed):
    """What ``discard`` freed for good is asked for again."""


class _Frame:
    """An operator that is waiting for its inputs; ``held`` are those that it has locked."""

    __slots__ = ("done", "held", "lent", "op", "wanted")

    def __init__(self, op: Operator, wanted: Sequence[Tensor] = ()) -> None:
        self.op = op
        self.wanted = wanted
        self.done = False
        self.held: list[Storage] = []
        self.lent = 0


class Runtime:
    """Runs operators under a byte budget, evicting and rematerializing as the paper prescribes.

    Parameters
    ----------
    budget:
        Bytes that may be resident at any time; ``math.inf`` for no limit.
    heuristic:
        A name of ``HEURISTICS``, a ``Heuristic``, or a function ``score(s, m, c)`` over arrays.
    deallocation:
        What the last ``release`` of a storage does (C.5): ``"eager"`` evicts it, ``"banish"`` frees it
        for good and pins what it alone could recompute, ``"ignore"`` nothing.
    keep_passed:
        Whether a released storage that is rematerialized on the way to another one stays resident until
        it is evicted (as in the paper) or is dropped as soon as it has been read.
    order:
        How what is missing is rematerialized: ``"depth first"``, input by input (as in the paper), or in
        ``"program"`` order, all that is missing at once and each operator of it once.
    max_recompute:
        Cost of rematerialized operators above which a run gives up with ``Thrash``.
    execute:
        Runs an operator, each time right after room was made for it, and returns what it cost; the first time
        counts.  None where nothing is run and costs are as given.

    Examples
    --------
    >>> runtime = Runtime(budget=2, heuristic="lru")
    >>> x = runtime.constant(0)
    >>> [a] = runtime.perform_op([x], [1], cost=1.0)
    >>> [b] = runtime.perform_op([a], [1], cost=1.0)
    >>> [c] = runtime.perform_op([b], [1], cost=1.0)
    >>> runtime.access(a)
    >>> [event.kind for event in runtime.events]
    ['compute', 'compute', 'drop', 'compute', 'drop', 'recompute']
    """

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
        self.events: list[Event] = []
        self.storages: list[Storage] = []
        self._operators = 0
        self._score = self.heuristic.make_score()
        self._pool = Pool()
        self._neighborhood = track(self.heuristic, self._pool)
        self._frames: list[_Frame] = []
        self._waiting: dict[Storage, list[_Frame]] = {}
        self._locked: dict[Storage, None] = {}
        self._banishing: list[Storage] = []

    @property
    def recompute_cost(self) -> float:
        """What the rematerialized operators have cost so far."""
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

    def perform_op(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[int | Tensor],
        cost: float,
        *,
        workspace: int = 0,
        recomputable: bool = True,
        number: int | None = None,
    ) -> tuple[Tensor, ...]:
        """Run a new operator of ``cost`` seconds (Fig. 1, PerformOp).

        Each output is given as the bytes of a fresh storage, or as the tensor whose storage it aliases.
        ``workspace`` bytes are allocated while it runs and freed at its end.  The outputs of an operator
        that is not ``recomputable`` are never evicted.  ``number`` is what its events call it, if not the
        next one.

        Raises
        ------
        OutOfBudget
            Its inputs and outputs do not fit and nothing is left to evict.
        Thrash
            Rematerialization costs more than ``max_recompute``.
        """
        id = self._operators if number is None else number
        op = Operator(id, inputs, cost, workspace, recomputable=recomputable)
        self._operators += 1
        op.outputs = tuple(self._output(op, spec) for spec in outputs)
        aliased: dict[Storage, None] = {}
        for tensor in op.outputs:
            if tensor is tensor.storage.root:
                self._link(op, tensor.storage)
            else:
                aliased[tensor.storage] = None
        self._perform(op)
        for storage in aliased:
            self._extend(op, storage)
        return op.outputs

    def access(self, tensor: Tensor) -> None:
        """Make a tensor defined, rematerializing it if it must be."""
        storage = tensor.storage
        storage.last_access = self.clock
        if storage.slot >= 0:
            self._pool.last_access[storage.slot] = self.clock
        if not tensor.defined:
            assert tensor.op is not None
            self._perform(tensor.op)

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

    def release(self, tensor: Tensor) -> None:
        """Take an external reference away; the last one deallocates the storage by the policy."""
        storage = tensor.storage
        storage.refs -= 1
        if storage.refs == 0:
            self._deallocate(storage)
            if storage.evicted:
                self._neighborhood.referenced(storage)

    def pin(self, tensor: Tensor) -> None:
        """Never evict the tensor's storage from now on; it must be resident."""
        assert tensor.storage.resident
        self._pin(tensor.storage)

    def drop(self, tensor: Tensor) -> None:
        """Evict the tensor's storage, as a plan says that was made with knowledge of the future."""
        storage = tensor.storage
        if storage.slot >= 0:
            assert tensor.op is not None
            self._evict(storage, tensor.op, events.PLANNED)

    def discard(self, tensor: Tensor) -> None:
        """Free the tensor's storage for good, even if it is pinned: nothing asks for it again.

        Should something do, the run fails with ``Discarded``.
        """
        storage = tensor.storage
        if storage.resident and storage.root.op is not None:
            storage.retired = True
            self._discard(storage, events.DEAD)

    # Figure 1

    def _perform(self, op: Operator) -> None:
        """Run an operator after whatever must be rematerialized for it.

        The paper recurses; here each waiting operator is a frame, so that a chain of any length of
        evicted operators can be recomputed.
        """
        base = len(self._frames)
        self._frames.append(_Frame(op))
        self._touch(op)
        try:
            while len(self._frames) > base:
                frame = self._frames[-1]
                missing = self._hold_inputs(frame)
                if frame.wanted and all(tensor.defined for tensor in frame.wanted):
                    self._finish(frame)
                elif not missing:
                    self._execute(frame.op)
                    self._finish(frame)
                elif self.order == "program":
                    self._frames += self._in_program_order(frame, missing)
                else:
                    self._frames.append(self._rematerialize(missing[:1]))
        except RunFailed:
            for frame in self._frames[base:]:
                for storage in frame.held:
                    self._unlock(storage)
            self._waiting.clear()
            del self._frames[base:]
            raise

    def _finish(self, frame: _Frame) -> None:
        self._frames.pop()
        frame.done = True
        self._let_go(frame)

    def _rematerialize(self, wanted: Sequence[Tensor]) -> _Frame:
        op = wanted[0].op
        assert op is not None
        if wanted[0].storage.retired:
            raise Discarded(f"operator {op.id} would have to run again, and its results are discarded")
        self._touch(op)
        return _Frame(op, wanted)

    def _in_program_order(self, waiting: _Frame, missing: Sequence[Tensor]) -> list[_Frame]:
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
        frames = [self._rematerialize(wanted[op]) for op in sorted(wanted, key=_by_number, reverse=True)]
        for frame in (waiting, *frames):
            self._hold_inputs(frame)
            for storage in frame.op.reads:
                if not storage.resident:
                    self._waiting.setdefault(storage, []).append(frame)
        return frames

    def _touch(self, op: Operator) -> None:
        """Inputs count as accessed before they are rematerialized, an output after its first run."""
        clock = self.clock
        for storage in op.reads:
            storage.last_access = clock
            if storage.slot >= 0:
                self._pool.last_access[storage.slot] = clock

    def _hold_inputs(self, frame: _Frame) -> list[Tensor]:
        """Lock the inputs that are resident; those that are not defined."""
        for storage in frame.op.reads:
            if storage.resident and not storage.pinned and storage not in frame.held:
                self._hold(storage, frame)
        return [tensor for tensor in frame.op.inputs if not tensor.defined]

    def _hold(self, storage: Storage, frame: _Frame) -> None:
        storage.locks += 1
        self._locked[storage] = None
        frame.held.append(storage)

    def _unlock(self, storage: Storage) -> None:
        storage.locks -= 1
        if storage.locks == 0:
            del self._locked[storage]

    def _let_go(self, frame: _Frame) -> None:
        for storage in frame.held:
            self._unlock(storage)
        if not self.keep_passed:
            self._drop_unneeded(frame.held, frame.op, events.PASSED)
        if self._banishing:
            self._retry_banishing()

    def _execute(self, op: Operator) -> None:
        self._allocate_buffer(op)
        if self.execute is not None:
            self._take_time(op, self.execute(op))
        self.used += op.allocates
        if self.used > self.peak:
            self.peak = self.used
        self.clock += op.cost
        first = op.runs == 0
        op.runs += 1
        self.events.append(
            Event(events.COMPUTE if first else events.RECOMPUTE, op.id, -1, self.used, "", None)
        )
        self.used -= op.workspace
        if first:
            self.base_cost += op.cost
            self.now += op.cost
        for tensor in op.outputs:
            storage = tensor.storage
            if tensor is not storage.root:
                tensor.defined = True
            elif storage.resident or storage.retired:
                self.used -= storage.size
            else:
                self._enter(storage, first=first)
        if not first and not self.keep_passed:
            self._drop_unneeded((tensor.storage for tensor in op.outputs), op, events.DUPLICATE)
        if self.recompute_cost > self.max_recompute:
            raise Thrash(f"rematerialization costs more than {self.max_recompute}")

    def _take_time(self, op: Operator, cost: float) -> None:
        """What the operator costs is known now: also of the storages that were linked to it before."""
        if op.runs == 0:
            for tensor in op.outputs:
                if tensor is tensor.storage.root:
                    tensor.storage.cost += cost - op.cost
            op.cost = cost

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

    def _allocate_buffer(self, op: Operator) -> None:
        """Evict until the operator's outputs fit (Fig. 1, AllocateBuffer)."""
        while self.used + op.allocates > self.budget:
            self._neighborhood.refresh()
            next_use = self.heuristic.time == "next_use"
            choice = self._pool.victim(
                self._score,
                self.heuristic.time,
                self.now if next_use else self.clock,
                self._locked,
            ) or self._borrow(op)
            if choice is None:
                raise OutOfBudget(op.id, op.allocates, self.used, int(self.budget))
            self._evict(choice[0], op, events.BUDGET, choice[1])

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

    def _drop_unneeded(self, storages: Iterable[Storage], op: Operator, reason: str) -> None:
        """Drop what the program has released and the operator that waits does not read."""
        waiting = [frame for frame in self._frames if frame.op is not op]
        wanted = waiting[-1].op.reads if waiting else ()
        for storage in storages:
            if storage.slot >= 0 and storage.refs == 0 and not storage.locks and storage not in wanted:
                self._evict(storage, op, reason)

    def _evict(self, storage: Storage, op: Operator, reason: str, score: float | None = None) -> None:
        """Free a storage that can be recomputed (Fig. 1, PerformEviction)."""
        self._pool.remove(storage)
        self._free(storage)
        storage.evicted = True
        self._neighborhood.evicted(storage)
        self.events.append(Event(events.DROP, op.id, storage.id, self.used, reason, score))

    def _free(self, storage: Storage) -> None:
        self.used -= storage.size
        storage.resident = False
        for tensor in storage.tensors:
            tensor.defined = False

    # Appendix C.5: deallocation

    def _deallocate(self, storage: Storage) -> None:
        if self.deallocation == "ignore" or storage.root.op is None:
            return
        if storage.dependents == 0:
            self._retire(storage)
        elif self.deallocation == "banish":
            self._banishing.append(storage)
            self._retry_banishing()
        elif storage.slot >= 0:
            self._evict(storage, storage.root.op, events.RELEASED)

    def _retire(self, storage: Storage) -> None:
        """Free for good a storage that neither the program nor a rematerialization can ask for again."""
        pending = [storage]
        while pending:
            storage = pending.pop()
            if storage.retired or storage.root.op is None:
                continue
            storage.retired = True
            if storage.resident:
                self._discard(storage, events.DEAD)
            else:
                storage.evicted = False
                self._neighborhood.left(storage)
            pending.extend(self._let_go_of_parents(storage))

    def _discard(self, storage: Storage, reason: str) -> None:
        self._leave_pool(storage)
        self._free(storage)
        assert storage.root.op is not None
        self.events.append(Event(events.BANISH, storage.root.op.id, storage.id, self.used, reason, None))

    def _let_go_of_parents(self, storage: Storage) -> list[Storage]:
        """The parents no longer have to be there for this storage; those that nothing else needs."""
        if storage.has_let_go:
            return []
        storage.has_let_go = True
        freed = []
        for parent in storage.parents:
            parent.dependents -= 1
            if parent.dependents == 0 and parent.refs == 0 and self.deallocation != "ignore":
                freed.append(parent)
        return freed

    def _retry_banishing(self) -> None:
        """Banish what waits and has no evicted child left; its children can never be evicted again."""
        waiting = []
        for storage in self._banishing:
            if storage.retired or storage.refs:
                continue
            if storage.locks or any(_reads_again(child, storage) for child in storage.children):
                waiting.append(storage)
                continue
            for child in storage.children:
                if child.resident:
                    self._pin(child)
            self._retire(storage)
        self._banishing = waiting

    def _pin(self, storage: Storage) -> None:
        if storage.pinned:
            return
        self._leave_pool(storage)
        storage.pinned = True
        # A view that is still to be re-made may read more than the storage itself.
        if all(tensor.defined for tensor in storage.tensors):
            for parent in self._let_go_of_parents(storage):
                self._retire(parent)

    # Bookkeeping

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

    def _leave_pool(self, storage: Storage) -> None:
        if storage.slot >= 0:
            self._pool.remove(storage)
            self._neighborhood.left(storage)


def _reads_again(child: Storage, storage: Storage) -> bool:
    """Whether re-making the child, or a view of it, would read the storage."""
    return child.evicted or any(
        not tensor.defined and tensor.op is not None and storage in tensor.op.reads
        for tensor in child.tensors
    )


def _by_number(op: Operator) -> int:
    return op.id
