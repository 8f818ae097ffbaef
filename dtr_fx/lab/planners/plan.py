"""Plans, the verifier that judges every planner alike, DTR as a planner, and what exact planners share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from dtr_fx.errors import DTRError
from dtr_fx.lab.planners.graph import Node, OperatorGraph
from dtr_fx.runtime import Heuristic, Plan, RunFailed, Runtime, Step
from dtr_fx.runtime.driver import drive
from dtr_fx.runtime.heuristics import Score
from dtr_fx.runtime.steps import BANISH, COMPUTE, DEAD, DROP, PLANNED, RECOMPUTE
from dtr_fx.search import Lifetimes, Operators

# Costs that are not whole numbers are rounded to this share of what the program costs.
_RESOLUTION = 10**7


class CannotPlan(DTRError, ValueError):
    """The planner cannot plan this; the message says why."""


class PlanError(DTRError, ValueError):
    """A plan that does not compute its graph, or not within the budget."""


@dataclass(frozen=True)
class Cost:
    """Of a plan: its total cost, its peak in bytes, and how often each operator runs."""

    total: float
    peak: int
    computes: tuple[int, ...]


def check(graph: OperatorGraph, plan: Plan, budget: float = math.inf) -> Cost:
    """Verify a plan step by step, and say what it costs.

    The peak is the most bytes live while an operator runs, its inputs and its result among them.  Raises
    ``PlanError`` if an operator's input is not live, or its result is already; a value is freed that is not
    live; an operator never runs; a result is missing at the end; the peak is over the budget.
    """
    live: set[int] = set()
    used = peak = 0
    computes = [0] * len(graph)
    for number, step in enumerate(plan.steps):
        op = step.op if step.kind in (COMPUTE, RECOMPUTE) else step.storage
        if not 0 <= op < len(graph):
            raise PlanError(f"step {number}: {step.kind} {op} names none of the {len(graph)} operators")
        node = graph.nodes[op]
        what = f"step {number}: {node.name} ({op})"
        if op == step.storage:
            if op not in live:
                raise PlanError(f"{what} is freed and is not live")
            live.remove(op)
            used -= node.size
            continue
        missing = [source for source in node.inputs if source not in live]
        if missing or op in live:
            reason = f"without its inputs {missing}" if missing else "and is already live"
            raise PlanError(f"{what} is computed {reason}")
        live.add(op)
        computes[op] += 1
        used += node.size
        peak = max(peak, used)
        if used > budget:
            raise PlanError(f"{what} brings {used} bytes, over {budget}")
    if 0 in computes:
        raise PlanError(f"{graph.nodes[computes.index(0)].name} ({computes.index(0)}) is never computed")
    if not graph.results <= live:
        raise PlanError(f"the results {sorted(graph.results - live)} are not live at the end")
    return Cost(sum(node.cost * runs for node, runs in zip(graph.nodes, computes)), peak, tuple(computes))


def plan_order(graph: OperatorGraph, order: Sequence[int]) -> Plan:
    """The plan that computes operators in this order and frees each value as early as that allows.

    Operators may repeat; each must come after its inputs.
    """
    operators = Operators.of(graph.program)
    lives = Lifetimes(operators, enumerate(order), len(order))
    steps: list[Step] = []
    done: set[int] = set()
    live = peak = 0
    for slot, op in enumerate(order):
        live += graph.nodes[op].size
        peak = max(peak, live)
        steps.append(Step(RECOMPUTE if op in done else COMPUTE, op, -1, live))
        done.add(op)
        for value in (*operators.reads[op], op):  # of each operator one storage, under its number
            again = lives.dies(value, slot)
            if again is not None:
                live -= graph.nodes[value].size
                steps.append(Step(DROP if again else BANISH, op, value, live, PLANNED if again else DEAD))
    cost = sum(graph.nodes[op].cost for op in order) - sum(graph.nodes[op].cost for op in done)
    return Plan(tuple(steps), math.inf, peak, cost, "an order")


def prune(graph: OperatorGraph, order: Sequence[int]) -> list[int]:
    """The order without recomputations whose value nothing reads."""
    backwards = list(enumerate(order))[::-1]
    first = {op: position for position, op in backwards}
    needed = set(graph.results)
    kept = []
    for position, op in backwards:
        if op in needed or first[op] == position:
            kept.append(op)
            needed.discard(op)
            needed.update(graph.nodes[op].inputs)
    return kept[::-1]


def cheapest(graph: OperatorGraph, orders: Iterable[Sequence[int]], budget: float, what: str) -> Plan:
    """Of the orders that fit the budget the cheapest, of equals the first; ``CannotPlan`` if none fits."""
    plans = [plan_order(graph, prune(graph, order)) for order in orders]
    costs = [check(graph, plan) for plan in plans]
    fitting = [number for number, cost in enumerate(costs) if cost.peak <= budget]
    if not fitting:
        smallest = min(cost.peak for cost in costs)
        raise CannotPlan(
            f"{graph.name}: no plan of {what} fits {budget} bytes; the smallest found needs {smallest}"
        )
    return plans[min(fitting, key=lambda number: costs[number].total)]


def forward_and_backward(graph: OperatorGraph, what: str) -> tuple[range, range]:
    """The operators of the two passes; ``CannotPlan`` if the graph has no backward pass."""
    if graph.backward is None or graph.backward == len(graph):
        raise CannotPlan(f"{graph.name}: {what} plans training steps, and this graph has no backward pass")
    return range(graph.backward), range(graph.backward, len(graph))


def plan_dtr(
    graph: OperatorGraph,
    budget: float,
    heuristic: str | Heuristic | Score = "dtr-eq",
    *,
    max_recompute: float = 100.0,
) -> Plan:
    """Drive the runtime through the program; a value is released after its last use.

    The results are rematerialized at the end (C.6).  Raises ``CannotPlan`` if the runtime finds nothing left
    to evict, or recomputes more than ``max_recompute`` times the program.
    """
    runtime = Runtime(budget, heuristic, max_recompute=max_recompute * graph.cost)
    try:
        drive(runtime, graph.program)
    except RunFailed as error:
        raise CannotPlan(f"{graph.name}: DTR under {runtime.heuristic.name}: {error}") from None
    return Plan.of(graph.program, runtime, runtime.heuristic.name)


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
    """From an order of the ``solvable`` graph's operators, None if none was found."""
    bound = max(graph.cost, bound)
    if order is None:
        return Solution(planner, None, math.inf, bound, False, seconds)
    plan = plan_order(graph, [op for op in order if op < len(graph)])
    cost = check(graph, plan, budget).total
    return Solution(planner, plan, cost, cost if optimal else min(bound, cost), optimal, seconds)


def solvable(graph: OperatorGraph, budget: float, seconds: float, planner: str) -> OperatorGraph:
    """The graph, closed by an operator that reads the results: they can be run once more before the end.

    Refuses what no program need be written for.
    """
    if not seconds > 0 or math.isnan(budget):
        raise ValueError(f"{planner} needs a budget and some seconds, not {budget} and {seconds}")
    if not len(graph):
        raise CannotPlan(f"{graph.name}: there are no operators to plan")
    if graph.floor > budget:
        needs = f"every plan needs {graph.floor}"
        raise CannotPlan(f"{graph.name}: {planner} cannot plan {budget} bytes; {needs}")
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
