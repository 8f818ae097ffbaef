"""Of a plan, the choices that concerned one value: its score each time, and what went instead."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from dtr_fx.planning.planner import Planner
from dtr_fx.report import Choice, Event
from dtr_fx.runtime import Plan
from dtr_fx.runtime.steps import COMPUTE, RECOMPUTE
from dtr_fx.search import Scored, scores_of


def choices(
    planner: Planner,
    plan: Plan,
    value: str,
    names: Sequence[str],
    origins: Mapping[int, str],
    events: Sequence[Event],
) -> tuple[Choice, ...]:
    """The choices of a heuristic that concerned a value; a search makes none.

    Parameters
    ----------
    planner, plan:
        Who made the plan, and the plan.
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
    found = scores_of(planner.program, plan, names.index(value), planner.policies)
    return tuple(
        Choice(
            at=at,
            score=_finite(choice.score),
            rank=choice.rank,
            candidates=choice.candidates,
            chosen=names[choice.chosen],
            chosen_score=_finite(choice.chosen_score),
        )
        for choice, at in zip(found, _positions(plan, found, origins, events))
    )


def _positions(
    plan: Plan, found: Sequence[Scored], origins: Mapping[int, str], events: Sequence[Event]
) -> Iterator[int]:
    """The place among the report's events of the operator that each choice made room for."""
    runs_of = defaultdict(list)
    for position, event in enumerate(events):
        if event.kind in (COMPUTE, RECOMPUTE):
            runs_of[event.origin].append(position)
    ran: Counter[int] = Counter()
    done = 0
    for choice in found:
        ran.update(step.op for step in plan.steps[done : choice.step] if step.kind in (COMPUTE, RECOMPUTE))
        done = choice.step
        call = plan.steps[choice.step].op
        before = ran[call]
        while call not in origins:
            call, before = call + 1, 0
        yield runs_of[origins[call]][before]


def _finite(score: float) -> float | None:
    return score if math.isfinite(score) else None
