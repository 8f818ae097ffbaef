"""Of a plan, the choices that concerned one value: its score each time, and what went instead."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from dtr_fx.report import Choice, Event
from dtr_fx.runtime.events import COMPUTE, RECOMPUTE
from dtr_fx.runtime.program import Program
from dtr_fx.search import Run, Watched, watch


def choices(
    program: Program,
    run: Run,
    value: str,
    *,
    names: Sequence[str],
    origins: Mapping[int, str],
    events: Sequence[Event],
) -> tuple[Choice, ...]:
    """The choices of a heuristic that concerned a value; a search makes none.

    Parameters
    ----------
    program, run:
        What was planned, and the plan.
    value:
        Its name; one that is unknown has no choices.
    names:
        Of the program's tensors.
    origins:
        Of the program's calls, by number; those without one save something for the call after them.
    events:
        Those of the plan's report.
    """
    if value not in names:
        return ()
    watched = watch(program, run, names.index(value))
    name_of = {tensor.storage.id: names[program.storages[number]] for number, tensor in run.tensors.items()}
    return tuple(
        Choice(
            at=at,
            score=_finite(choice.score),
            rank=choice.rank,
            candidates=choice.candidates,
            chosen=name_of[choice.chosen],
            chosen_score=_finite(choice.chosen_score),
        )
        for choice, at in zip(watched, _positions(run, watched, origins, events))
    )


def _positions(
    run: Run, watched: Sequence[Watched], origins: Mapping[int, str], events: Sequence[Event]
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
        call = run.runtime.events[choice.event].op
        before = ran[call]
        while call not in origins:
            call, before = call + 1, 0
        yield runs_of[origins[call]][before]


def _finite(score: float) -> float | None:
    return score if math.isfinite(score) else None
