"""Checkmate's integer program: Jain et al., "Checkmate: Breaking the Memory Wall with Optimal Tensor
Rematerialization" (MLSys 2020), section 4, through ``scipy.optimize.milp``.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

from dtr_fx.errors import DTRError
from dtr_fx.lab.planners.graph import OperatorGraph
from dtr_fx.lab.planners.plan import CannotPlan, Solution, solution, solvable, whole_costs, whole_sizes

# A program of more, of half a million variables, gets nowhere in hours, and takes gigabytes to write down.
MAX_OPERATORS = 400

# The solver takes a binary of 1e-6 for 0: the budget must not be more units than that can hide.
FINEST = 10**5

_Terms: TypeAlias = list[tuple[int, float]]  # of a row: variables, and what they are multiplied by
_Row: TypeAlias = tuple[_Terms, float, float]  # low ≤ row · x ≤ high


class TooLarge(CannotPlan):
    """A graph of too many operators."""


def solve_checkmate(graph: OperatorGraph, budget: float, seconds: float = 60.0) -> Solution:
    """The cheapest plan in stages within the budget.

    ``optimal`` is meant up to rounding: costs that are not whole numbers are rounded to 1e-7 of the
    program's, and sizes without a common divisor are rounded up to 1e-5 of the budget.

    Raises ``CannotPlan`` if no plan in stages fits, or there are no operators or more than ``MAX_OPERATORS``;
    ``ValueError`` if the budget or the seconds are no number, or not positive.
    """
    closed = solvable(graph, budget, seconds, "Checkmate")
    start = time.perf_counter()
    program = _Program(closed, budget)
    result = program.solve(max(seconds - (time.perf_counter() - start), 0.01))
    elapsed = time.perf_counter() - start
    if result.status == 2:
        raise CannotPlan(f"{graph.name}: no plan of Checkmate's fits {budget} bytes")
    dual = result.mip_dual_bound
    bound = 0.0 if dual is None else program.unit * math.ceil(dual - 1e-6)
    order = None if result.x is None else program.order(result.x)
    return solution("Checkmate", graph, budget, order, bound, result.status == 0, elapsed)


class _Program:
    """The variables, by their numbers, and the constraints between them; ``unit`` is that of the costs.

    The plan is cut into stages, one for each operator: stage t ends when operator t runs for the first time,
    and runs operators up to t in program order, each at most once (the paper's frontier-advancing partition).
    Where memory is tightest a plan of another form can be cheaper, or the only one.

        R[t, i]        operator i runs in stage t                          binary, R[t, t] = 1
        S[t, i]        its result is kept from stage t - 1 to stage t      binary, i < t
        Free[t, i, k]  its result is freed in stage t at the turn of k     k = i or k reads i
        U[t, k]        bytes live in stage t at the turn of k              0 … budget

    The paper makes Free a product of R and S, and that linear by counting hazards.  Here results are
    conserved instead: what is there in a stage is kept or run, less what was freed, and what is there at its
    end is kept.  The plans and their memory are the same, the relaxation is tighter, and Free is integral by
    itself. Two cuts lose no optimum: what is kept is not run again, and what is run again is read in its
    stage or kept.
    """

    def __init__(self, graph: OperatorGraph, budget: float) -> None:
        if len(graph) > MAX_OPERATORS:
            most = f"for {MAX_OPERATORS} at most"
            raise TooLarge(f"{graph.name}: {len(graph)} operators; Checkmate's is {most}: use MOCCASIN's")
        self._graph = graph
        self._sizes, self._budget = whole_sizes(graph, budget, FINEST)
        self._costs, self.unit = whole_costs(graph)
        stages = range(len(graph))
        numbers = itertools.count()
        self._run = dict(zip(((t, i) for t in stages for i in range(t + 1)), numbers))
        self._keep = dict(zip(((t, i) for t in range(1, len(graph) + 1) for i in range(t)), numbers))
        turns = [(t, k) for t in stages for k in range(t + 1)]
        self._free = dict(zip(((t, i, k) for t, k in turns for i in self._touched(k)), numbers))
        self._used = dict(zip(turns, numbers))
        self._variables = next(numbers)

    def solve(self, seconds: float) -> Any:
        """The result of ``scipy.optimize.milp``."""
        try:
            from scipy.optimize import Bounds, LinearConstraint, milp
            from scipy.sparse import coo_array
        except ImportError:
            raise DTRError("Checkmate's program needs scipy: pip install 'dtr_fx[optimal]'") from None

        rows: list[int] = []
        columns: list[int] = []
        values: list[float] = []
        limits: list[tuple[float, float]] = []
        for terms, low, high in self._constraints():
            for column, value in terms:
                rows.append(len(limits))
                columns.append(column)
                values.append(value)
            limits.append((low, high))
        matrix = coo_array((values, (rows, columns)), shape=(len(limits), self._variables)).tocsc()
        binaries = len(self._run) + len(self._keep)
        others = self._variables - len(self._run)
        return milp(
            [*(float(self._costs[i]) for _, i in self._run), *[0.0] * others],
            integrality=[int(number < binaries) for number in range(self._variables)],
            bounds=Bounds(
                [*(float(i == t) for t, i in self._run), *[0.0] * others],
                [1.0] * (self._variables - len(self._used)) + [self._budget] * len(self._used),
            ),
            constraints=LinearConstraint(matrix, *zip(*limits)),
            options={"time_limit": seconds, "mip_rel_gap": 0.0},
        )

    def order(self, solution: Sequence[float]) -> list[int]:
        """The operators that a solution runs, stage by stage."""
        return [i for (_, i), number in self._run.items() if solution[number] > 0.5]

    def _touched(self, k: int) -> dict[int, None]:
        """What an operator reads, and its own result."""
        return dict.fromkeys((*self._graph.nodes[k].inputs, k))

    def _constraints(self) -> Iterator[_Row]:
        # An operator that runs finds its inputs there; a recomputation is read or kept (a cut).
        for (t, k), run in self._run.items():
            for source in dict.fromkeys(self._graph.nodes[k].inputs):
                yield [(run, 1), *self._less_there(t, source, k)], -math.inf, 0
            if k < t:
                readers = [(self._run[t, user], -1) for user in self._graph.users[k] if user <= t]
                yield [(run, 1), *readers, (self._keep[t + 1, k], -1)], -math.inf, 0
        # Kept are the results still there when a stage ends; they are not made again (a cut).
        for (t, i), keep in self._keep.items():
            yield [(keep, 1), *self._less_there(t - 1, i, t)], 0, 0
            if t < len(self._graph):
                yield [(keep, 1), (self._run[t, i], 1)], -math.inf, 1
        # U[t, k] is U[t, k - 1], less what is freed after k - 1, and the result of k.
        for (t, k), used in self._used.items():
            terms: _Terms = [(used, -1), (self._run[t, k], self._sizes[k])]
            if k == 0:
                terms += ((self._keep[t, i], self._sizes[i]) for i in range(t))
            else:
                terms.append((self._used[t, k - 1], 1))
                terms += ((self._free[t, i, k - 1], -self._sizes[i]) for i in self._touched(k - 1))
            yield terms, 0, 0

    def _less_there(self, t: int, i: int, before: int) -> _Terms:
        """-1 if i's result is there in stage t at the turn of ``before``: kept or run, and not freed."""
        kept: _Terms = [(self._keep[t, i], -1)] if i < t else []
        frees = [(self._free[t, i, k], 1.0) for k in (i, *self._graph.users[i]) if k < before and k <= t]
        return [(self._run[t, i], -1), *kept, *frees]
