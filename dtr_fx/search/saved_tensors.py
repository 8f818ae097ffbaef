"""Plans that hold little between the forward and the backward pass, where other programs run.

The limit is one more operator's memory: when the backward pass starts, all but so many bytes are taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import count

from dtr_fx.runtime.program import Call, Schedule


def holding_between_passes(schedule: Schedule, most: int, budget: int) -> Schedule:
    """The schedule for plans within a budget that hold at most so many bytes between the passes."""
    numbers = count()
    steps = (
        step._replace(workspace=max(step.workspace, budget - most))
        if isinstance(step, Call) and next(numbers) == schedule.backward
        else step
        for step in schedule.steps
    )
    return replace(schedule, steps=tuple(steps))


def restarted(schedule: Schedule, order: Sequence[int]) -> list[int]:
    """An order that holds the least between the passes: what the forward pass did is done again after it.

    It costs a forward pass more, and each half takes what it took before.
    """
    assert schedule.backward is not None
    repeats = [call.recomputable for call in schedule.calls()]
    start = order.index(schedule.backward)
    again = [op for op in order[:start] if repeats[op]]
    return [*order[: start + 1], *again, *order[start + 1 :]]
