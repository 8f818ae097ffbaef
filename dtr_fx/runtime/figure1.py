"""Figure 1 of Kirisame et al. (ICLR 2021), the core of Dynamic Tensor Rematerialization.

perform_op ── what is missing: rematerialize ──► execute
                                                   └─ allocate_buffer ── over budget ──► perform_eviction
"""

from __future__ import annotations

from collections.abc import Sequence

from . import steps
from .failures import Discarded, OutOfBudget, RunFailed, Thrash
from .graph import Frame, Operator, Storage, Tensor
from .moving import Moving
from .steps import Step


class Figure1(Moving):
    """PerformOp, Rematerialize, AllocateBuffer and PerformEviction."""

    def perform_op(
        self,
        inputs: Sequence[Tensor],
        outputs: Sequence[int | Tensor],
        cost: float,
        *,
        workspace: int = 0,
        recomputable: bool = True,
        movable: bool = False,
        number: int | None = None,
    ) -> tuple[Tensor, ...]:
        """Run a new operator of ``cost`` seconds (Fig. 1, PerformOp).

        Each output is given as the bytes of a fresh storage, or as the tensor whose storage it aliases.
        ``workspace`` bytes are allocated while it runs and freed at its end.  The outputs of an operator
        that is not ``recomputable`` are never evicted; those of one that is ``movable`` may be moved.
        ``number`` is what its events call it, if not the next one.

        Raises ``OutOfBudget`` where nothing is left to evict, ``Thrash`` where rematerialization costs more
        than ``max_recompute``.
        """
        id = self._operators if number is None else number
        op = Operator(id, tuple(inputs), cost, workspace, recomputable, movable)
        self._operators += 1
        op.outputs = tuple(self._output(op, spec) for spec in outputs)
        for tensor in op.outputs:
            if tensor is tensor.storage.root:
                self._link(op, tensor.storage)
        self._perform(op)
        aliased = [tensor.storage for tensor in op.outputs if tensor is not tensor.storage.root]
        for storage in dict.fromkeys(aliased):
            self._extend(op, storage)
        return op.outputs

    def _perform(self, op: Operator, wanted: Sequence[Tensor] = ()) -> None:
        """Run an operator after whatever must be rematerialized for it, in chains of any length."""
        self._frames.append(self._frame(op, wanted))
        try:
            while self._frames:
                frame = self._frames[-1]
                missing = self._hold_inputs(frame)
                moved = next((tensor for tensor in missing if tensor.is_moved), None)
                if frame.wanted and all(tensor.defined for tensor in frame.wanted):
                    self._finish(frame)
                elif not missing:
                    self._execute(frame.op)
                    self._finish(frame)
                elif moved is not None:
                    self.bring_back(moved)
                elif self.order == "program":
                    self._frames += self._in_program_order(frame, missing)
                else:
                    self._frames.append(self.rematerialize(missing[:1]))
        except RunFailed:
            for frame in self._frames:
                for storage in frame.held:
                    self._unlock(storage)
            self._waiting.clear()
            self._frames.clear()
            raise

    def rematerialize(self, wanted: Sequence[Tensor]) -> Frame:
        """The operator of evicted tensors, to run again before the one that waits (Fig. 1, Rematerialize)."""
        op = wanted[0].op
        assert op is not None
        if wanted[0].storage.retired:
            raise Discarded(f"operator {op.id} would have to run again, and its results are discarded")
        return self._frame(op, wanted)

    def allocate_buffer(self, op: Operator) -> None:
        """Evict until the operator's outputs fit (Fig. 1, AllocateBuffer)."""
        self._make_way(op.allocates)
        while self.used + op.allocates > self.budget:
            choices = self._choose(op)
            if not choices:
                raise OutOfBudget(op.id, op.allocates, self.used, int(self.budget))
            self._evict(choices, op)
        if self._lacks_gap(op):
            self._evict(self._window(op), op)

    def _evict(self, choices: Sequence[tuple[Storage, float]], op: Operator) -> None:
        for storage, score in choices:
            self.move_out_if_cheaper(storage)
            self.perform_eviction(storage, op, steps.BUDGET, score)

    def perform_eviction(
        self, storage: Storage, op: Operator, reason: str, score: float | None = None
    ) -> None:
        """Free a storage that can be recomputed, or brought back (Fig. 1, PerformEviction)."""
        self.wait_for(storage)
        self._pool.remove(storage)
        self._free(storage)
        storage.evicted = storage.outside is None
        (self._neighborhood.evicted if storage.evicted else self._neighborhood.left)(storage)
        self.steps.append(Step(steps.DROP, op.id, storage.id, self.used, reason, score))

    def _execute(self, op: Operator) -> None:
        self.move_out_ahead()
        self.allocate_buffer(op)
        self._await(op)
        self._run_and_record(op)
        if self.recompute_cost + self.waited > self.max_recompute:
            raise Thrash(f"rematerialization costs more than {self.max_recompute}")
