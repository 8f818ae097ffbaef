"""One pass of the runtime over a program, under one of a portfolio of policies."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from dtr_fx.runtime import HEURISTICS, Heuristic, Order, Plan, Program, RunFailed, Runtime, collector_paused
from dtr_fx.runtime.driver import drive


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
