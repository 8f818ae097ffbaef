"""How long values live in an order of operators, some of which run again.

A value lives from the run that makes it to the last read before its next run.  Any order in which every
operator first comes after those that it reads is a plan.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from dtr_fx.runtime.program import Call, Keep, Program


@dataclass(frozen=True)
class Operators:
    """A program in terms of the storages that can be evicted, each numbered by itself.

    ``reads`` and ``makes`` are storages per operator, ``temporary`` the bytes that an operator allocates for
    itself while it runs, ``again`` what one more run of it costs (with the views that must be taken again).
    It may run again if it ``repeats``, and for the first time later than it stands if it ``may_defer``.
    ``maker``, ``size`` and ``tensor``, its number in the program, are per storage.  ``kept`` are read at the
    end.  ``holds`` are the bytes of an operator's results that stay from its first run on; they are none of
    the storages.
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
        tensor: list[int] = []
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
                        tensor.append(output.tensor)
                        maker.append(len(makes) - 1)
                    elif output.alias in number:
                        number[output.tensor] = number[output.alias]
                        if not fresh:
                            again[maker[number[output.alias]]] += step.cost
                reads.append(tuple(dict.fromkeys(number[t] for t in step.inputs if t in number)))
                holds.append(sum(output.size for output in fresh if output.tensor in held))
                temporary.append(step.workspace + step.replay_workspace + holds[-1])
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
            tuple(call.may_defer and not held for call, held in zip(program.calls(), holds)),
            tuple(maker),
            tuple(size),
            tuple(kept),
            tuple(holds),
            tuple(tensor),
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


class Lifetimes:
    """Where each operator runs and each storage is read, by slots that grow along an order.

    Parameters
    ----------
    operators:
        The program.
    order:
        A slot and the operator that runs there, in order.
    end:
        The slot at which what is kept is read.
    """

    def __init__(self, operators: Operators, order: Iterable[tuple[int, int]], end: int) -> None:
        self.operators = operators
        self.end = end
        self.runs: list[list[int]] = [[] for _ in operators.makes]
        self.reads: list[list[int]] = [[] for _ in operators.size]
        for slot, op in order:
            self.runs[op].append(slot)
            for storage in operators.reads[op]:
                self.reads[storage].append(slot)
        for storage in operators.kept:
            self.reads[storage].append(end)

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
        return self.operators.may_defer[op] and run != self.runs[op][-1] and not self.is_read(op, run)

    def dies(self, storage: int, slot: int) -> bool | None:
        """None while what the storage holds is read after ``slot``; else, True if it is made again."""
        reads = self.reads[storage]
        following = bisect_right(reads, slot)
        if following == len(reads):
            return False
        return self.run_before(self.operators.maker[storage], reads[following]) > slot or None
