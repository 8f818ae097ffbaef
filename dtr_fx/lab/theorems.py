"""Theorems 3.1 and 3.2 of Kirisame et al. (ICLR 2021): the linear network, and the adversary."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from dtr_fx.lab.networks import linear
from dtr_fx.runtime import Deallocation, Heuristic, Runtime, collector_paused, resolve
from dtr_fx.runtime.driver import drive
from dtr_fx.runtime.heuristics import Score

LEAST_BUDGET = 3  # the adversary's t_0, and an operator's input and output


@dataclass(frozen=True)
class LinearRun:
    """One run of the linear network both ways: ``executed`` operators, 2N its own, in ``seconds``."""

    n: int
    budget: int
    executed: int
    seconds: float

    @property
    def ratio(self) -> float:
        """Operators executed for each of the 2N operators of the program: 1 without a budget."""
        return self.executed / (2 * self.n)


def root_budget(n: int) -> int:
    """B = 2⌈√N⌉, the budget of the paper's experiments on Theorem 3.1."""
    return 2 * (math.isqrt(n - 1) + 1)


def run_linear(
    n: int,
    heuristic: str | Heuristic = "dtr-eq",
    budget: int | None = None,
    *,
    deallocation: Deallocation = "eager",
    max_ratio: float = math.inf,
) -> LinearRun:
    """Run ``networks.linear(n)`` under a budget, ``root_budget(n)`` if none is given.

    Appendix A banishes what the program needs no more; the paper's experiments evict it eagerly, and then the
    time of the runtime under exact e* grows at least with the square of N.
    """
    program = linear(n)
    budget = root_budget(n) if budget is None else budget
    runtime = Runtime(budget, heuristic, deallocation=deallocation, max_recompute=(max_ratio - 1) * 2 * n)
    with collector_paused():
        start = time.perf_counter()
        drive(runtime, program)
        seconds = time.perf_counter() - start
    return LinearRun(n, budget, round(runtime.clock), seconds)


@dataclass(frozen=True)
class AdversaryRun:
    """The network that the adversary revealed: ``n`` operators in ``paths``; how many were ``executed``."""

    n: int
    budget: int
    heuristic: str
    paths: tuple[int, ...]
    executed: int

    @property
    def ratio(self) -> float:
        """Operators executed for each of the ``n`` that the optimum, path by path, executes."""
        return self.executed / self.n

    @property
    def least_ratio(self) -> float:
        """(N/B + 1) / 2, below which ``ratio`` cannot be: the proof's bound, for B paths of equal length."""
        return (self.n / self.budget + 1) / 2


def run_adversary(n: int, budget: int, heuristic: str | Heuristic | Score = "dtr-eq") -> AdversaryRun:
    """Grow a network of ``n`` operators against a heuristic's choices at a budget of ``budget`` units.

    A constant t_0 has B children, and a path grows from each (Appendix B).  Beside t_0 there is room for B -
    1 tensors, so one path at least is evicted as a whole.  The adversary, who sees what is resident, lets the
    program extend that one, and the runtime has to rematerialize it from its beginning: Ω(N²/B) operators. A
    heuristic that scores by the next use is refused, as nothing is known here of a next use.

    >>> run = run_adversary(64, 8, "msps")
    >>> run.least_ratio, run.ratio
    (4.5, 4.9375)
    """
    heuristic = resolve(heuristic)
    if n < 1:
        raise ValueError(f"n is {n}; it must be at least 1")
    if budget < LEAST_BUDGET:
        raise ValueError(
            f"the budget is {budget}; t_0, an operator's input and its output need at least {LEAST_BUDGET}"
        )
    if heuristic.time == "next_use":
        raise ValueError(
            f"{heuristic.name} scores by the next use, which the adversary decides only afterwards; "
            "choose a heuristic that scores by staleness"
        )
    runtime = Runtime(budget, heuristic)
    with collector_paused():
        start = runtime.constant(1)
        paths = [list(runtime.perform_op([start], [1], cost=1.0)) for _ in range(min(n, budget))]
        for _ in range(n - len(paths)):
            # Of the paths without a resident tensor, the one that costs most to rematerialize.
            path = max((path for path in paths if not any(tensor.defined for tensor in path)), key=len)
            path += runtime.perform_op(path[-1:], [1], cost=1.0)
    lengths = tuple(len(path) for path in paths)
    return AdversaryRun(n, budget, heuristic.name, lengths, round(runtime.clock))
