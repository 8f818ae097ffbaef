"""The choices of a run that concerned one storage, from a second run that makes them all again.

A large program makes thousands of choices among thousands of candidates: they are recorded for who asks.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

from dtr_fx.runtime import Operator, Runtime, Storage
from dtr_fx.runtime.events import BUDGET
from dtr_fx.runtime.program import Call, Constant, Program
from dtr_fx.search.policies import Run, run_policy


class Watched(NamedTuple):
    """A choice for which a storage was a candidate.

    ``event`` is the number of the drop among the run's events, ``rank`` is 1 for the lowest score.
    """

    event: int
    score: float
    rank: int
    candidates: int
    chosen: int
    chosen_score: float


def watch(program: Program, run: Run, tensor: int) -> list[Watched]:
    """Each choice of the run that could have fallen on a tensor's storage.

    ``tensor`` is its number in the program.  A run that follows an order makes no choices.
    """
    if run.policy is None:
        return []
    make_runtime = functools.partial(_WatchedRuntime, watched=_number_of(program, tensor))
    again = run_policy(program, run.runtime.budget, run.policy, make_runtime=make_runtime).runtime
    assert isinstance(again, _WatchedRuntime)
    return again.watched


class _WatchedRuntime(Runtime):
    def __init__(self, *arguments: Any, watched: int, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.watched: list[Watched] = []
        self._number = watched

    def _evict(self, storage: Storage, op: Operator, reason: str, score: float | None = None) -> None:
        if reason == BUDGET and score is not None:
            self._record(storage, score)
        super()._evict(storage, op, reason, score)

    def _record(self, chosen: Storage, chosen_score: float) -> None:
        watched = self.storages[self._number] if self._number < len(self.storages) else None
        if watched is None or watched.slot < 0:
            return
        scores = self._pool.scores
        score = math.inf if watched.locks else float(scores[watched.slot])
        rank = 1 if watched is chosen else 1 + max(int((scores < score).sum()), 1)
        self.watched.append(Watched(len(self.events), score, rank, len(scores), chosen.id, chosen_score))


def _number_of(program: Program, tensor: int) -> int:
    """The runtime numbers storages as they are made."""
    made: list[int] = []
    for step in program.instructions:
        if isinstance(step, Constant):
            made.append(step.tensor)
        elif isinstance(step, Call):
            made += [output.tensor for output in step.outputs if output.alias is None]
    return made.index(program.storages[tensor])
