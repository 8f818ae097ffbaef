"""MOCCASIN's retention intervals: Bartan et al., "Moccasin: Efficient Tensor Rematerialization for Neural
Networks" (ICML 2023), section 2, as a constraint program of ``ortools``' CP-SAT.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from dtr_fx.errors import DTRError
from dtr_fx.lab.planners.graph import OperatorGraph
from dtr_fx.lab.planners.plan import CannotPlan, Solution, solution, solvable, whole_costs, whole_sizes


def solve_moccasin(
    graph: OperatorGraph, budget: float, seconds: float = 60.0, *, intervals: int = 3
) -> Solution:
    """The cheapest plan within the budget that runs no operator more than ``intervals`` times.

    ``bound`` and ``optimal`` speak of such plans.  Costs that are not whole numbers are rounded to 1e-7 of
    the program's.  Raises what ``solve_checkmate`` does.
    """
    closed = solvable(graph, budget, seconds, "MOCCASIN")
    start = time.perf_counter()
    cp_model = require_ortools()
    program = _Program(closed, budget, intervals, cp_model)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1  # with more, the plan depends on chance
    solver.parameters.random_seed = 0
    solver.parameters.max_time_in_seconds = max(seconds - (time.perf_counter() - start), 0.01)
    status = solver.solve(program.model)
    elapsed = time.perf_counter() - start
    if status == cp_model.INFEASIBLE:
        raise CannotPlan(
            f"{graph.name}: no plan of MOCCASIN's, {intervals} intervals per operator, fits {budget} bytes; "
            "more intervals or a larger budget may do"
        )
    bound = solver.best_objective_bound * program.unit
    order = program.order(solver) if status in (cp_model.OPTIMAL, cp_model.FEASIBLE) else None
    return solution("MOCCASIN", graph, budget, order, bound, status == cp_model.OPTIMAL, elapsed)


def require_ortools() -> Any:
    """The module ``ortools.sat.python.cp_model``, or an error that says how to get it."""
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        raise DTRError("MOCCASIN's program needs ortools: pip install 'dtr_fx[optimal]'") from None
    return cp_model


@dataclass(frozen=True)
class _Interval:
    """A run of the operator and how long its result stays; variables of the model, or constants."""

    op: int
    start: Any
    end: Any
    active: Any


def _time(stage: int, op: int) -> int:
    """The place of an operator in a stage; stage t has t + 1 places."""
    return stage * (stage + 1) // 2 + op


class _Program:
    """The model and its intervals; ``unit`` is that of the costs in the objective.

    The result of operator v is live in a few intervals; interval j starts when v runs for the j-th time, at
    start s(v, j), and ends at e(v, j) with its last reader:

        minimize     Σ cost(v) · (number of v's intervals in use)
        subject to   e(v, j) < s(v, j + 1)
                     each run of v lies within an interval of each operator that v reads, after its start
                     the sizes of all intervals at any time add up to the budget at most     (a cumulative)

    Times are those of Checkmate's partition into stages.  With enough intervals per operator both programs
    have the same plans; the variables here are in proportion to the operators instead of their square.
    """

    def __init__(self, graph: OperatorGraph, budget: float, intervals: int, cp_model: Any) -> None:
        self.model = cp_model.CpModel()
        self._domain = cp_model.Domain
        self._graph = graph
        self._horizon = _time(len(graph), 0)
        sizes, capacity = whole_sizes(graph, budget)
        costs, self.unit = whole_costs(graph)
        self._intervals = [self._intervals_of(op, intervals) for op in range(len(graph))]
        self._every = [interval for of_op in self._intervals for interval in of_op]
        for of_op in self._intervals:
            for interval, after in pairwise(of_op):
                self.model.add_implication(after.active, interval.active)
                self.model.add(interval.end < after.start).only_enforce_if(after.active)
            for interval in of_op:
                self._read(interval)
        self._fit(sizes, capacity)
        self.model.minimize(sum(costs[interval.op] * interval.active for interval in self._every))

    def order(self, solver: Any) -> list[int]:
        """The operators that a solution runs, in the order of their starts."""
        active = (interval for interval in self._every if solver.value(interval.active))
        return [op for _, op in sorted((solver.value(interval.start), interval.op) for interval in active)]

    def _intervals_of(self, op: int, intervals: int) -> list[_Interval]:
        """The program's own run of an operator, and its recomputations, of which any may be left out."""
        model, users, count = self.model, self._graph.users[op], len(self._graph)
        first = _time(op, op)
        # A result is live up to a place of one of its readers, or for its own run alone.
        places = {_time(stage, user) for user in users for stage in range(user, count)}
        ends = self._domain.from_values([first, *places])
        found = [_Interval(op, first, model.new_int_var_from_domain(ends, f"e{op}"), 1)]
        if not users:
            return found
        starts = self._domain.from_values([_time(stage, op) for stage in range(op + 1, count)])
        for number in range(1, intervals):
            start = model.new_int_var_from_domain(starts, f"s{op}.{number}")
            end = model.new_int_var_from_domain(ends, f"e{op}.{number}")
            found.append(_Interval(op, start, end, model.new_bool_var(f"a{op}.{number}")))
        return found

    def _read(self, reader: _Interval) -> None:
        """Each run lies in an interval of each of its inputs."""
        for source in dict.fromkeys(self._graph.nodes[reader.op].inputs):
            within = []
            for interval in self._intervals[source]:
                literal = self.model.new_bool_var("")
                self.model.add_implication(literal, interval.active)
                self.model.add(interval.start < reader.start).only_enforce_if(literal)
                self.model.add(reader.start <= interval.end).only_enforce_if(literal)
                within.append(literal)
            self.model.add(sum(within) == 1).only_enforce_if(reader.active)

    def _fit(self, sizes: list[int], capacity: int) -> None:
        every = [interval for interval in self._every if sizes[interval.op]]
        live = []
        for interval in every:
            length = self.model.new_int_var(1, self._horizon + 1, "")
            after = interval.end + 1  # a value is live at its start and at its end
            live.append(
                self.model.new_optional_interval_var(interval.start, length, after, interval.active, "")
            )
        self.model.add_cumulative(live, [sizes[interval.op] for interval in every], capacity)
