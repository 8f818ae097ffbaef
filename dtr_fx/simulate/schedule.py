"""What the simulator replays: operators on numbered tensors, and how long the program holds on to each.

A schedule comes from an operator log (``read_log``) or a synthetic network (``networks``).  Sizes are bytes;
costs are in whatever unit the source has, nanoseconds for logs, and only their ratios matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeAlias


class Constant(NamedTuple):
    """A tensor that is there before the program starts: a parameter, an input."""

    tensor: int
    size: int


class Output(NamedTuple):
    """What a call returns: a fresh tensor of ``size`` bytes, or a view of the input ``alias``."""

    tensor: int
    size: int
    alias: int | None = None


class Call(NamedTuple):
    """An operator; ``inputs`` are read in their order, and one may be read twice."""

    name: str
    inputs: tuple[int, ...]
    outputs: tuple[Output, ...]
    cost: float


class Release(NamedTuple):
    """The program uses the tensor no more."""

    tensor: int


class Keep(NamedTuple):
    """A result: the tensor has to be there from now on."""

    tensor: int


Step: TypeAlias = Constant | Call | Release | Keep


@dataclass(frozen=True)
class Schedule:
    """A program's steps in order; ``backward`` is the number of the first call of its backward pass."""

    name: str
    steps: tuple[Step, ...]
    backward: int | None = None

    def calls(self) -> Iterator[Call]:
        return (step for step in self.steps if isinstance(step, Call))

    @cached_property
    def cost(self) -> float:
        """What all calls cost, each run once."""
        return sum(call.cost for call in self.calls())

    @cached_property
    def constants(self) -> int:
        """Bytes of the constants."""
        return sum(step.size for step in self.steps if isinstance(step, Constant))

    @cached_property
    def storages(self) -> dict[int, int]:
        """The storage of each tensor, under the number of the tensor that it was made for."""
        storages: dict[int, int] = {}
        for step in self.steps:
            if isinstance(step, Constant):
                storages[step.tensor] = step.tensor
            elif isinstance(step, Call):
                for output in step.outputs:
                    base = output.tensor if output.alias is None else storages[output.alias]
                    storages[output.tensor] = base
        return storages

    @cached_property
    def peak(self) -> int:
        """The most bytes held at once if each storage is freed with its last tensor, constants too.

        The axis of the paper's figures: a budget is a share of it.
        """
        storages = self.storages
        sizes: dict[int, int] = {}
        tensors = dict.fromkeys(storages.values(), 0)
        held = peak = 0
        for step in self.steps:
            if isinstance(step, Constant):
                made = [Output(step.tensor, step.size)]
            elif isinstance(step, Call):
                made = list(step.outputs)
            else:
                made = []
            for output in made:
                storage = storages[output.tensor]
                tensors[storage] += 1
                if storage == output.tensor:
                    sizes[storage] = output.size
                    held += output.size
            peak = max(peak, held)
            if isinstance(step, Release):
                storage = storages[step.tensor]
                tensors[storage] -= 1
                if not tensors[storage]:
                    held -= sizes[storage]
        return peak
