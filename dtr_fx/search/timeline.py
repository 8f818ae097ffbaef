"""An order of operators, first runs and repeated ones, as memory over time, kept up to date by changes.

Only the budget can be broken (see ``lifetimes``).  So a plan may be changed one run at a time, and what a
change does to memory is a sum over a few intervals.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dtr_fx.runtime.channels import Channels

from .lifetimes import NOTHING, Lifetimes, Moved, Operators, operator_of

# Free slots before each run, for runs that are inserted later.
_STRIDE = 8
# The runs are spread again when as many as one in so many were added, undone ones included.
_DENSE = 5


class Found(NamedTuple):
    """An order, the cost of its repeated runs, and its bytes above the budget, summed over slots.

    The results of the operators ``moved`` are moved out.
    """

    cost: float
    over: int
    order: list[int]
    moved: Moved = NOTHING


class Timeline(Lifetimes):
    """Runs of operators in slots, and the bytes that are live in each slot.

    It has none until it is told an order.  ``cost`` is that of the repeated runs, ``changes`` how often the
    bytes of some slots changed.  Where the first run of an operator is deferred, the first of its repeated
    runs costs nothing.  Changes since the last ``commit`` are taken back by ``undo``.  ``load`` is the time
    that all transfers take, ``late`` that by which each alone comes back too late, and ``stalled`` that for
    which compute waits for copies out: none of these counts as cost.
    """

    def __init__(self, operators: Operators, budget: int) -> None:
        self.operators = operators
        self.budget = budget
        self.changes = 0

    def settle(self, order: Sequence[int], moved: Moved = NOTHING) -> Found:
        """Start anew from an order: every run has a slot, with free slots between them."""
        ops = self.operators
        self.op_at: dict[int, int] = {}
        self.repeated: list[int] = []
        self._deferred = [False] * len(ops.makes)
        self._place: dict[int, int] = {}
        self._added = 0
        self.cost = self.load = self.late = 0.0
        self._late: dict[int, float] = {}
        runs: list[tuple[int, int]] = []
        known: set[int] = set()
        for position, run in enumerate(ops.in_time(order, moved) if moved else order):
            op = operator_of(run)
            if op in known and not ops.makes[op]:
                continue
            slot = (position + 1) * _STRIDE
            runs.append((slot, run))
            self.op_at[slot] = op
            if run < 0:
                self.load += ops.back[op]
            elif op in known:
                self.cost += ops.again[op]
            if op in known:
                self._list(slot)
            known.add(op)
        self.load += sum(ops.out[op] for op in moved)
        self.slots = list(self.op_at)
        super().__init__(ops, runs, (len(order) + 1) * _STRIDE, moved)
        self.used = self._live()
        if ops.tier is not None:
            self._measure()
        for slot in sorted(self.back):
            self._set_late(slot, self._lateness(self.op_at[slot], slot))
        self.commit()
        for op in range(len(self.runs)):
            self._defer(op)
        self.commit()
        return Found(self.cost, self.over, self.order, dict(self.moved))

    def _measure(self) -> None:
        """``clock`` is when what runs in each slot starts if nothing waits, as of the last ``settle``."""
        taken = np.zeros(self.end + 3)
        for slot, op in self.op_at.items():
            taken[slot + 1] = 0.0 if slot in self.back else self.operators.again[op]
        self.clock = np.cumsum(taken)

    def slot_at(self, time: float) -> int:
        """The last slot in which nothing starts later."""
        return max(0, int(self.clock.searchsorted(time, side="right")) - 1)

    def waited(self) -> float:
        """The time that operators wait for transfers; see ``channels``."""
        ops = self.operators
        if ops.tier is None or ops.tier.speed is None or not self.moved:
            return 0.0
        channels, known = Channels(ops.tier.speed), set()
        clock = waited = 0.0
        outside: dict[int, float] = {}
        arrives: dict[int, float] = {}
        moved = {self.op_at[slot] for slot in self.back}
        starts: dict[int, list[int]] = {}
        left: dict[int, list[int]] = {}
        for op in sorted(moved):
            starts.setdefault(ops.written[op], []).append(op)
            again = self.runs[op][1]
            left.setdefault(max(self.touched_before(each, again) for each in ops.makes[op]), []).append(op)
        leaving: list[tuple[float, int]] = []
        for slot in self.slots:
            op = self.op_at[slot]
            until = self._room_at(slot, clock, leaving, op if op in known else None)
            waited += until - clock
            clock = until
            if slot in self.back:
                for storage in ops.makes[op]:
                    arrives[storage] = channels.bring_back(clock, ops.size[storage], outside[op])
            else:
                until = max([clock, *(arrives.pop(each, 0.0) for each in ops.reads[op])])
                waited += until - clock
                clock = until + ops.again[op]
                for mover in starts.get(op, ()) if op not in known else ():
                    outside[mover] = max(
                        channels.move_out(clock, ops.size[storage]) for storage in ops.makes[mover]
                    )
                known.add(op)
            leaving += [(outside[mover], mover) for mover in left.get(slot, ())]
        return waited

    def _room_at(self, slot: int, clock: float, leaving: list[tuple[float, int]], again: int | None) -> float:
        """When there is room for what runs in a slot, as copies out have ended: they leave.

        What an operator makes ``again`` has to have left before.
        """
        leaving.sort()
        held = int(self.used[slot]) + sum(self._nbytes(op) for _, op in leaving)
        while leaving and (
            leaving[0][0] <= clock or held > self.budget or any(op == again for _, op in leaving)
        ):
            ended, op = leaving.pop(0)
            clock = max(clock, ended)
            held -= self._nbytes(op)
        return clock

    def _nbytes(self, op: int) -> int:
        return sum(self.operators.size[storage] for storage in self.operators.makes[op])

    def _live(self) -> npt.NDArray[np.int64]:
        """The bytes that are live in each slot."""
        ops = self.operators
        change = np.zeros(self.end + 3, np.int64)
        for op, runs in enumerate(self.runs):
            for number, slot in enumerate(runs):
                stays = 0 if number else ops.holds[op]
                temporary = self._temporary(op, slot)
                change[slot] += temporary
                change[slot + 1] -= temporary - stays
                change[self.end + 1] -= stays
                for storage in ops.makes[op]:
                    change[slot] += ops.size[storage]
                    change[self.last_read(storage, slot) + 1] -= ops.size[storage]
        return np.cumsum(change)[:-1]

    @property
    def order(self) -> list[int]:
        """The operators in the order of their runs, and where their results come back."""
        return [~self.op_at[slot] if slot in self.back else self.op_at[slot] for slot in self.slots]

    @property
    def over(self) -> int:
        """The bytes above the budget, summed over the slots."""
        if self.used.max() <= self.budget:
            return 0
        return int(np.maximum(self.used - self.budget, 0).sum())

    def commit(self) -> None:
        """Make the changes so far permanent."""
        self._shifts: list[tuple[int, int, int]] = []
        self._undoing: list[tuple[Callable[[Any, Any], object], Any, Any]] = []
        self._before = self.cost, self.load, self.late, self.stalled, self._added

    def undo(self) -> None:
        """Take back every change since the last ``commit``."""
        for start, stop, nbytes in self._shifts:
            self.used[start:stop] -= nbytes
        for undo, one, other in reversed(self._undoing):
            undo(one, other)
        self.cost, self.load, self.late, self.stalled, self._added = self._before
        self.commit()

    def free_slot(self, after: int, before: int) -> int | None:
        """The last empty slot before ``before`` and after ``after``, None if there is none near."""
        near = range(before - 1, max(after, before - _STRIDE), -1)
        return next((slot for slot in near if slot not in self.op_at), None)

    def runs_between(self, slot: int, other: int) -> bool:
        """True if any run is strictly between two slots."""
        return bisect_left(self.slots, other) > bisect_right(self.slots, slot)

    def spread_if_dense(self) -> None:
        """Spread the runs evenly again if many were added since, so that there are free slots everywhere."""
        if self._added * _DENSE > len(self.slots):
            self.settle(self.order, self.moved)

    def add(self, op: int, slot: int, *, back: bool = False) -> None:
        """Run an operator once more, in an empty slot; what is read later is read from this run.

        Or its results come ``back`` there.
        """
        before = self.run_before(op, slot)
        self._set_back(slot, back)
        self._undoing.append((self._set_back, slot, False))
        self._count(op, slot, before, 1)
        self._write(op, slot)
        self._added += 1
        self._undoing.append((self._erase, op, slot))
        self._pay(op, slot, 1)
        for storage in self._reads_at(op, slot):
            self._read(storage, slot)
        if back:
            self._set_late(slot, self._lateness(op, slot))
            self._undoing.append((self._late.pop, slot, None))
        if not self.is_read(op, before):
            self.remove(before)
        self._defer(op)

    def remove(self, slot: int) -> None:
        """Take back a run that is not the first, and those that only it had read."""
        op = self.op_at[slot]
        if self.runs[op][0] == slot:
            return
        self._count(op, slot, slot, -1)
        self._erase(op, slot)
        self._undoing.append((self._write, op, slot))
        self._pay(op, slot, -1)
        if slot in self.back:
            late = self._late.pop(slot)
            self.late -= late
            self._undoing.append((self._late.__setitem__, slot, late))
        for storage in self._reads_at(op, slot):
            self._unread(storage, slot)
            maker = self.operators.maker[storage]
            run = self.run_before(maker, slot)
            if not self.is_read(maker, run):
                self.remove(run)
        self._undoing.append((self._set_back, slot, slot in self.back))
        self._set_back(slot, False)
        self._defer(op)

    def turn(self, slot: int) -> None:
        """Run an operator again where its results come back, or the other way round."""
        op, back = self.op_at[slot], slot in self.back
        self.remove(slot)
        self.add(op, slot, back=not back)

    def again_after(self, op: int) -> int:
        """The slot after which an operator can run again, or its results come back."""
        return self.copied_at(op) if op in self.moved else self.runs[op][0]

    def _reads_at(self, op: int, slot: int) -> tuple[int, ...]:
        """The storages that are read in a slot for an operator that runs again."""
        return () if slot in self.back else self.operators.reads[op]

    def _set_back(self, slot: int, back: bool) -> None:
        (self.back.add if back else self.back.discard)(slot)

    def has_room_for(self, op: int) -> bool:
        """True if the tier has room for an operator's results beside all that is moved."""
        tier, taken = self.operators.tier, self.operators.taken
        if tier is None or tier.limit is None:
            return tier is not None
        return sum(taken[each] for each in self.moved) + taken[op] <= tier.limit

    def move(self, op: int) -> None:
        """Move an operator's results out, and bring them back where it runs again, or no longer."""
        slots = self.runs[op][1:]
        for slot in slots:
            self.remove(slot)
        if op in self.moved:
            self._undoing.append((self.moved.__setitem__, op, self.moved.pop(op)))
        else:
            self.moved[op] = None
            self._undoing.append((self.moved.pop, op, None))
        self._hold_until_copied()
        self._defer(op)
        self.load += self.operators.out[op] if op in self.moved else -self.operators.out[op]
        if op in self.moved or self.operators.repeats[op]:
            for slot in slots:
                if slot > self.again_after(op):
                    self.add(op, slot, back=op in self.moved)

    def written_at(self, op: int) -> int:
        """The slot in which what an operator makes is written last: its copy out starts then."""
        return self.runs[self.operators.written[op]][0]

    def copied_at(self, op: int) -> int:
        """The slot in which what a moved operator makes has been copied out."""
        return self.runs[self.copied_by[op]][0]

    def _hold_until_copied(self) -> None:
        """Hold what is moved for as long as the queue takes, after a change of what is moved."""
        before = self.copied_by
        now, self.stalled = self.operators.copied_by(self.moved)
        self.copied_by = now
        self._undoing.append((self._restore, before, None))
        for op in before.keys() | now.keys():
            if before.get(op) != now.get(op):
                for slot in self.runs[op][1:]:
                    if op in now and slot <= self.runs[now[op]][0]:
                        self.remove(slot)
                for storage in self.operators.makes[op]:
                    if op in now:
                        self._read(storage, self.runs[now[op]][0])
                    if op in before:
                        self._unread(storage, self.runs[before[op]][0])

    def _restore(self, copied_by: dict[int, int], _: None) -> None:
        self.copied_by = copied_by

    def _lateness(self, op: int, slot: int) -> float:
        """By how much a copy back that is issued in a slot comes too late, if it starts there."""
        first = min(
            (self._next_read(storage, slot) for storage in self.operators.makes[op]), default=self.end
        )
        return max(0.0, self.operators.back[op] - float(self.clock[first] - self.clock[slot]))

    def _next_read(self, storage: int, slot: int) -> int:
        reads = self.reads[storage]
        following = bisect_right(reads, slot)
        return reads[following] if following < len(reads) else self.end

    def _set_late(self, slot: int, late: float) -> None:
        self._late[slot] = late
        self.late += late

    def hold(self, op: int, before: int | None) -> None:
        """Let compute wait for the copies of what is moved before a slot, or hold it until these end."""
        until = None if before is None else self.first_before(before)
        self._undoing.append((self.moved.__setitem__, op, self.moved[op]))
        self.moved[op] = until if until is None else max(until, self.operators.written[op])
        self._hold_until_copied()

    def first_before(self, slot: int) -> int:
        """The last operator whose first run is before a slot, or the first one of all."""
        index = bisect_left(self.slots, slot) - 1
        while index > 0 and self.runs[self.op_at[self.slots[index]]][0] != self.slots[index]:
            index -= 1
        return self.op_at[self.slots[max(0, index)]]

    def _pay(self, op: int, slot: int, sign: int) -> None:
        if slot in self.back:
            self.load += sign * self.operators.back[op]
        else:
            self.cost += sign * self.operators.again[op]

    def _temporary(self, op: int, slot: int) -> int:
        """The bytes that a run takes for itself."""
        return 0 if slot in self.back else self.operators.temporary[op]

    def _count(self, op: int, slot: int, run: int, sign: int) -> None:
        """Count the bytes that a run in a slot takes or, where what ``run`` makes is read later, saves."""
        for storage in self.operators.makes[op]:
            size = sign * self.operators.size[storage]
            if self.last_read(storage, run) > slot:
                self._bytes(self.touched_before(storage, slot) + 1, slot, -size)
            else:
                self._bytes(slot, slot + 1, size)
        self._bytes(slot, slot + 1, sign * self._temporary(op, slot))

    def _defer(self, op: int) -> None:
        """Count the first run of an operator as none, or as one, if that has changed."""
        if not self.operators.may_defer[op]:
            return
        is_deferred = self.is_deferred(op, self.runs[op][0])
        if is_deferred != self._deferred[op]:
            self._deferred[op] = is_deferred
            self._undoing.append((self._deferred.__setitem__, op, not is_deferred))
            self.cost += -self.operators.again[op] if is_deferred else self.operators.again[op]

    def _read(self, storage: int, slot: int) -> None:
        end = self.last_read(storage, self.run_before(self.operators.maker[storage], slot))
        if end < slot:
            self._bytes(end + 1, slot + 1, self.operators.size[storage])
        insort(self.reads[storage], slot)
        self._undoing.append((list.remove, self.reads[storage], slot))
        self._defer(self.operators.maker[storage])

    def _unread(self, storage: int, slot: int) -> None:
        run = self.run_before(self.operators.maker[storage], slot)
        was = self.last_read(storage, run)
        self.reads[storage].remove(slot)
        self._undoing.append((insort, self.reads[storage], slot))
        end = self.last_read(storage, run)
        if end < was:
            self._bytes(end + 1, was + 1, -self.operators.size[storage])
        self._defer(self.operators.maker[storage])

    def _bytes(self, start: int, stop: int, nbytes: int) -> None:
        if start < stop and nbytes:
            self.used[start:stop] += nbytes
            self.changes += 1
            self._shifts.append((start, stop, nbytes))

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
