"""Starts that know depth: the forward pass as a chain of segments, and the cheapest way back along it.

    forward pass  ──►  segments, between places where little is live  ──►  what each saves, costs and needs
      └─ a dynamic program over intervals of segments and the bytes that are left  ──►  an order

To go back along an interval is to run its first segments and keep the state behind them, go back along the
rest, and then along the first ones in the same way (Griewank and Walther's Revolve); or to run a few of them
and save what their gradients read (rotor: Beaumont et al., arXiv 1911.13214), or what a cut leaves of that.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dtr_fx.search.lifetimes import Operators, closure
from dtr_fx.search.starts import best_and_nearest, cheapest_cut, makers, price_of_bytes, spared
from dtr_fx.search.timeline import Found, Timeline

_Array = npt.NDArray[Any]

# A place between segments is one where this many times its bytes are live before and behind it.
_RISE = 2.0
# How many segments there are at most.
_MOST = 500
# How many segments are saved by one cut at most, if there are few, and at which prices of a byte, as factors
# on the forward pass's cost for its bytes.
_CHUNK = 8
_PRICES = (16.0, 4.0, 1.0, 0.25)
# Intervals are parted everywhere up to a length that takes so much work, in segments squared and units, or up
# to this one; longer ones into this many parts at least.  Of how many units a budget is at most.
_WORK, _FINE, _PARTS = 8e6, 16, 8
_UNITS = 256
# How far above the budget, as a factor, the program may plan: it adds up what is never there at once.
_ABOVE = 1.2


class _Mode(NamedTuple):
    """A way to save segments: the bytes saved, and made again; what runs for that first, and again."""

    saved: int
    made: int
    run: list[int]
    again: list[int]


class Chain:
    """The segments of a forward pass, with the operators of the backward pass that each is visited for.

    A state is what is made before a place and read behind it.  ``line`` is lent, to measure on.
    """

    def __init__(self, line: Timeline, backward: int) -> None:
        self.operators = operators = line.operators
        last = {storage: op for storage, op in enumerate(operators.maker) if op < backward}
        last.update((storage, op) for op in range(backward) for storage in operators.reads[op])
        last = {storage: op for storage, op in last.items() if operators.repeats[operators.maker[storage]]}
        self.bounds = [0, *_valleys(operators, backward, last), backward]
        self.length = len(self.bounds) - 1
        segment = [k for k in range(self.length) for _ in range(*self.bounds[k : k + 2])]
        self._made = {storage: segment[operators.maker[storage]] for storage in last}
        self._until = {storage: segment[op] for storage, op in last.items()}
        self._assign(backward)
        self._measure_states()
        self.advance = [self._leading_to(k, k + 1, self._left(k, k + 1)) for k in range(self.length)]
        self.leaf = [self._leading_to(k, k + 1, self._wanted(k, k + 1)) for k in range(self.length)]
        self.internal = [self._bytes(self._wanted(k, k + 1)) for k in range(self.length)]
        self._price = price_of_bytes(operators, backward)
        self._known: dict[object, tuple[int, list[_Mode]]] = {}
        self.modes = {
            count: [self._modes(k, min(k + count, self.length)) for k in range(0, self.length, count)]
            for count in self._chunks()
        }
        self.need = self._needs(line)

    def _chunks(self) -> Iterator[int]:
        """How many segments are saved together."""
        count = 1
        while count <= _CHUNK and count < self.length:
            yield count
            count *= 2

    def _assign(self, backward: int) -> None:
        """Visit each segment for the operators, in their order, that read nothing of earlier ones."""
        level = self.length - 1
        self.visits: list[list[int]] = [[] for _ in range(self.length)]
        self._read: list[set[tuple[int, int]]] = [set() for _ in range(self.length)]
        for op in range(backward, len(self.operators.makes)):
            read = [storage for storage in self.operators.reads[op] if storage in self._made]
            level = min([level, *(self._until[storage] for storage in read)])
            self.visits[level].append(op)
            for storage in read:
                self._read[self._made[storage]].add((level, storage))

    def _measure_states(self) -> None:
        """``states[i, j]`` are the bytes of the state before segment j that segments from i on make."""
        change = np.zeros((self.length + 1, self.length + 2), np.int64)
        self._states: list[list[int]] = [[] for _ in range(self.length)]
        for storage, made in self._made.items():
            if self._until[storage] > made:
                self._states[made].append(storage)
                change[made, made + 1] += self.operators.size[storage]
                change[made, self._until[storage] + 1] -= self.operators.size[storage]
        self.states = change[::-1].cumsum(0)[::-1].cumsum(1)

    def _wanted(self, first: int, after: int) -> set[int]:
        """What is made and, on the way back, read in these segments."""
        read = (pair for k in range(first, after) for pair in self._read[k])
        return {storage for level, storage in read if first <= level < after}

    def _left(self, first: int, after: int) -> set[int]:
        """What is made in these segments for later ones."""
        made = (storage for k in range(first, after) for storage in self._states[k])
        return {storage for storage in made if self._until[storage] >= after}

    def _leading_to(
        self, first: int, after: int, storages: Iterable[int], among: Container[int] | None = None
    ) -> list[int]:
        """The operators of these segments, or those ``among`` them, by which storages are made."""
        operators, ops = self.operators, range(self.bounds[first], self.bounds[after])

        def counts(op: int) -> bool:
            return op in ops and operators.repeats[op] and (among is None or op in among)

        found = filter(counts, (operators.maker[storage] for storage in storages))
        return sorted(closure(found, lambda op: filter(counts, makers(operators, op))))

    def _modes(self, first: int, after: int) -> list[_Mode]:
        """All that is wanted is saved, or as much as at a price; what is alike has the same modes."""
        operators, ops = self.operators, range(self.bounds[first], self.bounds[after])
        wanted, left = self._wanted(first, after), self._left(first, after)
        base = min((storage for op in ops for storage in operators.makes[op]), default=0)
        alike = (
            tuple(sorted(storage - base for storage in wanted)),
            tuple(sorted(storage - base for storage in left)),
            tuple((operators.again[op], operators.repeats[op]) for op in ops),
            tuple(tuple(s - base for s in operators.reads[op] if s >= base) for op in ops),
            tuple(tuple(operators.size[storage] for storage in operators.makes[op]) for op in ops),
        )
        if alike not in self._known:
            cuts: list[set[int]] = []
            for price in _PRICES:  # what is not made again at one is not at a lower one
                ended = wanted <= left or (cuts and not cuts[-1])
                price *= self._price
                cuts.append(set() if ended else cheapest_cut(operators, wanted, price, ops.start, left))
            self._known[alike] = ops.start, [self._mode(first, after, again) for again in (*cuts, set())]
        start, modes = self._known[alike]
        by = ops.start - start
        return [
            mode._replace(run=[op + by for op in mode.run], again=[op + by for op in mode.again])
            for mode in modes
        ]

    def _mode(self, first: int, after: int, cut: set[int]) -> _Mode:
        wanted, left = self._wanted(first, after), self._left(first, after)
        again = self._leading_to(first, after, wanted, cut)
        read = wanted.union(*(self.operators.reads[op] for op in again))
        inside = {storage for storage in read if first <= self._made.get(storage, -1) < after}
        saved = {storage for storage in inside if self.operators.maker[storage] not in cut} | left
        run = self._leading_to(first, after, saved)
        return _Mode(self._bytes(saved), self._bytes(wanted - saved), run, again)

    def _needs(self, line: Timeline) -> list[int]:
        """Of each segment the bytes beside states while it is visited, with what it makes again for that."""
        writer = _Writer(self)
        writer.run(0, self.length - 1, [])
        ends = [len(writer.order)]
        for k in reversed(range(self.length)):
            writer.visit(k, k + 1, self.leaf[k])
            ends.append(len(writer.order))
        line.settle(writer.order)
        slots = [*line.slots, line.end]
        beside = line.used[: line.end + 1] - self._waiting(line, [slots[end] for end in ends])
        used = [beside[slots[start] : slots[end]] for start, end in pairwise(ends)]
        return [int(max([0, *part])) for part in reversed(used)]

    def _waiting(self, line: Timeline, starts: list[int]) -> _Array:
        """The bytes in each slot that wait for the visits of their segments, which start at these."""
        change = np.zeros(line.end + 2, np.int64)
        for storage, made in self._made.items():
            first = line.runs[self.operators.maker[storage]][0]
            end = min(line.last_read(storage, first) + 1, starts[self.length - 1 - made])
            if end > starts[0]:
                change[starts[0]] += self.operators.size[storage]
                change[end] -= self.operators.size[storage]
        return np.cumsum(change)[: line.end + 1]

    def _bytes(self, storages: Iterable[int]) -> int:
        return sum(self.operators.size[storage] for storage in storages)


class _Writer:
    """An order as it is written: what runs for the first time does so in the program's order."""

    def __init__(self, chain: Chain) -> None:
        self._chain = chain
        self._reached = 0
        self.order: list[int] = []

    def run(self, first: int, after: int, again: Iterable[int]) -> None:
        """Run segments; for more than the first time only the operators ``again``."""
        if first < self._reached:
            self.order += again
        else:
            self.order += range(self._chain.bounds[first], self._chain.bounds[after])
            self._reached = after

    def visit(self, first: int, after: int, again: Collection[int]) -> None:
        """Go back along segments; each of the operators ``again`` runs when what it makes is first read."""
        if first >= self._reached:
            self.run(first, after, again := [])
        operators, waiting = self._chain.operators, set(again)

        def missing(op: int) -> list[int]:
            return [maker for maker in makers(operators, op) if maker in waiting]

        for op in (op for k in reversed(range(first, after)) for op in self._chain.visits[k]):
            now = closure(missing(op), missing)
            waiting -= now
            self.order += [*sorted(now), op]


