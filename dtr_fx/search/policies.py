"""One pass of the runtime over a program, under one of a portfolio of policies."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from dtr_fx.runtime import HEURISTICS, Heuristic, Order, Plan, Program, RunFailed, Runtime
from dtr_fx.runtime.driver import collector_paused, drive
from dtr_fx.runtime.graph import Operator, Storage
from dtr_fx.runtime.steps import DROP, Step


@dataclass(frozen=True)
class Policy:
    """How a pass decides.

    ``keep_passed`` and ``order`` are those of ``Runtime``.  ``keep_gradients`` says that what the backward
    pass computes is never evicted: by the time it is needed again, all that it was made from is gone.
    ``reserve`` is the share of the budget that the forward pass leaves to the backward pass, which needs
    room to rematerialize in.
    """

    heuristic: Heuristic
    keep_passed: bool = True
    order: Order = "program"
    keep_gradients: bool = True
    reserve: float = 0.0


def paper(heuristic: Heuristic) -> Policy:
    """Exactly the paper's algorithm."""
    return Policy(heuristic, order="depth first", keep_gradients=False)


class Run(NamedTuple):
    """One pass of the runtime over a program, and why it did not finish, if it did not."""

    program: Program
    runtime: Runtime
    failure: RunFailed | None = None

    @property
    def plan(self) -> Plan:
        """The run as a plan."""
        return Plan.of(self.program, self.runtime, self.runtime.heuristic.name)


@collector_paused()
def run_policy(
    program: Program,
    budget: float,
    policy: Policy,
    *,
    max_recompute: float = math.inf,
    make_runtime: Callable[..., Runtime] = Runtime,
) -> Run:
    """Drive a runtime through the program, which moves storages if that has a tier; it may fail."""
    runtime = make_runtime(
        budget,
        policy.heuristic,
        keep_passed=policy.keep_passed,
        order=policy.order,
        max_recompute=max_recompute,
        tier=program.tier,
        moves=True,
    )
    reserve = policy.reserve * (budget - program.constants) if policy.reserve else 0
    driven = program.gradients_kept if policy.keep_gradients else program
    try:
        drive(runtime, driven, reserve=int(reserve))
    except RunFailed as failure:
        # Without its traceback, whose frames would keep the callers' tensors until garbage is collected.
        return Run(program, runtime, failure.with_traceback(None))
    return Run(program, runtime)


def portfolio(first: Policy) -> Iterator[Policy]:
    """Policies that between them were best on transformers, convolutional and recurrent networks."""
    yield first
    yield paper(first.heuristic)
    others = (
        Policy(HEURISTICS["next-use-root"]),
        Policy(HEURISTICS["next-use"], reserve=0.3),
        Policy(HEURISTICS["next-use"], order="depth first"),
        Policy(HEURISTICS["next-use-root"], reserve=0.1),
        Policy(HEURISTICS["dtr-eq"], keep_passed=False),
        Policy(HEURISTICS["msps"]),
        Policy(HEURISTICS["next-use"], keep_passed=False),
        Policy(HEURISTICS["next-use"], reserve=0.15),
        Policy(HEURISTICS["next-use"], keep_gradients=False),
    )
    yield from (policy for policy in others if policy != first)


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
