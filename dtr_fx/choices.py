"""Of a plan, the choices that concerned one storage: its score each time, and what went instead."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from dtr_fx.passes import storages
from dtr_fx.passes.storages import Program
from dtr_fx.planning import Planning
from dtr_fx.report import Choice, Event
from dtr_fx.reporting import names_of
from dtr_fx.runtime.events import COMPUTE, RECOMPUTE
from dtr_fx.search import Run, Watched, watch


def choices(planning: Planning, run: Run, events: Sequence[Event]) -> tuple[Choice, ...]:
    """The choices that concerned the storage which the option ``watch`` names.

    ``events`` are those of the plan's report.  There are no choices if the graph has no such storage, or if a
    search found the plan, which scores nothing.
    """
    program = planning.program
    names = names_of(program)
    if planning.options.watch not in names:
        return ()
    watched = watch(planning.planner.schedule, run, names.index(planning.options.watch))
    positions = list(_positions(program, run, watched, events))
    name_of = {tensor.storage.id: names[program.storage(value)] for value, tensor in run.tensors.items()}
    return tuple(
        Choice(
            at=at,
            score=_finite(choice.score),
            rank=choice.rank,
            candidates=choice.candidates,
            chosen=name_of[choice.chosen],
            chosen_score=_finite(choice.chosen_score),
        )
        for choice, at in zip(watched, positions)
    )


def _positions(
    program: Program, run: Run, watched: Sequence[Watched], events: Sequence[Event]
) -> Iterator[int]:
    """Where, among the report's events, the operator is that each choice made room for."""
    runs_of = defaultdict(list)
    for position, event in enumerate(events):
        if event.kind in (COMPUTE, RECOMPUTE):
            runs_of[event.origin].append(position)
    ran: Counter[int] = Counter()
    done = 0
    for choice in watched:
        made = run.runtime.events[done : choice.event]
        ran.update(event.op for event in made if event.kind in (COMPUTE, RECOMPUTE))
        done = choice.event
        step = run.runtime.events[choice.event].op
        before = ran[step]
        while program.steps[step].role != storages.COMPUTE:  # a save, for the operator that comes next
            step, before = step + 1, 0
        yield runs_of[program.steps[step].node.name][before]


def _finite(score: float) -> float | None:
    return score if math.isfinite(score) else None
