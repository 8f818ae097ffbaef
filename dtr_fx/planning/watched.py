"""The option ``watch``: each time that a heuristic weighed one value."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from dtr_fx.planning.planner import Planner
from dtr_fx.report import Choice, Event
from dtr_fx.runtime import Plan
from dtr_fx.runtime.steps import COMPUTE, RECOMPUTE
from dtr_fx.search import Scored, scores_of


def choices_of(
    planner: Planner,
    plan: Plan,
    value: str,
    names: Sequence[str],
    origins: Mapping[int, str],
    events: Sequence[Event],
) -> tuple[Choice, ...]:
    """The choices of a heuristic that concerned a value; a search makes none, an unknown value has none.

    ``names`` are those of the program's tensors, ``events`` those of the plan's report.  ``origins`` are
    those of the program's calls, by number: a call without one saves something for the call after it.
    """
    if value not in names:
        return ()
    found = scores_of(planner.program, plan, names.index(value), planner.policies)

    def finite(score: float) -> float | None:
        return score if math.isfinite(score) else None

    events_at = _positions(plan, found, origins, events)
    return tuple(
        Choice(at, finite(one.score), one.rank, one.candidates, names[one.chosen], finite(one.chosen_score))
        for one, at in zip(found, events_at)
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
