"""The report of an exact planner, and the units that it solves in."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from dtr_fx.lab.planners.graph import Node, OperatorGraph
from dtr_fx.lab.planners.plan import CannotPlan, check, plan_order
from dtr_fx.runtime import Plan

# Costs that are not whole numbers are rounded to this share of what the program costs.
_RESOLUTION = 10**7


@dataclass(frozen=True)
class Solution:
    """The best plan found, None if there was no time to find one.

    ``cost`` is what it costs, infinite without one.  No plan of the kind that the planner searches costs less
    than ``bound``; ``optimal`` says that the plan is as good as that.  ``seconds`` is the wall time taken.
    """

    planner: str
    plan: Plan | None
    cost: float
    bound: float
    optimal: bool
    seconds: float

    def require(self) -> Plan:
        """The plan; ``CannotPlan`` if none was found in time."""
        if self.plan is None:
            raise CannotPlan(
                f"{self.planner}: no plan found in {self.seconds:.0f} s, and none is cheaper than "
                f"{self.bound:g}; give it more time or a larger budget"
            )
        return self.plan


def solution(
    planner: str,
    graph: OperatorGraph,
    budget: float,
    order: Iterable[int] | None,
    bound: float,
    optimal: bool,
    seconds: float,
) -> Solution:
    """From an order of the ``closed`` graph's operators, None if none was found."""
    bound = max(graph.cost, bound)
    if order is None:
        return Solution(planner, None, math.inf, bound, False, seconds)
    plan = plan_order(graph, [op for op in order if op < len(graph)])
    cost = check(graph, plan, budget).total
    return Solution(planner, plan, cost, cost if optimal else min(bound, cost), optimal, seconds)


def require_room(graph: OperatorGraph, budget: float, seconds: float, planner: str) -> None:
    """Refuse what no program need be written for."""
    if not seconds > 0 or math.isnan(budget):
        raise ValueError(f"{planner} needs a budget and some seconds, not {budget} and {seconds}")
    if not len(graph):
        raise CannotPlan(f"{graph.name}: there are no operators to plan")
    if graph.floor > budget:
        needs = f"every plan needs {graph.floor}"
        raise CannotPlan(f"{graph.name}: {planner} cannot plan {budget} bytes; {needs}")


def closed(graph: OperatorGraph) -> OperatorGraph:
    """The graph with one more operator, which reads the results: they can be run once more before the end."""
    if graph.results <= {len(graph) - 1}:
        return replace(graph, results=frozenset())
    end = Node("end", 0, 0, tuple(sorted(graph.results)))
    return replace(graph, nodes=(*graph.nodes, end), results=frozenset())


def whole_sizes(graph: OperatorGraph, budget: float, finest: float = math.inf) -> tuple[list[int], int]:
    """Sizes, rounded up if need be, and budget in units, of which the budget has ``finest`` at most."""
    sizes = [node.size for node in graph.nodes]
    capacity = math.floor(min(budget, sum(sizes)))
    unit = max(math.gcd(*sizes), math.ceil(capacity / finest), 1)
    return [-(-size // unit) for size in sizes], capacity // unit


def whole_costs(graph: OperatorGraph) -> tuple[list[int], float]:
    """Costs as whole numbers and the unit that they are multiples of; exact if they are whole already."""
    costs = [node.cost for node in graph.nodes]
    total = sum(costs) or 1.0
    if all(float(cost).is_integer() for cost in costs):
        unit = math.gcd(*map(int, costs)) or 1
        if total / unit <= _RESOLUTION:
            return [int(cost) // unit for cost in costs], float(unit)
    return [round(cost / total * _RESOLUTION) for cost in costs], total / _RESOLUTION
