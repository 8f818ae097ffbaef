"""A program: operators on numbered tensors, and how long it holds on to each.

Sizes are bytes; costs are in whatever unit the source has, seconds for FX graphs (``passes.storages``),
nanoseconds for operator logs (``lab.log``), and only their ratios matter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, count
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from dtr_fx.tiers.tier import Tier


class Constant(NamedTuple):
    """A tensor that is there before the program starts: a parameter, an input."""

    tensor: int
    size: int


class Output(NamedTuple):
    """A result of a call: a fresh tensor of ``size`` bytes, or a view of the input ``alias``."""

    tensor: int
    size: int
    alias: int | None = None


class Call(NamedTuple):
    """An operator; ``inputs`` are read in their order, and one may be read twice.

    ``workspace`` bytes are taken while it runs, and ``replay_workspace`` more where it can run again, which
    is if it is ``recomputable``.  One that ``may_defer`` can run for the first time later than it stands,
    before what reads it.  What one makes may be moved out, and brought back, if it is ``movable``.  One that
    only ``serves_recompute`` is left out of plans that recompute no reader.
    """

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[Output, ...]
    cost: float
    workspace: int = 0
    recomputable: bool = True
    may_defer: bool = False
    replay_workspace: int = 0
    serves_recompute: bool = False
    movable: bool = False


class Release(NamedTuple):
    """The program uses the tensor no more."""

    tensor: int


class Keep(NamedTuple):
    """A result: the tensor has to be there from now on."""

    tensor: int


def _unsized(outputs: tuple[Output, ...]) -> tuple[Output, ...]:
    return tuple(output._replace(size=0) for output in outputs)


Instruction: TypeAlias = Constant | Call | Release | Keep


@dataclass(frozen=True)
class Program:
    """A program's steps in order; ``backward`` is the number of the first call of its backward pass.

    ``simrd``: it was read, and is to be replayed, by the rules of the original simulator.  Storages may be
    moved to the ``tier``, if there is one, whose speed is in bytes per unit of cost.
    """

    name: str
    instructions: tuple[Instruction, ...]
    backward: int | None = None
    simrd: bool = False
    tier: Tier | None = None

    def budget(self, asked: float) -> float:
        """A budget in bytes: a share of the peak if a float is asked for, bytes if it is an int.

        Raises ValueError for a share that is not above 0 and at most 1, for negative bytes, for no number.

        >>> program = Program("one", (Constant(0, 10),))
        >>> program.budget(0.5), program.budget(7)
        (5, 7)
        """
        if isinstance(asked, float) and 0 < asked <= 1:
            return int(asked * self.peak)
        if isinstance(asked, int) and not isinstance(asked, bool) and asked >= 0:
            return asked
        raise ValueError(
            f"{asked!r} is no budget; give a share of the peak (a float, at most 1.0) or bytes (an int)"
        )

    def calls(self) -> Iterator[Call]:
        return (step for step in self.instructions if isinstance(step, Call))

    def with_calls(self, change: Callable[[int, Call], Call]) -> Program:
        """The program with other calls, each made from a call and its number."""
        numbers = count()
        steps = (
            change(next(numbers), step) if isinstance(step, Call) else step for step in self.instructions
        )
        return replace(self, instructions=tuple(steps))

    @cached_property
    def structure(self) -> Hashable:
        """All but sizes and costs: where it is equal, orders of one program are orders of the other."""
        return tuple(
            step._replace(cost=0.0, workspace=0, replay_workspace=0, outputs=_unsized(step.outputs))
            if isinstance(step, Call)
            else (type(step), step[0])
            for step in self.instructions
        )

    @cached_property
    def cost(self) -> float:
        """The cost of all calls, each run once."""
        return sum(call.cost for call in self.calls())

    @cached_property
    def constants(self) -> int:
        """Bytes of the constants."""
        return sum(step.size for step in self.instructions if isinstance(step, Constant))

    @cached_property
    def storages(self) -> dict[int, int]:
        """The storage of each tensor, under the number of the tensor that it was made for."""
        storages: dict[int, int] = {}
        for step in self.instructions:
            if isinstance(step, Constant):
                storages[step.tensor] = step.tensor
            elif isinstance(step, Call):
                for output in step.outputs:
                    base = output.tensor if output.alias is None else storages[output.alias]
                    storages[output.tensor] = base
        return storages

    @cached_property
    def kept_after(self) -> dict[int, list[int]]:
        """The tensors that are kept right after each call, by its number; before the first that is -1."""
        kept: dict[int, list[int]] = {}
        call = -1
        for step in self.instructions:
            if isinstance(step, Call):
                call += 1
            elif isinstance(step, Keep):
                kept.setdefault(call, []).append(step.tensor)
        return kept

    @cached_property
    def gradients_kept(self) -> Program:
        """The program with a backward pass whose operators run once."""
        backward = len(self.instructions) if self.backward is None else self.backward
        return self.with_calls(
            lambda number, call: call._replace(recomputable=call.recomputable and number < backward)
        )

    @cached_property
    def expectations(self) -> list[list[tuple[int, float]]]:
        """Of each call, when the storages that it touches, in order, are read next; ``math.inf`` is never."""
        storages, calls = self.storages, list(self.calls())
        *starts, end = accumulate((call.cost for call in calls), initial=0.0)
        next_use = {storages[step.tensor]: end for step in self.instructions if isinstance(step, Keep)}
        expectations = []
        for call, start in zip(reversed(calls), reversed(starts)):
            read = [storages[tensor] for tensor in call.inputs]
            touched = {*read, *(storages[output.tensor] for output in call.outputs)}
            expectations.append([(storage, next_use.get(storage, math.inf)) for storage in sorted(touched)])
            next_use.update(dict.fromkeys(read, start))
        return expectations[::-1]

    @cached_property
    def sizes(self) -> dict[int, int]:
        """The bytes of each storage."""
        constants = {step.tensor: step.size for step in self.instructions if isinstance(step, Constant)}
        made = (output for call in self.calls() for output in call.outputs if output.alias is None)
        return constants | {output.tensor: output.size for output in made}

    @cached_property
    def peak(self) -> int:
        """The most bytes held at once if each storage is freed with its last tensor, constants never.

        The axis of the paper's figures: a budget is a share of it.  For ``simrd`` constants are freed, too.
        """
        storages, sizes = self.storages, self.sizes
        tensors = dict.fromkeys(sizes, 0)
        held = peak = 0
        for step in self.instructions:
            if isinstance(step, Constant):
                tensors[step.tensor] = 1 if self.simrd else 2  # of 2 one is never released
                held += step.size
                peak = max(peak, held)
            elif isinstance(step, Call):
                for output in step.outputs:
                    tensors[storages[output.tensor]] += 1
                    held += output.size if output.alias is None else 0
                peak = max(peak, held + step.workspace + step.replay_workspace)
            elif isinstance(step, Release):
                storage = storages[step.tensor]
                tensors[storage] -= 1
                if not tensors[storage]:
                    held -= sizes[storage]
        return peak
