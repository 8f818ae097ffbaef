"""The steps of a run: what is computed or recomputed, dropped or banished, moved, waited for, and why."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

COMPUTE, RECOMPUTE, DROP, BANISH = "compute", "recompute", "drop", "banish"
OFFLOAD, RELOAD, WAIT = "offload", "reload", "wait"
_LETTERS = {COMPUTE: "C", RECOMPUTE: "R", DROP: "D", BANISH: "B", OFFLOAD: "O", RELOAD: "L", WAIT: "W"}

# Why a storage was dropped or banished.
BUDGET = "budget"  # evicted to make room (Fig. 1, PerformEviction)
RELEASED = "released"  # the last external reference went (C.5)
PASSED = "passed"  # rematerialized only on the way to another value, which is now computed
DUPLICATE = "duplicate"  # recomputed beside the output of the same operator that was asked for
PLANNED = "planned"  # by a plan that knows when it is recomputed
DEAD = "dead"  # nothing can ask for it again


class Step(NamedTuple):
    """One step of a run, and of the plan that is made of it.

    ``op`` is the operator that ran, for which room was made, or that made what is moved; ``storage`` is what
    is dropped, banished, moved or waited for, -1 for a computation.  ``live`` are the bytes resident: during
    a computation, and after a drop.  ``reason`` says why a storage went, ``score`` is what the heuristic gave
    one that was evicted for the budget.  A plan adds, to each drop of a storage that comes back, its bytes,
    the seconds to make it ``again``, and the seconds of compute for which it is ``away``.  ``seconds`` are
    those of a transfer, or for which compute waits.
    """

    kind: str
    op: int
    storage: int
    live: int
    reason: str = ""
    score: float | None = None
    nbytes: int = 0
    again: float | None = None
    away: float | None = None
    seconds: float = 0.0


def trace(steps: Iterable[Step], op_name: Callable[[int], str], storage_name: Callable[[int], str]) -> str:
    """A run on one line: ``C`` compute, ``R`` recompute, ``D`` drop, ``B`` banish, ``O`` offload,
    ``L`` reload, ``W`` wait.

    >>> trace([Step("compute", 0, -1, 1), Step("drop", 1, 0, 0, "budget", 0.5)],
    ...       "f{}".format, "t{}".format)
    'C f0, D t0'
    """
    return ", ".join(
        f"{_LETTERS[step.kind]} " + (storage_name(step.storage) if step.storage >= 0 else op_name(step.op))
        for step in steps
    )
