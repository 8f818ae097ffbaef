"""The adversary of Theorem 3.2 and Appendix B (Kirisame et al., ICLR 2021).

A constant t_0 has B children, and a path grows from each.  Beside t_0 a budget of B units has room for B - 1
tensors of one unit, so one path at least is evicted as a whole.  The adversary, who sees what is resident,
lets the program extend that one, and the runtime has to rematerialize it from its beginning: Ω(N²/B)
operators for the N of the program, against the N of an order that completes one path after another.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dtr_fx.runtime import Heuristic, Runtime, Tensor, collector_paused, resolve
from dtr_fx.runtime.heuristics import Score

LEAST_BUDGET = 3  # t_0, and an operator's input and output


@dataclass(frozen=True)
class AdversaryRun:
    """The network that the adversary revealed to a heuristic, and its cost.

    Of the ``n`` operators of one unit of cost and memory, path j has ``paths[j]``.  ``executed`` counts all
    that ran.
    """

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

    Parameters
    ----------
    heuristic:
        As for ``Runtime``.  The theorem is about those that know the past alone: one that scores by the next
        use is refused, as nothing is known here of a next use before the heuristic has chosen.

    Examples
    --------
    >>> run = run_adversary(64, 8, "msps")
    >>> run.least_ratio, run.ratio
    (4.5, 4.9375)
    """
    heuristic = resolve(heuristic)
    _check(n, budget, heuristic)
    runtime = Runtime(budget, heuristic)
    with collector_paused():
        paths = _grow(runtime, n, budget)
    lengths = tuple(len(path) for path in paths)
    return AdversaryRun(n, budget, heuristic.name, lengths, round(runtime.clock))


def _check(n: int, budget: int, heuristic: Heuristic) -> None:
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


def _grow(runtime: Runtime, n: int, width: int) -> list[list[Tensor]]:
    """The ``n`` operators that the adversary reveals, one by one, as paths."""
    start = runtime.constant(1)
    paths = [list(runtime.perform_op([start], [1], cost=1.0)) for _ in range(min(n, width))]
    for _ in range(n - len(paths)):
        path = _longest_evicted(paths)
        path += runtime.perform_op(path[-1:], [1], cost=1.0)
    return paths


def _longest_evicted(paths: Sequence[list[Tensor]]) -> list[Tensor]:
    """Of the paths without a resident tensor the one that costs most to rematerialize."""
    return max((path for path in paths if not any(tensor.defined for tensor in path)), key=len)
