"""The scores that a heuristic gave one storage, from a second run that makes the same choices again.

A large program makes thousands of choices among thousands of candidates: they are recorded for who asks.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from dtr_fx.runtime import Operator, Plan, Program, Runtime, Storage
from dtr_fx.runtime.steps import BUDGET

from .policies import Policy, run_policy


class Scored(NamedTuple):
    """A choice for which a storage was a candidate.

    ``step`` is the number of the drop among the plan's steps, ``rank`` is 1 for the lowest score.
    """

    step: int
    score: float
    rank: int
    candidates: int
    chosen: int
    chosen_score: float


def scores_of(program: Program, plan: Plan, tensor: int, policies: Iterable[Policy]) -> list[Scored]:
    """Each choice on the way to a plan that could have fallen on a tensor's storage.

    ``tensor`` is its number in the program.  One of the policies has made the plan, unless the search did: a
    search scores no storages.
    """
    recording = functools.partial(_Recording, number=program.storages[tensor])
    for policy in policies:
        if policy.heuristic.name == plan.decided_by:
            run = run_policy(program, plan.budget, policy, max_recompute=plan.cost, make_runtime=recording)
            if run.failure is None and run.plan.steps == plan.steps:
                assert isinstance(run.runtime, _Recording)
                return run.runtime.scored_storage
    return []


class _Recording(Runtime):
    def __init__(self, *arguments: Any, number: int, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.scored_storage: list[Scored] = []
        self._number = number

    def perform_eviction(
        self, storage: Storage, op: Operator, reason: str, score: float | None = None
    ) -> None:
        if reason == BUDGET and score is not None:
            self._record(storage, score)
        super().perform_eviction(storage, op, reason, score)

    def _record(self, chosen: Storage, chosen_score: float) -> None:
        wanted = next((storage for storage in self._pool.members if storage.id == self._number), None)
        if wanted is None:
            return
        scores = self._pool.scores
        score = math.inf if wanted.locks else float(scores[wanted.slot])
        rank = 1 if wanted is chosen else 1 + max(int((scores < score).sum()), 1)
        found = Scored(len(self.steps), score, rank, len(scores), chosen.id, chosen_score)
        self.scored_storage.append(found)
