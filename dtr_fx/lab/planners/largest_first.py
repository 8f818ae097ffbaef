"""The largest value first: the rule of GreedyRemat (Kumar et al. 2019) as a static planner.

Kirisame et al. (section 4.1) sum GreedyRemat, which XLA uses, up as "evict what minimizes 1 / m";
``plan_dtr(graph, budget, "size")`` is that rule online.  A static planner knows the whole program, and can
edit it.  Where the program is over its budget first, the largest value that is waiting for a later use is
freed, and computed once more right before that use.  The edit stands if it takes bytes off the excess over
the budget, summed over all steps.  What the recomputation reads then lives longer, and may be next.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dtr_fx.lab.planners.graph import OperatorGraph
from dtr_fx.lab.planners.plan import CannotPlan, Plan, plan_order


def plan_largest_first(graph: OperatorGraph, budget: float) -> Plan:
    """Recompute the largest values that are waiting, one at a time, until the program fits.

    Raises
    ------
    CannotPlan
        No value is left whose recomputation would bring the program closer to the budget.
    """
    order = list(range(len(graph)))
    used = _used(graph, order)
    while any(bytes_ > budget for bytes_ in used):
        position = next(position for position, bytes_ in enumerate(used) if bytes_ > budget)
        for value, use in _waiting(graph, order, position):
            candidate = [*order[:use], value, *order[use:]]
            after = _used(graph, candidate)
            if _excess(after, budget) < _excess(used, budget):
                order, used = candidate, after
                break
        else:
            name = graph.nodes[order[position]].name
            raise CannotPlan(
                f"{graph.name}: largest first finds nothing to recompute where {name} needs {used[position]} "
                f"bytes, over {budget}"
            )
    return plan_order(graph, order)


def _excess(used: Sequence[int], budget: float) -> float:
    return sum(bytes_ - budget for bytes_ in used if bytes_ > budget)


def _used(graph: OperatorGraph, order: Sequence[int]) -> list[int]:
    """The bytes live at each step."""
    change = [0] * (len(order) + 1)
    for op, start, uses in _lifetimes(graph, order):
        change[start] += graph.nodes[op].size
        change[uses[-1] + 1] -= graph.nodes[op].size
    used = []
    live = 0
    for step in change[:-1]:
        live += step
        used.append(live)
    return used


def _waiting(graph: OperatorGraph, order: Sequence[int], position: int) -> Iterator[tuple[int, int]]:
    """Values that wait at this step for a later use, largest first, with the step of that use."""
    found = []
    for op, start, uses in _lifetimes(graph, order):
        if start < position <= uses[-1] and position not in uses:
            following = next(use for use in uses if use > position)
            found.append((-graph.nodes[op].size, -following, op, following))
    # Of equals the one that is used last: it stays away longest.
    return ((op, use) for _, _, op, use in sorted(found))


def _lifetimes(graph: OperatorGraph, order: Sequence[int]) -> list[tuple[int, int, list[int]]]:
    """Of each computation the operator, its step, and the steps that use its value, the last one last."""
    current: dict[int, int] = {}
    lives: list[tuple[int, int, list[int]]] = []
    for position, op in enumerate(order):
        for source in dict.fromkeys(graph.nodes[op].inputs):
            lives[current[source]][2].append(position)
        current[op] = position
        lives.append((op, position, []))
    for op in graph.results:
        lives[current[op]][2].append(len(order) - 1)
    return [(op, start, uses or [start]) for op, start, uses in lives]
