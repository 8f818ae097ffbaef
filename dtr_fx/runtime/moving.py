"""Moving out and bringing back: a storage that was copied out is evicted as any other, and comes back by a
transfer instead of a rematerialization, so that its evicted neighbourhood ends there.
"""

from __future__ import annotations

from abc import abstractmethod

from . import steps
from .deallocation import Deallocating
from .graph import Operator, Storage, Tensor
from .steps import Step


class Moving(Deallocating):
    """The actions on the two queues of the link; see ``channels``."""

    @abstractmethod
    def allocate_buffer(self, op: Operator) -> None:
        """See ``figure1``."""

    def move_out(self, tensor: Tensor) -> None:
        """Start to copy the tensor's storage out; from ``wait_out`` on it may be evicted."""
        assert self.channels is not None
        assert self.tier is not None
        storage = tensor.storage
        storage.outside = self.channels.move_out(self.clock, storage.size)
        self.moved += self.tier.taken_by(storage.size)
        self.moved_peak = max(self.moved_peak, self.moved)
        self._step(steps.OFFLOAD, storage, self.channels.bandwidth.seconds_out(storage.size))

    def wait_out(self, tensor: Tensor) -> None:
        """Wait until the copy out has ended."""
        storage = tensor.storage
        assert storage.outside is not None
        self._wait(storage, storage.outside)
        if storage.pinned and storage.resident:  # for no other reason than that it cannot be recomputed
            storage.pinned = False
            self._pool.add(storage)
            self._neighborhood.entered(storage)

    def bring_back(self, tensor: Tensor) -> None:
        """Allocate the tensor's storage, evicting others if need be, and start to copy it back."""
        assert self.channels is not None
        storage = tensor.storage
        assert storage.outside is not None
        assert storage.root.op is not None
        transfer = Operator(storage.root.op.id, (), 0.0, storage.size, recomputable=False)
        self.allocate_buffer(transfer)
        self._place([storage])
        self.used += storage.size
        self.peak = max(self.peak, self.used)
        storage.arrives = self.channels.bring_back(self.clock, storage.size, storage.outside)
        self._step(steps.RELOAD, storage, self.channels.bandwidth.seconds_back(storage.size))
        self._enter(storage, first=False)

    def _await(self, op: Operator) -> None:
        """Wait for what an operator reads and what is still on its way back."""
        for storage in op.reads:
            if storage.arrives is not None:
                self._wait(storage, storage.arrives)
                storage.arrives = None

    def _wait(self, storage: Storage, until: float) -> None:
        waited = max(0.0, until - self.clock)
        self.waited += waited
        self.clock += waited
        self._step(steps.WAIT, storage, waited)

    def _step(self, kind: str, storage: Storage, seconds: float) -> None:
        assert storage.root.op is not None
        self.steps.append(Step(kind, storage.root.op.id, storage.id, self.used, seconds=seconds))
