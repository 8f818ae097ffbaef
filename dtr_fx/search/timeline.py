"""An order of operators, first runs and repeated ones, as memory over time, kept up to date by changes.

Any order in which every operator first comes after those it reads is a plan: a value lives from the run
that makes it to the last read before its next run.  Only the budget can be broken.  So a plan may be
changed one run at a time, and what a change does to memory is a sum over a few intervals.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dtr_fx.runtime.program import Call, Keep, Program

# Free slots before each run, for runs that are inserted later.
_STRIDE = 8
# The runs are spread again when as many as one in so many were added, undone ones included.
_DENSE = 5


@dataclass(frozen=True)
class Operators:
    """A program in terms of the storages that can be evicted, each numbered by itself.

    ``reads`` and ``makes`` are storages per operator, ``temporary`` the bytes that an operator allocates
    besides while it runs, ``again`` what one more run of it costs (with the views that must be taken again),
    ``repeats`` whether it may run again, ``may_wait`` whether it may run for the first time later than it
    stands.  ``maker`` and ``size`` are per storage.  ``kept`` are read at the end.  ``holds`` are the bytes
    of an operator's results that stay from its first run on; they are none of the storages.
    """

    reads: tuple[tuple[int, ...], ...]
    makes: tuple[tuple[int, ...], ...]
    temporary: tuple[int, ...]
    again: tuple[float, ...]
    repeats: tuple[bool, ...]
    may_wait: tuple[bool, ...]
    maker: tuple[int, ...]
    size: tuple[int, ...]
    kept: tuple[int, ...]
    holds: tuple[int, ...]

    @staticmethod
    def of(program: Program) -> Operators:
        number: dict[int, int] = {}  # of each tensor's storage; constants and what is held have none
        reads: list[tuple[int, ...]] = []
        makes: list[list[int]] = []
        temporary: list[int] = []
        again: list[float] = []
        repeats: list[bool] = []
        maker: list[int] = []
        size: list[int] = []
        holds: list[int] = []
        kept: dict[int, None] = {}
        held = held_storages(program)
        for step in program.instructions:
            if isinstance(step, Call):
                fresh = [output for output in step.outputs if output.alias is None]
                makes.append([])
                for output in step.outputs:
                    if output.alias is None and output.tensor in held:
                        pass
                    elif output.alias is None:
                        makes[-1].append(len(size))
                        number[output.tensor] = len(size)
                        size.append(output.size)
                        maker.append(len(makes) - 1)
                    elif output.alias in number:
                        number[output.tensor] = number[output.alias]
                        if not fresh:
                            again[maker[number[output.alias]]] += step.cost
                reads.append(tuple(dict.fromkeys(number[t] for t in step.inputs if t in number)))
                holds.append(sum(output.size for output in fresh if output.tensor in held))
                temporary.append(step.workspace + holds[-1])
                again.append(step.cost)
                repeats.append(step.recomputable and bool(makes[-1]))
                if not step.recomputable:
                    for output in step.outputs:
                        if output.alias in number:
                            repeats[maker[number[output.alias]]] = False
            elif isinstance(step, Keep) and step.tensor in number:
                kept[number[step.tensor]] = None
        return Operators(
            tuple(reads),
            tuple(map(tuple, makes)),
            tuple(temporary),
            tuple(again),
            tuple(repeats),
            tuple(call.may_wait and not held for call, held in zip(program.calls(), holds)),
            tuple(maker),
            tuple(size),
            tuple(kept),
            tuple(holds),
        )


def held_storages(program: Program) -> set[int]:
    """The storages that are kept before the last operator: they stay from the start."""
    storages = program.storages
    held: set[int] = set()
    kept: set[int] = set()
    for step in program.instructions:
        if isinstance(step, Keep):
            kept.add(storages[step.tensor])
        elif isinstance(step, Call):
            held |= kept
            kept = set()
    return held


class Timeline:
    """Runs of operators in slots, and the bytes that are live in each slot.

    ``cost`` is that of the repeated runs, ``changes`` how often the bytes of some slots changed.  Where
    nothing reads what a first run makes before it is made again, an operator that may wait does, and the
    first of its repeated runs costs nothing.
    Changes since the last ``commit`` are taken back by ``undo``.
    """

    def __init__(self, operators: Operators, order: Sequence[int], budget: int) -> None:
        self.operators = operators
        self.budget = budget
        self.changes = 0
        self._settle(order)

    def _settle(self, order: Sequence[int]) -> None:
        """Give every run a slot, with free slots between them."""
        ops = self.operators
        self.end = (len(order) + 1) * _STRIDE
        self.op_at: dict[int, int] = {}
        self.slots: list[int] = []
        self.runs: list[list[int]] = [[] for _ in ops.makes]
        self.reads: list[list[int]] = [[] for _ in ops.size]
        self.repeated: list[int] = []
        self._waiting: set[int] = set()
        self._place: dict[int, int] = {}
        self._added = 0
        self.cost = 0.0
        for position, op in enumerate(order):
            if self.runs[op] and not ops.makes[op]:
                continue
            slot = (position + 1) * _STRIDE
            self.op_at[slot] = op
            self.slots.append(slot)
            if self.runs[op]:
                self.cost += ops.again[op]
                self._list(slot)
            self.runs[op].append(slot)
            for storage in ops.reads[op]:
                self.reads[storage].append(slot)
        for storage in ops.kept:
            self.reads[storage].append(self.end)
        change = np.zeros(self.end + 3, np.int64)
        for op, runs in enumerate(self.runs):
            temporary = ops.temporary[op]
            for number, slot in enumerate(runs):
                change[slot] += temporary
                change[slot + 1 if number else self.end + 1] -= ops.holds[op] if not number else 0
                change[slot + 1] -= temporary - (0 if number else ops.holds[op])
                for storage in ops.makes[op]:
                    change[slot] += ops.size[storage]
                    change[self.last_read(storage, slot) + 1] -= ops.size[storage]
        self.used = np.cumsum(change)[:-1]
        self.commit()
        for op in range(len(self.runs)):
            self._let_wait(op)
        self.commit()

    @property
    def order(self) -> list[int]:
        """The operators in the order of their runs."""
        return [self.op_at[slot] for slot in self.slots]

    @property
    def over(self) -> int:
        """The bytes above the budget, summed over the slots."""
        if self.used.max() <= self.budget:
            return 0
        return int(np.maximum(self.used - self.budget, 0).sum())

    def worst(self) -> int:
        """A slot in which the most bytes are live."""
        return int(self.used.argmax())

    def commit(self) -> None:
        """Make the changes so far permanent."""
        self._log: list[tuple[str, int, int, int]] = []
        self._cost_before, self._added_before = self.cost, self._added

    def undo(self) -> None:
        """Take back every change since the last ``commit``."""
        for kind, a, b, c in reversed(self._log):
            if kind == "bytes":
                self.used[a:b] -= c
            elif kind == "read":
                self.reads[a].remove(b)
            elif kind == "unread":
                insort(self.reads[a], b)
            elif kind == "run":
                self._erase(a, b)
            elif kind == "wait":
                self._waiting ^= {a}
            else:
                self._write(a, b)
        self.cost, self._added = self._cost_before, self._added_before
        self._log.clear()

    def last_read(self, storage: int, run: int) -> int:
        """The slot of the last read of what ``run`` makes, or ``run`` itself."""
        runs = self.runs[self.operators.maker[storage]]
        reads = self.reads[storage]
        following = bisect_right(runs, run)
        last = bisect_left(reads, runs[following]) if following < len(runs) else len(reads)
        return reads[last - 1] if last and reads[last - 1] > run else run

    def run_before(self, op: int, slot: int) -> int:
        """The last run of an operator before a slot."""
        runs = self.runs[op]
        return runs[bisect_left(runs, slot) - 1]

    def is_live(self, storage: int, slot: int) -> bool:
        """Whether what the storage holds is read at the slot or later, before it is made again."""
        return self.last_read(storage, self.run_before(self.operators.maker[storage], slot)) >= slot

    def touched_before(self, storage: int, slot: int) -> int:
        """The slot at which the storage is last made or read before ``slot``."""
        run = self.run_before(self.operators.maker[storage], slot)
        reads = self.reads[storage]
        before = bisect_left(reads, slot)
        return max(run, reads[before - 1]) if before else run

    def read_after_idling(self, storage: int, slot: int) -> int | None:
        """The slot of the next read of what the storage holds, if it is live and idle at ``slot``."""
        runs, reads = self.runs[self.operators.maker[storage]], self.reads[storage]
        following = bisect_right(runs, slot)
        following_read = bisect_left(reads, slot)
        if not following or following_read == len(reads):
            return None
        read = reads[following_read]
        is_made_before = following < len(runs) and runs[following] < read
        return None if read == slot or runs[following - 1] == slot or is_made_before else read

    def free_slot(self, after: int, before: int) -> int | None:
        """The last empty slot before ``before`` and after ``after``, None if there is none near."""
        near = range(before - 1, max(after, before - _STRIDE), -1)
        return next((slot for slot in near if slot not in self.op_at), None)

    def free_slot_near(self, slot: int, distance: int) -> int | None:
        """The empty slot right before the run that is ``distance`` runs away."""
        index = min(max(bisect_left(self.slots, slot) + distance, 0), len(self.slots) - 1)
        return self.free_slot(0, self.slots[index])

    def runs_between(self, slot: int, other: int) -> bool:
        """Whether any run is strictly between two slots."""
        return bisect_left(self.slots, other) > bisect_right(self.slots, slot)

    def spread_if_dense(self) -> None:
        """Spread the runs evenly again if many were added since, so that there are free slots everywhere."""
        if self._added * _DENSE > len(self.slots):
            self._settle(self.order)

    def add(self, op: int, slot: int) -> None:
        """Run an operator once more, in an empty slot; what is read later is read from this run."""
        ops = self.operators
        before = self.run_before(op, slot)
        for storage in ops.makes[op]:
            size = ops.size[storage]
            end = self.last_read(storage, before)
            if end > slot:
                kept_to = self.touched_before(storage, slot)
                self._bytes(kept_to + 1, slot, -size)
            else:
                self._bytes(slot, slot + 1, size)
        self._bytes(slot, slot + 1, ops.temporary[op])
        self._write(op, slot)
        self._added += 1
        self._log.append(("run", op, slot, 0))
        self.cost += ops.again[op]
        for storage in ops.reads[op]:
            self._read(storage, slot)
        if not self._is_read(op, before):
            self.remove(before)
        self._let_wait(op)

    def remove(self, slot: int) -> None:
        """Take back a run, and those that only it had read; what is read later is kept from the run before.

        A first run stays.
        """
        op = self.op_at[slot]
        ops = self.operators
        if self.runs[op][0] == slot:
            return
        before = self.run_before(op, slot)
        for storage in ops.makes[op]:
            size = ops.size[storage]
            end = self.last_read(storage, slot)
            if end > slot:
                kept_to = self.touched_before(storage, slot)
                self._bytes(kept_to + 1, slot, size)
            else:
                self._bytes(slot, slot + 1, -size)
        self._bytes(slot, slot + 1, -ops.temporary[op])
        self._erase(op, slot)
        self._log.append(("no run", op, slot, 0))
        self.cost -= ops.again[op]
        assert before in self.op_at
        for storage in ops.reads[op]:
            self._unread(storage, slot)
            maker = ops.maker[storage]
            run = self.run_before(maker, slot)
            if not self._is_read(maker, run):
                self.remove(run)
        self._let_wait(op)

    def _let_wait(self, op: int) -> None:
        """Count the first run of an operator as none, or as one, if that has changed."""
        runs = self.runs[op]
        waits = self.operators.may_wait[op] and len(runs) > 1 and not self._is_read(op, runs[0])
        if waits != (op in self._waiting):
            self._waiting ^= {op}
            self._log.append(("wait", op, 0, 0))
            self.cost += -self.operators.again[op] if waits else self.operators.again[op]

    def _is_read(self, op: int, run: int) -> bool:
        return any(self.last_read(storage, run) > run for storage in self.operators.makes[op])

    def _read(self, storage: int, slot: int) -> None:
        end = self.last_read(storage, self.run_before(self.operators.maker[storage], slot))
        if end < slot:
            self._bytes(end + 1, slot + 1, self.operators.size[storage])
        insort(self.reads[storage], slot)
        self._log.append(("read", storage, slot, 0))
        self._let_wait(self.operators.maker[storage])

    def _unread(self, storage: int, slot: int) -> None:
        run = self.run_before(self.operators.maker[storage], slot)
        was = self.last_read(storage, run)
        self.reads[storage].remove(slot)
        self._log.append(("unread", storage, slot, 0))
        end = self.last_read(storage, run)
        if end < was:
            self._bytes(end + 1, was + 1, -self.operators.size[storage])
        self._let_wait(self.operators.maker[storage])

    def _bytes(self, start: int, stop: int, nbytes: int) -> None:
        if start >= stop or not nbytes:
            return
        self.used[start:stop] += nbytes
        self.changes += 1
        self._log.append(("bytes", start, stop, nbytes))

    def _write(self, op: int, slot: int) -> None:
        insort(self.runs[op], slot)
        insort(self.slots, slot)
        self.op_at[slot] = op
        self._list(slot)

    def _erase(self, op: int, slot: int) -> None:
        self.runs[op].remove(slot)
        del self.slots[bisect_left(self.slots, slot)]
        del self.op_at[slot]
        place = self._place.pop(slot)
        last = self.repeated.pop()
        if last != slot:
            self.repeated[place] = last
            self._place[last] = place

    def _list(self, slot: int) -> None:
        self._place[slot] = len(self.repeated)
        self.repeated.append(slot)
