"""How long values live in an order of operators, some of which run again.

A value lives from the run that makes it to the last read before its next run.  Any order in which every
operator first comes after those that it reads is a plan.  An order has the operators as they run, first and
again, and ``~op`` where what one made, and what was moved out, is brought back.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import MappingProxyType
from typing import TYPE_CHECKING, TypeAlias

from dtr_fx.runtime.program import Call, Output, Program

if TYPE_CHECKING:
    from dtr_fx.tiers.tier import Tier

# The operators whose results are moved out.  They go when the copies have ended (None), or after the first
# run of an operator, at which compute waits for that.
Moved: TypeAlias = Mapping[int, "int | None"]
NOTHING: Moved = MappingProxyType({})


@dataclass(frozen=True)
class Operators:
    """A program in terms of the storages that can be evicted, each numbered by itself.

    ``reads`` and ``makes`` are storages per operator, ``temporary`` the bytes that an operator allocates for
    itself while it runs, ``again`` what one more run of it costs (with the views that must be taken again).
    It may run again if it ``repeats``, and for the first time later than it stands if it ``may_defer``.
    ``maker``, ``size`` and ``tensor``, its number in the program, are per storage.  ``kept`` are read at the
    end.  ``holds`` are the bytes of an operator's results that stay from its first run on; they are none of
    the storages.  Where an operator's results may be moved, ``out`` and ``back`` are what copying all of them
    takes, else infinite, and ``taken`` the bytes that they take in the ``tier``; ``written`` is the operator
    after which they change no more: itself, or the last that writes them in place.  ``ends`` is when each
    operator ends if each runs once and none waits.
    """

    reads: tuple[tuple[int, ...], ...]
    makes: tuple[tuple[int, ...], ...]
    temporary: tuple[int, ...]
    again: tuple[float, ...]
    repeats: tuple[bool, ...]
    may_defer: tuple[bool, ...]
    maker: tuple[int, ...]
    size: tuple[int, ...]
    kept: tuple[int, ...]
    holds: tuple[int, ...]
    tensor: tuple[int, ...]
    out: tuple[float, ...]
    back: tuple[float, ...]
    ends: tuple[float, ...]
    taken: tuple[int, ...]
    written: tuple[int, ...]
    tier: Tier | None

    @staticmethod
    def of(program: Program) -> Operators:
        calls = list(program.calls())
        # What is kept before the last operator stays from the start.
        early = (tensors for op, tensors in program.kept_after.items() if op < len(calls) - 1)
        held = {program.storages[tensor] for tensors in early for tensor in tensors}
        fresh = [[output for output in call.outputs if output.alias is None] for call in calls]
        made = [(op, one) for op, outputs in enumerate(fresh) for one in outputs if one.tensor not in held]
        own = {output.tensor: storage for storage, (_, output) in enumerate(made)}
        # Of each tensor the storage; constants and what is held have none.
        number = {tensor: own[base] for tensor, base in program.storages.items() if base in own}
        maker = tuple(op for op, _ in made)
        read = ((number[tensor] for tensor in call.inputs if tensor in number) for call in calls)
        reads = tuple(tuple(dict.fromkeys(storages)) for storages in read)
        makes = tuple(tuple(own[one.tensor] for one in outputs if one.tensor in own) for outputs in fresh)
        holds = tuple(sum(one.size for one in outputs if one.tensor in held) for outputs in fresh)
        again, repeats = _runs_again(calls, makes, maker, number)
        results = (tensor for tensors in program.kept_after.values() for tensor in tensors)
        out, back = _transfers(program, calls, fresh)
        return Operators(
            reads=reads,
            makes=makes,
            temporary=tuple(call.workspace + call.replay_workspace + n for call, n in zip(calls, holds)),
            again=again,
            repeats=repeats,
            may_defer=tuple(
                c.may_defer and bool(m) and not nbytes for c, m, nbytes in zip(calls, makes, holds)
            ),
            maker=maker,
            size=tuple(output.size for _, output in made),
            kept=tuple(dict.fromkeys(number[tensor] for tensor in results if tensor in number)),
            holds=holds,
            tensor=tuple(own),
            out=out,
            back=back,
            ends=tuple(accumulate(call.cost for call in calls)),
            taken=tuple(
                sum(program.tier.taken_by(one.size) for one in outputs) if program.tier else 0
                for outputs in fresh
            ),
            written=_written(calls, maker, number),
            tier=program.tier,
        )

    def copied_by(self, moved: Moved) -> tuple[dict[int, int], float]:
        """For moved operators the one after which their results go, and the time that is waited."""
        found: dict[int, int] = {}
        copied: dict[int, float] = {}
        ends, waited, last = 0.0, 0.0, len(self.ends) - 1
        waits = ((until, 0, op) for op, until in moved.items() if until is not None)
        starts = ((self.written[op], -1, op) for op in moved)
        for at, is_start, op in sorted([*waits, *starts]):
            if is_start:
                copied[op] = ends = max(ends, self.ends[at] + waited) + self.out[op]
                if moved[op] is None:
                    found[op] = min(bisect_left(self.ends, ends - waited, at + 1), last)
            else:
                found[op] = at
                waited += max(0.0, copied[op] - waited - self.ends[at])
        return found, waited

    def in_time(self, order: Iterable[int], moved: Moved) -> list[int]:
        """The order without what has been moved out again before the copies have ended."""
        copied_by, done, found = self.copied_by(moved)[0], set(), []
        for run in order:
            op = operator_of(run)
            if op not in done or op not in moved or copied_by[op] in done:
                found.append(run)
            done.add(op)
        return found


def operator_of(run: int) -> int:
    """The operator that runs, or whose results come back, at a place of an order.

    >>> operator_of(3), operator_of(~3)
    (3, 3)
    """
    return max(run, ~run)


def _runs_again(
    calls: Sequence[Call], makes: Sequence[Collection[int]], maker: Sequence[int], number: Mapping[int, int]
) -> tuple[tuple[float, ...], tuple[bool, ...]]:
    """``again`` and ``repeats`` of ``Operators``; views count with the operator that makes their storage."""
    again = [call.cost for call in calls]
    repeats = [call.recomputable and bool(storages) for call, storages in zip(calls, makes)]
    for call in calls:
        makes_nothing = all(output.alias is not None for output in call.outputs)
        for op in (maker[number[output.tensor]] for output in call.outputs if output.tensor in number):
            if makes_nothing:
                again[op] += call.cost
            if not call.recomputable:
                repeats[op] = False
    return tuple(again), tuple(repeats)


def _written(calls: Sequence[Call], maker: Sequence[int], number: Mapping[int, int]) -> tuple[int, ...]:
    """``written`` of ``Operators``: what may not run twice writes what its results are views of."""
    written = list(range(len(calls)))
    for at, call in enumerate(calls):
        for output in call.outputs if not call.recomputable else ():
            if output.alias is not None and output.tensor in number:
                written[maker[number[output.tensor]]] = at
    return tuple(written)


def _transfers(
    program: Program, calls: Sequence[Call], fresh: Sequence[Sequence[Output]]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """``out`` and ``back`` of ``Operators``."""
    speed = program.tier.speed if program.tier is not None else None
    out, back = [math.inf] * len(calls), [math.inf] * len(calls)
    for op, (call, outputs) in enumerate(zip(calls, fresh)):
        sizes = [output.size for output in outputs if output.size]
        if speed is not None and call.movable and sizes:
            out[op] = sum(map(speed.seconds_out, sizes))
            back[op] = sum(map(speed.seconds_back, sizes))
    return tuple(out), tuple(back)


class Lifetimes:
    """Where each operator runs and each storage is read, by slots that grow along an order.

    The order is slots with what runs there; at ``end`` what is kept is read.  Among an operator's ``runs``
    are the slots in which its results come ``back``; these read nothing.
    """

    def __init__(
        self,
        operators: Operators,
        order: Iterable[tuple[int, int]],
        end: int,
        moved: Moved = NOTHING,
    ) -> None:
        self.operators = operators
        self.end = end
        self.moved = dict(moved)
        self.runs: list[list[int]] = [[] for _ in operators.makes]
        self.reads: list[list[int]] = [[] for _ in operators.size]
        self.copied_by, self.stalled = operators.copied_by(self.moved)
        self.back: set[int] = set()
        movers = self.moved_until()
        for slot, run in order:
            op = operator_of(run)
            is_first = not self.runs[op]
            self.runs[op].append(slot)
            if run < 0:
                self.back.add(slot)
            for storage in operators.reads[op] if run >= 0 else ():
                self.reads[storage].append(slot)
            for mover in movers.get(op, ()) if is_first else ():
                for storage in operators.makes[mover]:
                    self.reads[storage].append(slot)
        for storage in operators.kept:
            self.reads[storage].append(end)

    def moved_until(self) -> dict[int, list[int]]:
        """The moved operators whose results go after each operator, in order."""
        movers: dict[int, list[int]] = {}
        for op, copied_by in self.copied_by.items():
            movers.setdefault(copied_by, []).append(op)
        return movers

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
        """True if what the storage holds is read at the slot or later, before it is made again."""
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

    def is_read(self, op: int, run: int) -> bool:
        """True if something reads what this run makes."""
        return any(self.last_read(storage, run) > run for storage in self.operators.makes[op])

    def is_deferred(self, op: int, run: int) -> bool:
        """True if an operator that has not run yet is left out here: a later run makes what is read."""
        may_defer = self.operators.may_defer[op] and op not in self.moved
        return may_defer and run != self.runs[op][-1] and not self.is_read(op, run)

    def dies(self, storage: int, slot: int) -> bool | None:
        """None while what the storage holds is read after ``slot``; else, True if it is made again."""
        reads = self.reads[storage]
        following = bisect_right(reads, slot)
        if following == len(reads):
            return False
        return self.run_before(self.operators.maker[storage], reads[following]) > slot or None


def closure(ops: Iterable[int], further: Callable[[int], Iterable[int]]) -> set[int]:
    """The operators, and by the way of ``further`` all others that lead to them."""
    found = set(ops)
    unseen = list(found)
    while unseen:
        more = set(further(unseen.pop())) - found
        found |= more
        unseen += more
    return found
