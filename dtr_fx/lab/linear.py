"""Theorem 3.1 (Kirisame et al., ICLR 2021): the linear network under 2⌈√N⌉ units of memory.

The network is ``networks.linear``.  Appendix A banishes what the program needs no more; the paper's
experiments evict it eagerly, and then the time of the runtime under exact e* grows at least with the square
of N.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from dtr_fx.lab.networks import linear
from dtr_fx.runtime import Deallocation, Heuristic, Runtime, collector_paused
from dtr_fx.runtime.driver import drive


@dataclass(frozen=True)
class LinearRun:
    """One run, forward and backward.

    ``executed`` counts the operators that ran, of which 2N are the program's own; ``seconds`` is the wall
    time that the runtime took for them.
    """

    n: int
    budget: int
    executed: int
    seconds: float

    @property
    def ratio(self) -> float:
        """Operators executed for each of the 2N operators of the program: 1 without a budget."""
        return self.executed / (2 * self.n)

    @property
    def seconds_per_operator(self) -> float:
        return self.seconds / self.executed


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
    """Run the network of ``n`` operators under a budget, ``root_budget(n)`` if none is given.

    Examples
    --------
    >>> run_linear(100).ratio
    1.4
    """
    program = linear(n)
    budget = root_budget(n) if budget is None else budget
    runtime = Runtime(budget, heuristic, deallocation=deallocation, max_recompute=(max_ratio - 1) * 2 * n)
    with collector_paused():
        start = time.perf_counter()
        drive(runtime, program)
        seconds = time.perf_counter() - start
    return LinearRun(n, budget, round(runtime.clock), seconds)
