"""Deallocation: a storage that the program has released is evicted or banished (Appendix C.5).

Under all policies (see ``Runtime``) a storage that nothing can ask for again is freed for good.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable

from . import steps
from .addresses import Addressed
from .graph import Frame, Operator, Storage, Tensor
from .steps import Step


class Deallocating(Addressed):
    """The end of storages: released, pinned, dropped by a plan, or of no more use."""

    @abstractmethod
    def forget(self, storage: Storage) -> None:
        """See ``moving``."""

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
            self.perform_eviction(storage, tensor.op, steps.PLANNED)

    def discard(self, tensor: Tensor) -> None:
        """Free the tensor's storage for good, even if pinned; whatever asks for it is ``Discarded``."""
        storage = tensor.storage
        if storage.resident and storage.root.op is not None:
            storage.retired = True
            self._discard(storage)
            self.forget(storage)

    def _run_and_record(self, op: Operator) -> None:
        """The operator runs: time goes by, its buffers are filled, its workspace is free again."""
        first = op.runs == 0
        if self.execute is not None:
            cost = self.execute(op)
            if first:  # and its storages are linked to it already, with the cost that was expected
                for tensor in op.outputs:
                    if tensor is tensor.storage.root:
                        tensor.storage.cost += cost - op.cost
                op.cost = cost
        self._place((each.storage for each in op.outputs if each is each.storage.root), op.workspace)
        self.used += op.allocates
        self.peak = max(self.peak, self.used)
        self.clock += op.cost
        op.runs += 1
        self.steps.append(Step(steps.COMPUTE if first else steps.RECOMPUTE, op.id, -1, self.used))
        self.used -= op.workspace
        if first:
            self.base_cost += op.cost
        for tensor in op.outputs:
            storage = tensor.storage
            if tensor is not storage.root:
                tensor.defined = True
            elif storage.resident or storage.retired:
                self.used -= storage.size
            else:
                self._enter(storage, first=first)
        if not first and not self.keep_passed:
            self._drop_unneeded((tensor.storage for tensor in op.outputs), op, steps.DUPLICATE)

    def _extend(self, op: Operator, storage: Storage) -> None:
        """A new view adds its operator's cost and dependencies to the storage that it aliases (C.2)."""
        in_pool = storage.slot >= 0
        if in_pool:
            self._neighborhood.left(storage)
        self._link(op, storage)
        self._touch(storage)
        if in_pool:
            self._pool.cost[storage.slot] = storage.cost
            self._neighborhood.entered(storage)
        if not op.recomputable:
            self._pin(storage)

    def _finish(self, frame: Frame) -> None:
        """An operator waits no more: what it has held can go."""
        self._frames.pop()
        frame.done = True
        for storage in frame.held:
            self._unlock(storage)
        if not self.keep_passed:
            self._drop_unneeded(frame.held, frame.op, steps.PASSED)
        if self._banishing:
            self._retry_banishing()

    def _drop_unneeded(self, storages: Iterable[Storage], op: Operator, reason: str) -> None:
        """Drop what the program has released and the operator that waits does not read."""
        wanted = next((frame.op.reads for frame in reversed(self._frames) if frame.op is not op), ())
        for storage in storages:
            is_free = storage.slot >= 0 and not storage.locks and not self._is_leaving(storage)
            if is_free and storage.refs == 0 and storage not in wanted:
                self.perform_eviction(storage, op, reason)

    def _deallocate(self, storage: Storage) -> None:
        if self.deallocation == "ignore" or storage.root.op is None:
            return
        if storage.dependents == 0:
            self._retire(storage)
        elif self.deallocation == "banish":
            self._banishing.append(storage)
            self._retry_banishing()
        elif storage.slot >= 0 and not self._is_leaving(storage):
            self.perform_eviction(storage, storage.root.op, steps.RELEASED)

    def _retire(self, storage: Storage) -> None:
        """Free for good a storage that neither the program nor a rematerialization can ask for again."""
        pending = [storage]
        while pending:
            storage = pending.pop()
            if storage.retired or storage.root.op is None:
                continue
            storage.retired = True
            if storage.resident:
                self._discard(storage)
            else:
                storage.evicted = False
                self._neighborhood.left(storage)
            self.forget(storage)
            pending.extend(self._let_go_of_parents(storage))

    def _discard(self, storage: Storage) -> None:
        assert storage.root.op is not None
        if self._is_leaving(storage):
            storage.seconds_back = self._pool.back[storage.slot] = 0.0
            return
        self._leave_pool(storage)
        self._free(storage)
        self.steps.append(Step(steps.BANISH, storage.root.op.id, storage.id, self.used, steps.DEAD))

    def _is_leaving(self, storage: Storage) -> bool:
        """True while it is being copied out: it stays in the pool, where an eviction waits for its bytes."""
        return storage.slot >= 0 and storage.leaves is not None and storage.leaves > self.clock

    def _let_go_of_parents(self, storage: Storage) -> list[Storage]:
        """The parents no longer have to be there for this storage; those that nothing else needs."""
        if storage.has_let_go:
            return []
        storage.has_let_go = True
        for parent in storage.parents:
            parent.dependents -= 1
        unneeded = (parent for parent in storage.parents if parent.dependents == 0 and parent.refs == 0)
        return list(unneeded) if self.deallocation != "ignore" else []

    def _retry_banishing(self) -> None:
        """Banish what waits and has no evicted child left; its children can never be evicted again."""
        waiting = []
        for storage in self._banishing:
            if storage.retired or storage.refs:
                continue
            if storage.locks or any(_reads_again(child, storage) for child in storage.children):
                waiting.append(storage)
            else:
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


def _reads_again(child: Storage, storage: Storage) -> bool:
    """True if to make the child, or a view of it, again would read the storage."""
    undefined = (tensor.op for tensor in child.tensors if not tensor.defined)
    return child.evicted or any(op is not None and storage in op.reads for op in undefined)
