"""What the heuristic of a plan gave one storage, each time that room was made."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from dtr_fx.runtime import Plan, Program, Runtime
from dtr_fx.runtime.graph import Operator, Storage
from dtr_fx.runtime.steps import DROP, Step
from dtr_fx.search.policies import Policy, run_policy


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
    """Each choice on the way to a plan that could have fallen on a tensor's storage, by the tensor's number.

    There are too many to record them all: a second run makes the same choices again.  One of the policies has
    made the plan, unless the search did, which scores no storages.
    """
    for policy in policies:
        if policy.heuristic.name == plan.decided_by:
            scored: list[Scored] = []
            recording = partial(_Recording, program.storages[tensor], scored)
            most = plan.cost if program.tier is None else math.inf
            run = run_policy(program, plan.budget, policy, max_recompute=most, make_runtime=recording)
            if run.failure is None and run.plan.steps == plan.steps:
                # A plan leaves copies out that were in vain.
                number = dict(zip(_drops(run.runtime.steps), _drops(plan.steps)))
                return [each._replace(step=number[each.step]) for each in scored]
    return []


def _drops(steps: Sequence[Step], start: int = 0) -> list[int]:
    return [number for number, step in enumerate(steps[start:], start) if step.kind == DROP]


class _Recording(Runtime):
    def __init__(self, number: int, scored: list[Scored], *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self._number, self._scored_storage = number, scored

    def _evict(self, choices: Sequence[tuple[Storage, float]], op: Operator) -> None:
        of_choices = [list(self._of_choice(*choice)) for choice in choices]
        before = len(self.steps)
        super()._evict(choices, op)
        for number, scored in zip(_drops(self.steps, before), of_choices):
            self._scored_storage += [each._replace(step=number) for each in scored]

    def _of_choice(self, chosen: Storage, chosen_score: float) -> Iterator[Scored]:
        scores = self._pool.scores
        for wanted in (storage for storage in self._pool.members if storage.id == self._number):
            score = math.inf if wanted.locks else float(scores[wanted.slot])
            rank = 1 if wanted is chosen else 1 + max(int((scores < score).sum()), 1)
            yield Scored(-1, score, rank, len(scores), chosen.id, chosen_score)
