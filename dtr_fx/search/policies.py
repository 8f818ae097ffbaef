"""One pass of the runtime over a program, under one policy."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from dtr_fx.runtime import Heuristic, Order, RunFailed, Runtime, Tensor, collector_paused
from dtr_fx.runtime.driver import drive
from dtr_fx.runtime.events import COMPUTE, RECOMPUTE
from dtr_fx.runtime.program import Program


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


@dataclass(frozen=True)
class Run:
    """What the runtime did with a program, and why it could not finish, if it could not.

    ``tensors`` are by their numbers in the program; ``policy`` is None where an order was followed.
    """

    runtime: Runtime
    tensors: dict[int, Tensor]
    policy: Policy | None = None
    failure: RunFailed | None = None

    @property
    def decided_by(self) -> str:
        """The heuristic that chose what to drop, or ``"search"``."""
        return "search" if self.policy is None else self.policy.heuristic.name

    @property
    def cost(self) -> float:
        """What the rematerialized operators cost."""
        return self.runtime.recompute_cost

    @property
    def order(self) -> list[int]:
        """The operators as they ran, rematerialized ones included."""
        return [event.op for event in self.runtime.events if event.kind in (COMPUTE, RECOMPUTE)]


def run_policy(
    program: Program,
    budget: float,
    policy: Policy,
    *,
    max_recompute: float = math.inf,
    make_runtime: Callable[..., Runtime] = Runtime,
) -> Run:
    """Drive a runtime through the program; it may fail."""
    runtime = make_runtime(
        budget,
        policy.heuristic,
        keep_passed=policy.keep_passed,
        order=policy.order,
        max_recompute=max_recompute,
    )
    reserve = policy.reserve * (budget - program.constants) if policy.reserve else 0
    kept = program.gradients_kept if policy.keep_gradients else program
    with collector_paused():
        try:
            return Run(runtime, drive(runtime, kept, reserve=int(reserve)), policy)
        except RunFailed as failure:
            return Run(runtime, {}, policy, failure)
