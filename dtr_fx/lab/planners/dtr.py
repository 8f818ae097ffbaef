"""DTR itself as a planner: the runtime on a graph."""

from __future__ import annotations

from dtr_fx.lab.planners.graph import OperatorGraph
from dtr_fx.lab.planners.plan import CannotPlan
from dtr_fx.runtime import Heuristic, Plan, RunFailed, Runtime
from dtr_fx.runtime.driver import drive
from dtr_fx.runtime.heuristics import Score


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
    >>> print(plan_dtr(graph, 5))
    C f0, C f1, B t0, B t1
    """
    runtime = Runtime(budget, heuristic, max_recompute=max_recompute * graph.cost)
    try:
        drive(runtime, graph.program)
    except RunFailed as error:
        raise CannotPlan(f"{graph.name}: DTR under {runtime.heuristic.name}: {error}") from None
    return Plan.of(graph.program, runtime, runtime.heuristic.name)