class _Saving(NamedTuple):
    """Of one way to save ``length`` segments: of each chunk the mode, its units, two costs, and its need."""

    length: int
    modes: list[_Mode]
    units: _Array
    run: _Array
    again: _Array
    need: _Array


class _Way:
    """The cheapest way back along intervals of segments, for any number of units of bytes up to ``units``.

    ``_costs[length][row, units]`` are those of the intervals that start at every so many segments, ``_picks``
    how they begin: 0 if one segment is visited at once, the number of segments that a state is kept behind,
    or less than 0 for one of ``_savings``.  ``_last`` and ``_last_picks`` are the same for the intervals up
    to the last segment, by where they start: these run for the first time, which costs nothing.
    """

    def __init__(self, chain: Chain, most: int) -> None:
        self._chain = chain
        length = chain.length
        divisor = int(np.gcd.reduce(np.asarray([*chain.states.ravel(), *chain.need], np.int64)))
        self._unit = max(1, most / _UNITS, divisor)
        self.units = max(1, round(most / self._unit))
        self._fine = min(length, max(_FINE, math.isqrt(int(_WORK / (length * self.units)))))
        self._states, self._need = self._in_units(chain.states), self._in_units(chain.need)
        self._leaf = np.array([self._cost(leaf) for leaf in chain.leaf])
        self._advance = np.array([0.0, *accumulate(map(self._cost, chain.advance))])
        self._savings = [
            self._saving(count, [modes[number] for modes in kinds])
            for count, kinds in chain.modes.items()
            for number in range(len(kinds[0]))
        ]
        self._costs: dict[int, _Array] = {}
        self._picks: dict[int, _Array] = {}
        for each in range(1, length):
            if each % self._step(each) == 0:
                self._solve(each)
        self._last = np.zeros((length + 1, self.units + 1))
        self._last_picks = np.zeros((length, self.units + 1), np.int16)
        for start in reversed(range(length)):
            self._solve_last(start)
        self.least = int(np.isinf(self._last[0]).sum())

    def _step(self, length: int) -> int:
        """At every so many segments intervals of a length start and are parted: a power of two."""
        return 1 if length <= self._fine else int(2 ** (length // _PARTS).bit_length()) // 2 or 1

    def _in_units(self, nbytes: Any) -> _Array:
        return np.rint(np.asarray(nbytes) / self._unit).astype(np.int64)

    def _cost(self, ops: Iterable[int]) -> float:
        return sum(self._chain.operators.again[op] for op in ops)

    def _saving(self, count: int, modes: list[_Mode]) -> _Saving:
        chain = self._chain
        beside = [need - internal for need, internal in zip(chain.need, chain.internal)]
        chunks = [slice(k * count, (k + 1) * count) for k in range(len(modes))]
        both = [max(beside[chunk]) + mode.saved + mode.made for chunk, mode in zip(chunks, modes)]
        need = [max(nbytes, *chain.need[chunk]) for chunk, nbytes in zip(chunks, both)]
        run, again = ([self._cost(ops) for ops in of] for of in zip(*((m.run, m.again) for m in modes)))
        units = self._in_units([mode.saved for mode in modes])
        return _Saving(count, modes, units, np.array(run), np.array(again), self._in_units(need))

    def _solve(self, length: int) -> None:
        step, units = self._step(length), np.arange(self.units + 1)
        starts = np.arange(0, self._chain.length - length + 1, step)
        best = np.full((len(starts), self.units + 1), np.inf)
        picks = np.zeros(best.shape, np.int16)
        if length == 1:
            best = np.where(units >= self._need[:, None], self._leaf[:, None], np.inf)
        for number, saving in enumerate(self._savings):
            rows = np.flatnonzero(starts % saving.length == 0)
            if saving.length % step == 0 and saving.length <= length and len(rows):
                chunks = starts[rows] // saving.length
                costs = self._behind(starts[rows], saving.length, length, saving.units[chunks])
                costs += (saving.run + saving.again)[chunks, None]
                costs[units < saving.need[chunks, None]] = np.inf
                cheaper = costs < best[rows]
                best[rows] = np.where(cheaper, costs, best[rows])
                picks[rows] = np.where(cheaper, -1 - number, picks[rows])
        for kept in range(step, length, step):
            costs = self._behind(starts, kept, length, self._states[starts, starts + kept])
            costs += self._table(starts, kept)
            costs += (self._advance[starts + kept] - self._advance[starts])[:, None]
            cheaper = costs < best
            np.copyto(best, costs, where=cheaper)
            picks[cheaper] = kept
        self._costs[length], self._picks[length] = best, picks

    def _solve_last(self, start: int) -> None:
        units, length = np.arange(self.units + 1), self._chain.length - start
        best, picks = self._last[start], self._last_picks[start]
        best[:] = np.inf
        if length == 1:
            best[units >= self._need[start]] = 0.0
        for number, saving in enumerate(self._savings):
            if start % saving.length == 0 and saving.length <= length:
                chunk = start // saving.length
                costs = _taking(saving.units[chunk], self._last[start + saving.length]) + saving.again[chunk]
                costs[units < saving.need[chunk]] = np.inf
                picks[costs < best] = -1 - number
                np.minimum(best, costs, out=best)
        kept = [k for k in range(1, length) if start % self._step(k) == k % self._step(k) == 0]
        if kept:
            taken = self._states[start, [start + k for k in kept]]
            costs = _taking(taken[:, None], self._last[[start + k for k in kept]])
            costs += [self._costs[k][start // self._step(k)] for k in kept]
            which = costs.argmin(0)
            costs = np.take_along_axis(costs, which[None], 0)[0]
            picks[:] = np.where(costs < best, np.array(kept, np.int16)[which], picks)
            np.minimum(best, costs, out=best)

    def _behind(self, starts: _Array, first: int, length: int, taken: _Array) -> _Array:
        """The costs of the rest of intervals behind their first segments, where units are taken."""
        if first == length:
            return np.where(np.arange(self.units + 1) < taken[:, None], np.inf, 0.0)
        return _taking(taken[:, None], self._table(starts + first, length - first))

    def _table(self, starts: _Array, length: int) -> _Array:
        table: _Array = self._costs[length][starts // self._step(length)]
        return table

    def order(self, units: int) -> list[int]:
        """The order of the cheapest way, given so many units."""
        chain, writer = self._chain, _Writer(self._chain)
        pending: list[tuple[int, int, int, list[int] | None]] = [(0, chain.length, units, None)]
        while pending:
            start, length, units, again = pending.pop()
            if again is not None:
                writer.visit(start, start + length, again)
            elif length:
                pick = self._pick(start, length, units)
                if pick == 0:
                    writer.visit(start, start + 1, chain.leaf[start])
                elif pick < 0:
                    saving = self._savings[-1 - pick]
                    chunk, after = start // saving.length, start + saving.length
                    writer.run(start, after, saving.modes[chunk].run)
                    pending.append((start, saving.length, 0, saving.modes[chunk].again))
                    left = units - int(saving.units[chunk])
                    pending.append((after, length - saving.length, left, None))
                else:
                    after = start + pick
                    writer.run(start, after, [op for k in range(start, after) for op in chain.advance[k]])
                    left = units - int(self._states[start, after])
                    pending += [(start, pick, units, None), (after, length - pick, left, None)]
        return writer.order

    def _pick(self, start: int, length: int, units: int) -> int:
        if start + length == self._chain.length:
            return int(self._last_picks[start, units])
        return int(self._picks[length][start // self._step(length), units])


def _taking(taken: _Array, costs: _Array) -> _Array:
    """Costs by units of which some are taken before."""
    left = np.arange(costs.shape[-1]) - taken
    found: _Array = np.take_along_axis(costs, np.maximum(left, 0), -1)
    found[left < 0] = np.inf
    return found


def returns(chain: Chain, line: Timeline) -> list[list[int]]:
    """The cheapest order along the chain that fits and, of those that cost less, the nearest, if any."""
    way = _Way(chain, int(_ABOVE * line.budget))
    found: list[Found] = []
    low, high = way.least, way.units
    while low <= high:
        middle = (low + high + 1) // 2
        found.append(line.settle(way.order(middle)))
        if found[-1].over:
            high = middle - 1
        else:
            low = middle + 1
    orders = best_and_nearest(found)
    if orders and not line.settle(orders[0]).over:
        orders[0] = spared(line)
    return orders


def _valleys(operators: Operators, backward: int, last: Mapping[int, int]) -> list[int]:
    """The operators of the forward pass before which little is live that it reads behind them.

    ``last`` is the operator that last reads each storage.  Of places with little cost between them it is the
    one with the least bytes.
    """
    change, made, count = [0] * (backward + 2), [0] * backward, [0] * (backward + 2)
    for storage, end in last.items():
        op, size = operators.maker[storage], operators.size[storage]
        made[op] += size
        change[op + 1] += size
        change[end + 1] -= size
        count[op + 1] += size > 0
        count[end + 1] -= size > 0
    live = list(accumulate(change))
    alone = [op for op, storages in enumerate(accumulate(count)) if 0 < op < backward and storages == 1]
    valleys: list[int] = []
    at = before = behind = 0  # the lowest place since the last valley, the most live since, and behind it
    for op in range(backward):
        if op and before >= _RISE * live[op] and (not at or live[op] <= live[at]):
            at, behind = op, 0
        before, behind = (max(most, live[op] + made[op]) for most in (before, behind))
        if at and behind >= _RISE * live[at]:
            valleys.append(at)
            at, before = 0, behind
    valleys = sorted({*valleys, *alone})
    done = [0.0, *accumulate(operators.again[:backward])]
    near = done[-1] / _MOST
    places: list[int] = []
    first = 0.0  # the cost before the first of the places of which the last one was chosen
    for op in valleys:
        if places and done[op] - first < near:
            if live[op] <= live[places[-1]]:
                places[-1] = op
        elif done[op] >= near:
            places.append(op)
            first = done[op]
    return places
