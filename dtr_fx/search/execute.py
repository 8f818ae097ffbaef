"""A given order of operators, carried out by the runtime."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence

from dtr_fx.runtime import Plan, Program, RunFailed, Runtime, Tensor, collector_paused
from dtr_fx.runtime.caching_allocator import CachingAllocator
from dtr_fx.runtime.driver import constant, keep, perform
from dtr_fx.runtime.program import Constant

from .lifetimes import NOTHING, Lifetimes, Moved, Operators, operator_of


class RefusedOrder(Exception):
    """The runtime cannot carry out an order that fits by its lifetimes: a defect of dtr_fx."""

    def __init__(self, program: Program, order: Sequence[int], budget: float, why: RunFailed) -> None:
        super().__init__(f"{why}; reproduce it with execute_order({program!r}, {list(order)!r}, {budget!r})")
        self.order = order
        self.budget = budget


def execute_order(
    program: Program, order: Sequence[int], budget: float = math.inf, moved: Moved = NOTHING
) -> Plan:
    """Run a program's calls in an order in which some come again.

    A storage is dropped after the last read before it is made again, and freed for good after its last read;
    one that is kept before the last operator stays.  What comes again for nothing is left out.  An operator
    that may be deferred runs when something reads what it makes.  What an order forgets, such as a view that
    must be taken again, the runtime rematerializes by itself.  What the operators ``moved`` make is moved
    out, and comes back where the order has ``~op``.

    Raises ``RunFailed`` if the order does not fit into the budget.
    """
    return Plan.of(program, _executed(program, order, budget, moved), "search")


def reserved_by(
    program: Program, order: Sequence[int], allocator: CachingAllocator, moved: Moved, budget: float
) -> int:
    """The bytes that an allocator reserves for a program in an order; see ``execute_order``."""
    _executed(program, order, budget, moved, allocator)
    return allocator.reserved


def _executed(
    program: Program,
    order: Sequence[int],
    budget: float,
    moved: Moved,
    allocator: CachingAllocator | None = None,
) -> Runtime:
    runtime = Runtime(
        budget,
        "dtr-local",
        deallocation="ignore",
        order="program",
        tier=program.tier,
        allocator=allocator,
    )
    with collector_paused():
        _Execution(program, order, runtime, moved).run()
    return runtime


def execute_found(
    program: Program, order: Sequence[int], budget: float, moved: Moved = NOTHING
) -> Plan | None:
    """As ``execute_order``, for an order that fits by its lifetimes: None, where the runtime refuses it.

    Raises ``RefusedOrder`` instead if the environment variable ``DTR_DEBUG`` is set.
    """
    try:
        return execute_order(program, order, budget, moved)
    except RunFailed as failure:
        if os.environ.get("DTR_DEBUG"):
            raise RefusedOrder(program, order, budget, failure) from failure
        return None


class _Execution:
    """The runtime on its way through an order."""

    def __init__(self, program: Program, order: Sequence[int], runtime: Runtime, moved: Moved) -> None:
        self._program, self._runtime = program, runtime
        self._operators = operators = Operators.of(program)
        self._order = _without_idle(operators, operators.in_time(order, moved))
        comes_back = {~run for run in self._order}
        self._moved = {op: waits for op, waits in moved.items() if op in comes_back}
        self._lives = Lifetimes(operators, enumerate(self._order), len(self._order), self._moved)
        self._movers = self._lives.moved_until()
        self._starting: dict[int, list[int]] = {}
        for mover in sorted(self._moved):
            self._starting.setdefault(operators.written[mover], []).append(mover)
        self._returning = self._storages_that_return()
        self._calls = list(program.calls())
        self._tensors: dict[int, Tensor] = {}
        self._done: set[int] = set()

    def run(self) -> None:
        runtime, program, tensors = self._runtime, self._program, self._tensors
        for step in program.instructions:
            if isinstance(step, Constant):
                constant(runtime, step, tensors)
        reads = self._reads()
        for slot, run in enumerate(self._order):
            op = operator_of(run)
            is_first = op not in self._done
            movers = self._movers.get(op, ()) if is_first else ()
            copied = [storage for mover in movers for storage in self._operators.makes[mover]]
            touched = (*(reads[op] if run >= 0 else ()), *self._operators.makes[op], *copied)
            ends = {
                storage: again
                for storage in touched
                if (again := self._lives.dies(storage, slot)) is not None
            }
            if not is_first:
                have = runtime.bring_back if run < 0 else runtime.recompute
                for storage in self._operators.makes[op]:
                    if storage not in ends:  # else nothing reads it
                        have(self._tensor(storage))
            elif not self._lives.is_deferred(op, slot):
                self._run_first(op)
            for storage, is_made_again in ends.items():
                made = tensors.get(self._operators.tensor[storage])
                if made is not None:
                    is_leaving = is_made_again and made.storage.leaves is not None
                    go = runtime.let_go if is_leaving else runtime.drop if is_made_again else runtime.discard
                    go(made)
        for result in (tensor for kept in program.kept_after.values() for tensor in kept):
            keep(runtime, tensors[result])

    def _run_first(self, op: int) -> None:
        """Run an operator; what it makes starts to move out."""
        perform(self._runtime, self._calls[op], self._tensors, op)
        self._done.add(op)
        for kept in self._program.kept_after.get(op, ()) if op < len(self._calls) - 1 else ():
            keep(self._runtime, self._tensors[kept])
        for mover in self._starting.get(op, ()):
            for storage in sorted(self._returning.intersection(self._operators.makes[mover])):
                self._runtime.move_out(self._tensor(storage))

    def _tensor(self, storage: int) -> Tensor:
        return self._tensors[self._operators.tensor[storage]]

    def _storages_that_return(self) -> set[int]:
        """What is moved out and is read again."""
        lives = self._lives
        return {
            storage
            for op in self._moved
            for storage in self._operators.makes[op]
            if any(lives.last_read(storage, slot) > slot for slot in lives.back.intersection(lives.runs[op]))
        }

    def _reads(self) -> list[list[int]]:
        """The storages that each operator reads, constants and what is held apart."""
        number = {tensor: storage for storage, tensor in enumerate(self._operators.tensor)}
        constants = self._tensors.keys()
        bases = (
            {self._program.storages[tensor] for tensor in call.inputs} - constants for call in self._calls
        )
        return [[number[tensor] for tensor in read if tensor in number] for read in bases]


def _without_idle(operators: Operators, order: Sequence[int]) -> list[int]:
    """The order without the repeated runs of which nothing that is made is read."""
    first: dict[int, int] = {}
    for slot, run in enumerate(order):
        first.setdefault(operator_of(run), slot)
    read = set(operators.kept)
    found = []
    for slot in reversed(range(len(order))):
        run = order[slot]
        op = operator_of(run)
        if first[op] == slot or not read.isdisjoint(operators.makes[op]):
            found.append(run)
            read.difference_update(operators.makes[op])
            read.update(operators.reads[op] if run >= 0 else ())
    return found[::-1]
