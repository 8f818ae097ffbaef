"""A given order of operators, carried out by the runtime."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Sequence

from dtr_fx.runtime import Plan, Program, RunFailed, Runtime, Tensor, collector_paused
from dtr_fx.runtime.caching_allocator import CachingAllocator
from dtr_fx.runtime.driver import constant, keep, perform
from dtr_fx.runtime.program import Constant

from .lifetimes import NOTHING, Lifetimes, Moved, Operators


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
    out, and comes back where they come again.

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
        _execute(program, order, runtime, moved)
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


def _execute(program: Program, order: Sequence[int], runtime: Runtime, moved: Moved) -> None:
    operators = Operators.of(program)
    order = _without_idle(operators, operators.in_time(order, moved), moved)
    comes_back = Counter(order)
    moved = {op: waits for op, waits in moved.items() if comes_back[op] > 1}
    lives = Lifetimes(operators, enumerate(order), len(order), moved)
    gone_after = lives.moved_until()
    returning = {
        storage
        for op in moved
        for storage in operators.makes[op]
        if any(lives.last_read(storage, slot) > slot for slot in lives.runs[op][1:])
    }
    calls = list(program.calls())
    tensors: dict[int, Tensor] = {}
    for step in program.instructions:
        if isinstance(step, Constant):
            constant(runtime, step, tensors)
    constants = dict.fromkeys(tensors)
    number = {tensor: storage for storage, tensor in enumerate(operators.tensor)}
    reads = [{program.storages[tensor] for tensor in call.inputs} - constants.keys() for call in calls]
    done: set[int] = set()
    for slot, op in enumerate(order):
        read = reads[op] if op not in done or op not in moved else ()
        gone = gone_after.get(op, ()) if op not in done else ()
        copied = [storage for mover in gone for storage in operators.makes[mover]]
        touched = (*(number[tensor] for tensor in read if tensor in number), *operators.makes[op], *copied)
        dying = {storage: again for storage in touched if (again := lives.dies(storage, slot)) is not None}
        if op in done:
            for storage in operators.makes[op]:
                tensor = tensors[operators.tensor[storage]]
                if storage not in dying:
                    (runtime.bring_back if op in moved else runtime.access)(tensor)
        elif not lives.is_deferred(op, slot):
            done.add(op)
            perform(runtime, calls[op], tensors, op)
            for kept in program.kept_after.get(op, ()) if op < len(calls) - 1 else ():
                keep(runtime, tensors[kept])
            for storage in sorted(returning.intersection(operators.makes[op])):
                runtime.move_out(tensors[operators.tensor[storage]])
        for storage, is_made_again in dying.items():
            made = tensors.get(operators.tensor[storage])
            if made is not None:
                is_leaving = is_made_again and made.storage.leaves is not None
                (runtime.let_go if is_leaving else runtime.drop if is_made_again else runtime.discard)(made)
    for result in (tensor for kept in program.kept_after.values() for tensor in kept):
        keep(runtime, tensors[result])


def _without_idle(operators: Operators, order: Sequence[int], moved: Moved) -> list[int]:
    """The order without the repeated runs of which nothing that is made is read."""
    first: dict[int, int] = {}
    for slot, op in enumerate(order):
        first.setdefault(op, slot)
    read = set(operators.kept)
    found = []
    for slot in reversed(range(len(order))):
        op = order[slot]
        if first[op] == slot or not read.isdisjoint(operators.makes[op]):
            found.append(op)
            read.difference_update(operators.makes[op])
            read.update(operators.reads[op] if first[op] == slot or op not in moved else ())
    return found[::-1]
