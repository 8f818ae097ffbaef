"""Plans that hold little between the forward and the backward pass, where other programs run.

The limit is one more operator's memory: when the backward pass starts, all but so many bytes are taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

from dtr_fx.runtime.program import Call, Program


def limit_saved(program: Program, most: int, budget: int) -> Program:
    """The program for plans within a budget that hold at most so many bytes between the passes."""
    numbers = count()
    instructions = (
        step._replace(workspace=max(step.workspace, budget - most))
        if isinstance(step, Call) and next(numbers) == program.backward
        else step
        for step in program.instructions
    )
    return replace(program, instructions=tuple(instructions))


def rerun_forward(program: Program, order: Sequence[int]) -> list[int]:
    """An order that saves the least tensors: what the forward pass did is done again after it.

    It costs a forward pass more, and each half takes what it took before.
    """
    assert program.backward is not None
    repeats = [call.recomputable for call in program.calls()]
    start = order.index(program.backward)
    again = [op for op in order[:start] if repeats[op]]
    return [*order[: start + 1], *again, *order[start + 1 :]]
