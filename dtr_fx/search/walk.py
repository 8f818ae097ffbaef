"""Simulated annealing over orders of operators: one run more, one less, or one elsewhere, again and again.

Whatever is tried is a plan (see ``timeline``) that may be above the budget; bytes above it have a price,
which rises while there are any.  The runtime carries out what is found (see ``execute``).
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

from dtr_fx.search.lifetimes import NOTHING, Moved
from dtr_fx.search.timeline import Found, Timeline

# By how much a walk cools down.
_COOLING = 1 / 20
# Seconds that the parts of a move take on one core of an x86-64 server of 2024: any, a look for what is idle,
# and a change of live bytes, which takes longer the more operators there are.
_MOVE, _LOOK, _CHANGE, _CHANGE_PER_OPERATOR = 4e-6, 20e-6, 1.8e-6, 1e-9
# How many moves go by before the price of bytes is corrected, and the factors.
_ROUND = 100
_RISE, _FALL, _HIGHEST = 1.1, 0.95, 1e100
# How far a run is moved: the standard deviation, in runs.
_FAR = 6.0
# How often something is made again long before it is read, while what it is made from is there.
_EARLY = 0.3
# How often what an operator reads is made again for it where it is live, and where it is not, and how deep.
_LIVE, _GONE, _DEEPEST = 0.2, 0.7, 10
# Of a second of transfer: its price at first, as a share of a second of compute, and the factors; how much of
# the transfers is waited for where they are hidden.
_TOLL, _CHEAPER, _DEARER, _HIDDEN = 0.02, 0.9, 1.15, 0.01
# Seconds per run of a simulation of the transfers; how often something is moved or no longer, one of those
# that come back, and how often a copy back is issued ahead.
_SIMULATE, _MOVES, _ONE_OF_THEM, _AHEAD = 1e-6, 0.1, 0.8, 0.8
# How often what is moved is computed again at one place, or brought back there after all, in place of that.
_TURN = 0.2
# How often compute is to wait for the copies of what is moved, or no longer, in place of that.
_HURRY = 0.3
# How many storages are looked at for one that is idle, and how often for one run less.
_TRIES = 20
_REPAIRS = 6


def walk(
    line: Timeline,
    order: Sequence[int],
    seconds: float,
    *,
    temperature: float = 0.3,
    penalty: float = 1.0,
    seed: int = 0,
    enough: float = -math.inf,
    moved: Moved = NOTHING,
) -> Found | None:
    """The cheapest order within the line's budget that is found from ``order`` on, or None.

    It is the first that costs ``enough`` or less, if there is one.
    Of the ``seconds`` the work is counted, so that the same arguments find the same order.  ``temperature``,
    in units of the average operator's cost, and ``penalty``, the factor on the usual price of a byte above
    the budget, are those of the first step: the hotter, the more often one that costs more is taken.
    """
    line.settle(order, moved)
    return _Walk(line, seed, penalty).find(seconds, temperature, enough)


class _Walk:
    def __init__(self, line: Timeline, seed: int, penalty: float) -> None:
        operators = self._operators = line.operators
        self._line = line
        self._random = random.Random(seed)
        self._unit = sum(operators.again) / len(operators.again)
        usual_size = max(1.0, sum(operators.size) / max(1, len(operators.size)))
        self._price = penalty * self._unit / (2 * usual_size)
        # Storages that can be made again, the larger the likelier.
        self._large = [
            storage
            for storage, size in enumerate(operators.size)
            if size and (operators.repeats[op := operators.maker[storage]] or operators.back[op] < math.inf)
        ]
        self._movable = [op for op, back in enumerate(operators.back) if back < math.inf]
        self._toll, self._simulated = _TOLL, 0
        self._weights = list(accumulate(operators.size[storage] for storage in self._large))
        self._change_seconds = _CHANGE + _CHANGE_PER_OPERATOR * len(operators.makes)
        self._moves = self._looks = 0
        self._changes_before = line.changes
        self._temperature = 0.0
        self._best: Found | None = None

    def find(self, seconds: float, temperature: float, enough: float) -> Found | None:
        line = self._line
        self._remember()
        energy = self._energy()
        while (spent := self._spent()) < seconds and not (self._best and self._best.cost <= enough):
            self._temperature = temperature * self._unit * _COOLING ** (spent / seconds)
            self._moves += 1
            self._change()
            after = self._energy()
            if self._accepts(after - energy):
                line.commit()
                energy = after
                self._remember()
            else:
                line.undo()
            if self._moves % _ROUND == 0:
                line.spread_if_dense()
                self._price = min(self._price * (_RISE if line.over else _FALL), _HIGHEST)
                self._charge()
                energy = self._energy()
        return self._best

    def _spent(self) -> float:
        """Seconds that a usual machine would have taken so far."""
        changes = self._line.changes - self._changes_before
        simulated = self._simulated * len(self._line.slots) * _SIMULATE
        return self._moves * _MOVE + self._looks * _LOOK + changes * self._change_seconds + simulated

    def _energy(self) -> float:
        line = self._line
        waited = line.late + line.stalled
        return line.cost + waited + self._toll * line.load + self._price * line.over

    def _accepts(self, rise: float) -> bool:
        return rise <= 0 or (
            self._temperature > 0 and self._random.random() < math.exp(-rise / self._temperature)
        )

    def _remember(self) -> None:
        line = self._line
        # Sums of the same costs in another order differ in their last digits.
        if not line.over and (self._best is None or line.cost < self._best.cost - 1e-9 * self._unit):
            cost = line.cost + self._waited()
            if self._best is None or cost < self._best.cost - 1e-9 * self._unit:
                self._best = Found(cost, line.over, line.order, dict(line.moved))

    def _waited(self) -> float:
        """The time that operators wait for transfers."""
        self._simulated += bool(self._line.moved)
        return self._line.waited()

    def _charge(self) -> None:
        """Raise the toll of transfers where operators wait for them, else lower it."""
        if self._line.moved:
            known = self._line.late + self._line.stalled
            is_hidden = self._waited() - known <= _HIDDEN * self._line.load
            self._toll = min(self._toll * (_CHEAPER if is_hidden else _DEARER), 1.0)

    def _change(self) -> None:
        choice = self._random.random()
        if self._movable and self._random.random() < _MOVES:
            self._move()
        elif choice < 0.25:
            if not self._make_room():
                self._run_again()
        elif not self._line.repeated:
            return
        elif choice < 0.5:
            self._remove()
        elif choice < 0.65:
            self._shift()
        else:
            self._swap()

    def _move(self) -> None:
        """The results of an operator that runs again are moved instead, or no longer, or not each time."""
        line = self._line
        op = self._random.choice(self._movable)
        if line.repeated and self._random.random() < _ONE_OF_THEM:
            slot = self._random.choice(line.repeated)
            op = line.op_at[slot]
            if op in line.moved and self._operators.repeats[op] and self._random.random() < _TURN:
                line.turn(slot)
                return
        if op in line.moved and self._random.random() < _HURRY:
            self._hold(op)
            return
        is_movable = len(line.runs[op]) > 1 and self._operators.back[op] < math.inf
        if op in line.moved or (is_movable and line.has_room_for(op)):
            line.move(op)

    def _hold(self, op: int) -> None:
        """Let compute wait for the copies of what is moved, before where most is live, or no longer."""
        line = self._line
        if line.moved[op] is not None and self._random.random() < 0.5:
            line.hold(op, None)
        else:
            line.hold(op, int(line.used.argmax()) if line.over else self._random.choice(line.slots))

    def _remove(self) -> None:
        """One repeated run less, rather one that costs more."""
        line, again = self._line, self._operators.again
        slots = (self._random.choice(line.repeated) for _ in range(2))
        line.remove(max(slots, key=lambda slot: again[line.op_at[slot]]))

    def _swap(self) -> None:
        """One repeated run less, and some others instead as long as that breaks the budget."""
        self._remove()
        for _ in range(self._random.randint(1, _REPAIRS)):
            if not self._make_room():
                break

    def _shift(self) -> None:
        """A repeated run, some runs earlier or later."""
        line = self._line
        slot = self._random.choice(line.repeated)
        op = line.op_at[slot]
        index = bisect_left(line.slots, slot) + round(self._random.gauss(0, _FAR))
        target = line.free_slot(0, line.slots[min(max(index, 0), len(line.slots) - 1)])
        if target is not None and target > line.again_after(op):
            back = slot in line.back
            line.remove(slot)
            line.add(op, target, back=back)

    def _run_again(self) -> None:
        """Make something again before an operator reads it, or for the end if it is kept."""
        line, operators = self._line, self._operators
        index = self._random.randrange(len(line.slots) + 1)
        slot = line.slots[index] if index < len(line.slots) else line.end
        reads = operators.kept if slot == line.end else operators.reads[line.op_at[slot]]
        if reads:
            self._make_again_in_time(self._random.choice(reads), slot)

    def _make_room(self) -> bool:
        """Make again, of some that idle where most is live, the cheapest by bytes; False if all fits."""
        line, operators = self._line, self._operators
        worst = int(line.used.argmax())
        if line.used[worst] <= line.budget or not self._large:
            return False
        self._looks += 1
        found = [
            (self._cheapest(operators.maker[storage]) / operators.size[storage], storage, slot)
            for storage in self._random.choices(self._large, cum_weights=self._weights, k=_TRIES)
            if (slot := line.read_after_idling(storage, worst)) is not None
        ]
        if found:
            _, storage, slot = min(found)
            op = operators.maker[storage]
            if op not in line.moved and self._cheapest(op) < self._computed(op) and line.has_room_for(op):
                line.move(op)
                if line.copied_at(op) >= worst and self._random.random() < _HURRY:
                    line.hold(op, worst)
            self._make_again_in_time(storage, slot)
        return True

    def _computed(self, op: int) -> float:
        return self._operators.again[op] if self._operators.repeats[op] else math.inf

    def _cheapest(self, op: int) -> float:
        """What it costs to have an operator's results again, be it by moving them."""
        out = 0.0 if op in self._line.moved else self._operators.out[op]
        again = math.inf if op in self._line.moved else self._computed(op)
        return min(again, self._toll * (out + self._operators.back[op]))

    def _make_again_in_time(self, storage: int, slot: int) -> None:
        is_moved = self._operators.maker[storage] in self._line.moved
        early = self._random.random() < (_AHEAD if is_moved else _EARLY)
        self._make_again(storage, self._earlier(storage, slot) if early else slot, 0)

    def _earlier(self, storage: int, slot: int) -> int:
        """The slot of a run after which something that the storage is made from would be gone."""
        line, operators = self._line, self._operators
        op = operators.maker[storage]
        if op in line.moved:
            return max(
                line.touched_before(storage, slot) + 1, line.slot_at(line.clock[slot] - operators.back[op])
            )
        reads = operators.reads[op]
        if not reads:
            return slot
        after = line.touched_before(self._random.choice(reads), slot)
        index = bisect_right(line.slots, after)
        earlier = line.slots[index] if index < len(line.slots) else slot
        return earlier if line.touched_before(storage, slot) < earlier < slot else slot

    def _make_again(self, storage: int, slot: int, depth: int) -> None:
        """Run a storage's operator before ``slot``, maybe others before it; not if nothing came between."""
        line, operators = self._line, self._operators
        op = operators.maker[storage]
        touched = max(line.touched_before(storage, slot), line.again_after(op))
        back = op in line.moved
        if not back and not operators.repeats[op]:
            return
        if not line.runs_between(touched, slot):
            return
        target = line.free_slot(touched, slot)
        if target is None:
            return
        for read in () if back else operators.reads[op]:
            if self._random.random() < self._chance(read, target, depth):
                self._make_again(read, target, depth + 1)
        target = line.free_slot(touched, slot)
        if target is not None:
            line.add(op, target, back=back)

    def _chance(self, storage: int, slot: int, depth: int) -> float:
        """How likely it is that what an operator reads is made again for it, rather than kept until then."""
        if self._line.is_live(storage, slot):
            return _LIVE if depth < 3 else 0.0
        return _GONE if depth < _DEEPEST else 0.0
