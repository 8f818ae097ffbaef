"""The record of a run: what was computed, recomputed, dropped and banished, in order, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

COMPUTE = "compute"
RECOMPUTE = "recompute"
DROP = "drop"
BANISH = "banish"

# Why a storage was dropped or banished.
BUDGET = "budget"  # evicted to make room (Fig. 1, PerformEviction)
RELEASED = "released"  # the last external reference went (C.5)
PASSED = "passed"  # rematerialized only on the way to another value, which is now computed
DUPLICATE = "duplicate"  # recomputed beside the output of the same operator that was asked for
PLANNED = "planned"  # by a plan that knows when it is recomputed
DEAD = "dead"  # nothing can ask for it again


class Event(NamedTuple):
    """One step of a run.

    ``op`` is the operator that ran, or for which room was made; ``storage`` is the id of the dropped
    or banished storage, -1 for a computation.  ``used`` are the bytes resident: during a computation,
    and after a drop.  ``score`` is the heuristic's score of a storage evicted for the budget.
    """

    kind: str
    op: int
    storage: int
    used: int
    reason: str
    score: float | None


def trace(events: Iterable[Event], op_name: Callable[[int], str], storage_name: Callable[[int], str]) -> str:
    """A run on one line: ``C`` compute, ``R`` recompute, ``D`` drop, ``B`` banish.

    >>> trace([Event("compute", 0, -1, 1, "", None), Event("drop", 1, 0, 0, "budget", 0.5)],
    ...       "f{}".format, "t{}".format)
    'C f0, D t0'
    """
    return ", ".join(
        f"{event.kind[0].upper()} "
        + (storage_name(event.storage) if event.storage >= 0 else op_name(event.op))
        for event in events
    )
