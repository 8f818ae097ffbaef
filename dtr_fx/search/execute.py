"""A given order of operators, carried out by the runtime."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dtr_fx.runtime import RunFailed, Runtime, collector_paused
from dtr_fx.runtime.driver import keep, perform
from dtr_fx.runtime.program import Call, Constant, Keep, Program
from dtr_fx.search.policies import Run
from dtr_fx.search.timeline import held_storages


def follow(program: Program, order: Sequence[int], budget: float) -> Run:
    """Run a program's calls in an order in which some come again.

    A storage is dropped after the last read before it is made again, and freed for good after its last read;
    one that is kept before the last operator stays.
    What an order forgets, such as a view that must be taken again, the runtime rematerializes by itself.
    An operator that may wait runs when something reads what it makes.

    Raises
    ------
    RunFailed
        The order does not fit into the budget.
    """
    runtime = Runtime(budget, "dtr-local", deallocation="ignore", order="program")
    lives = _Reads(program)
    tensors = {number: runtime.constant(size) for number, size in lives.constants.items()}
    done: set[int] = set()
    with collector_paused():
        for op, unread in zip(order, lives.unread(order)):
            if op in done:
                for number in lives.makes[op]:
                    if number not in unread:
                        runtime.access(tensors[number])
            elif not lives.waits(op, unread):
                done.add(op)
                perform(runtime, lives.calls[op], tensors, op)
                for number in lives.kept_after.get(op, ()):
                    keep(runtime, tensors[number])
            for number, made_again in unread.items():
                if number in tensors:
                    leave = runtime.drop if made_again else runtime.discard
                    leave(tensors[number])
        for number in lives.results:
            keep(runtime, tensors[number])
    return Run(runtime, tensors)


def followed(program: Program, order: Sequence[int], budget: float) -> Run | None:
    """As ``follow``; None if the order does not fit."""
    try:
        return follow(program, order, budget)
    except RunFailed:
        return None


@dataclass
class _Reads:
    """A program by its calls, and what they read and make in terms of evictable storages."""

    program: Program
    calls: list[Call] = field(default_factory=list)
    constants: dict[int, int] = field(default_factory=dict)
    reads: list[set[int]] = field(default_factory=list)
    makes: list[list[int]] = field(default_factory=list)
    results: list[int] = field(default_factory=list)
    kept: dict[int, None] = field(default_factory=dict)
    kept_after: dict[int, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        storages = self.program.storages
        for step in self.program.instructions:
            if isinstance(step, Constant):
                self.constants[step.tensor] = step.size
            elif isinstance(step, Call):
                self.calls.append(step)
                self.reads.append({storages[number] for number in step.inputs} - self.constants.keys())
                self.makes.append([output.tensor for output in step.outputs if output.alias is None])
            elif isinstance(step, Keep):
                self.kept[storages[step.tensor]] = None
                self.results.append(step.tensor)
                self.kept_after.setdefault(len(self.calls) - 1, []).append(step.tensor)
        self.kept_after.pop(len(self.calls) - 1, None)

    def waits(self, op: int, unread: Mapping[int, bool]) -> bool:
        """Whether an operator may wait, as nothing reads what it makes before it is made again."""
        makes = self.makes[op]
        is_made_again = any(unread.get(number) for number in makes)
        return self.calls[op].may_wait and is_made_again and unread.keys() >= set(makes)

    def unread(self, order: Sequence[int]) -> Iterable[dict[int, bool]]:
        """For each run, the storages that it leaves unread, and whether they are made again to be read."""
        unread: list[dict[int, bool]] = []
        live: dict[int, bool] = dict.fromkeys(self.kept, True)
        held = held_storages(self.program)
        for op in reversed(order):
            touched = (*self.reads[op], *self.makes[op])
            unread.append({storage: storage in live for storage in touched if not live.get(storage)})
            live.update((storage, False) for storage in set(self.makes[op]) - held if live.get(storage))
            live.update((storage, True) for storage in self.reads[op])
        return reversed(unread)
