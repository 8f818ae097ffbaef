"""DTR itself as a planner: what the runtime does on a graph, written down as a plan."""

from __future__ import annotations

from dtr_fx.lab.planners.graph import OperatorGraph
from dtr_fx.lab.planners.plan import CannotPlan, Compute, Free, Plan, PlanStep
from dtr_fx.runtime import HEURISTICS, Heuristic, RunFailed, Runtime
from dtr_fx.runtime.driver import drive
from dtr_fx.runtime.events import BANISH, COMPUTE, DROP, RECOMPUTE
from dtr_fx.runtime.heuristics import Score
from dtr_fx.search import Infeasible, Policy, search


def plan_dtr(
    graph: OperatorGraph,
    budget: float,
    heuristic: str | Heuristic | Score = "dtr-eq",
    *,
    max_recompute: float = 100.0,
) -> Plan:
    """Drive the runtime through the program; a value is released after its last use.

    The results are rematerialized at the end (the output condition of C.6).

    Raises
    ------
    CannotPlan
        The runtime finds nothing left to evict, or recomputes more than ``max_recompute`` times the program.

    Examples
    --------
    >>> from dtr_fx.lab.planners.graph import Node, OperatorGraph
    >>> graph = OperatorGraph("two", (Node("a", 1, 4), Node("b", 2, 1, (0,))))
    >>> plan_dtr(graph, 5).steps
    (Compute(op=0), Compute(op=1), Free(op=0), Free(op=1))
    """
    runtime = Runtime(budget, heuristic, max_recompute=max_recompute * graph.cost)
    try:
        drive(runtime, graph.program())
    except RunFailed as error:
        raise CannotPlan(f"{graph.name}: DTR under {runtime.heuristic.name}: {error}") from None
    return _as_plan(runtime)


def plan_search(graph: OperatorGraph, budget: int, seconds: float | None = None) -> Plan:
    """The plan that a search finds (see ``dtr_fx.search``).

    Raises
    ------
    CannotPlan
        It finds none.
    """
    try:
        return _as_plan(search(graph.program(), budget, Policy(HEURISTICS["next-use"]), seconds).runtime)
    except Infeasible:
        raise CannotPlan(f"{graph.name}: a search found no plan in {budget} bytes") from None


def _as_plan(runtime: Runtime) -> Plan:
    # One storage for each operator: their numbers are the same.
    steps: list[PlanStep] = []
    for event in runtime.events:
        if event.kind in (COMPUTE, RECOMPUTE):
            steps.append(Compute(event.op))
        elif event.kind in (DROP, BANISH):
            steps.append(Free(event.storage))
    return Plan(tuple(steps))
