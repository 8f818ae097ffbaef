"""The lower bound: bytes that no plan can do without."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import accumulate
from typing import NamedTuple

from dtr_fx.runtime.program import Constant, Program


class Need(NamedTuple):
    """The bytes that every plan holds while call number ``call`` runs."""

    nbytes: int
    call: int


def lower_bound(program: Program) -> Need:
    """The most bytes that every plan holds at some time; see ``Bounds``.

    Examples
    --------
    >>> from dtr_fx.runtime.program import Call, Keep, Output
    >>> calls = Call("f", (0,), (Output(1, 4),), 1.0), Call("g", (1,), (Output(2, 3),), 1.0)
    >>> lower_bound(Program("two", (Constant(0, 10), *calls, Keep(2)))).nbytes
    17
    """
    bounds = Bounds(program)
    need = max([Need(program.constants, 0), *bounds.while_running], key=lambda need: need.nbytes)
    for number in range(len(bounds.while_running)):
        need = bounds.joint(number, need)
    return max(need, Need(bounds.at_the_end, len(bounds.while_running) - 1), key=lambda need: need.nbytes)


class Bounds:
    """The bytes that no plan can do without.

    ``while_running``: a call runs with the constants, the results kept by then, its inputs and outputs.

    Before it does, the last of those that make its inputs has run, and the others' were there meanwhile;
    whichever of them that was, a plan holds at least the least of these sums.  At the end it holds the
    results.

    ``reads`` are the storages that a call reads, ``held_from`` is the call before which one is there for
    good, and what is ``optional`` some plans do not have.
    """

    def __init__(self, program: Program) -> None:
        calls = self.calls = list(program.calls())
        self.size, self._storage = program.sizes, program.storages
        self._moves = program.tier is not None
        optional = (call.outputs for call in calls if call.serves_recompute)
        self.optional = {output.tensor for outputs in optional for output in outputs}
        self.reads = [self._storages(call.inputs) for call in calls]
        self.maker = {output.tensor: op for op, call in enumerate(calls) for output in call.outputs}
        # The call before which each constant and result is held for good.
        self.held_from = {step.tensor: 0 for step in program.instructions if isinstance(step, Constant)}
        for op, tensors in program.kept_after.items():
            for tensor in tensors:
                self.held_from.setdefault(self._storage[tensor], op + 1)
        more = [0] * (len(calls) + 1)
        for storage, number in self.held_from.items():
            more[number] += self.size[storage]
        *self._held_bytes, self.at_the_end = accumulate(more)
        self.while_running = [self._while_running(number, read) for number, read in enumerate(self.reads)]

    def joint(self, number: int, known: Need) -> Need:
        """The need while the last of those runs that make a call's inputs; ``known`` if this is no more."""
        inputs = self.reads[number]
        makers = {self.maker[storage] for storage in inputs if storage in self.maker}
        if self._moves and any(self.calls[maker].movable for maker in makers):
            return known  # the last of the inputs may come back by a transfer
        least = min((self.while_running[maker].nbytes for maker in makers), default=-math.inf)
        if least + self._bytes(inputs) <= known.nbytes:
            return known
        need = min(self._while_running(maker, self.reads[maker] | inputs) for maker in makers)
        return need if need.nbytes > known.nbytes else known

    def _while_running(self, number: int, there: set[int]) -> Need:
        """The need while a call runs and these are there."""
        call = self.calls[number]
        if call.serves_recompute:
            return Need(0, number)
        nbytes = self._held_bytes[number] + call.workspace
        for storage in there | self._storages(output.tensor for output in call.outputs):
            if self.held_from.get(storage, number + 1) > number:
                nbytes += self.size[storage]
        return Need(nbytes, number)

    def _bytes(self, storages: Iterable[int]) -> int:
        return sum(map(self.size.__getitem__, storages))

    def _storages(self, tensors: Iterable[int]) -> set[int]:
        """The tensors' storages that any plan has."""
        return set(map(self._storage.__getitem__, tensors)) - self.optional
