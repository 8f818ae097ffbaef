"""Binomial checkpointing: Griewank and Walther, "Algorithm 799: Revolve" (2000); Griewank's Treeverse (1992).

With s snapshots beside the input, the values of a chain are visited from the last to the first: a snapshot is
put at the place that minimizes the forward steps, the part behind it is visited with one snapshot less, then
the part before it with as many again.

On a graph that is no chain, every operator of the forward pass is a step of a linear order, and a snapshot is
all values that cross its place there.  Each operator of the backward pass says how far back the visits have
to be when it runs; what was visited is kept until its last use.  That is sound on every graph, and on a chain
it is Revolve.  With many skip connections snapshots are large, and nothing is optimal any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from math import comb

from dtr_fx.lab.planners.graph import OperatorGraph
from dtr_fx.lab.planners.plan import CannotPlan, check, forward_and_backward, plan_order, prune
from dtr_fx.runtime import Plan


def plan_revolve(graph: OperatorGraph, budget: float) -> Plan:
    """The plan with the most snapshots that fits the budget.

    On chains the peak grows with the number of snapshots; on other graphs it need not.  So numbers are tried
    from the largest down, each about four fifths of the one before, and those in between by bisection.

    Raises
    ------
    CannotPlan
        The graph has no backward pass, or no number of snapshots that was tried fits.
    """
    forward, _ = forward_and_backward(graph, "Revolve")
    snapshots = too_many = max(len(forward) - 1, 0)
    while (best := _fits(graph, snapshots, budget)) is None:
        if snapshots == 0:
            raise CannotPlan(f"{graph.name}: Revolve fits {budget} bytes with no number of snapshots")
        too_many = snapshots
        snapshots = snapshots * 4 // 5
    while snapshots + 1 < too_many:
        middle = (snapshots + too_many) // 2
        plan = _fits(graph, middle, budget)
        if plan is None:
            too_many = middle
        else:
            snapshots, best = middle, plan
    return best


def _fits(graph: OperatorGraph, snapshots: int, budget: float) -> Plan | None:
    plan = plan_order(graph, prune(graph, revolve_order(graph, snapshots)))
    return plan if check(graph, plan).peak <= budget else None


def revolve_order(graph: OperatorGraph, snapshots: int) -> list[int]:
    """The operators to compute, in order, with a number of snapshots beside the input."""
    forward, backward = forward_and_backward(graph, "Revolve")
    visits = _visits(len(forward), snapshots)
    order = list(next(visits, ()))
    visited = len(forward) - 1  # the first operator of the forward pass whose value is there to stay
    for number in backward:
        wanted = min((source for source in graph.nodes[number].inputs if source in forward), default=visited)
        while visited > wanted:
            order += next(visits)
            visited -= 1
        order.append(number)
    return order


def _reach(runs: int, snapshots: int) -> int:
    """The longest chain that is visited with no operator running more often than this."""
    return comb(snapshots + 1 + runs, snapshots + 1) - 1 if runs >= 0 else 0


def _runs(steps: int, snapshots: int) -> int:
    runs = 0
    while _reach(runs, snapshots) < steps:
        runs += 1
    return runs


def _visits(steps: int, snapshots: int) -> Iterator[list[int]]:
    """The operators to compute so that the value of step N - 1, N - 2, … 0 is there, one list for each."""
    # The next part comes last: steps low … high - 1, step low - 1 being there; None is a snapshot.
    parts: list[tuple[int, int, int] | None] = [(0, steps, snapshots)] if steps else []
    computed: list[int] = []
    while parts:
        part = parts.pop()
        if part is None:
            yield []
            continue
        low, high, left = part
        if left == 0 or high - low == 1:
            yield [*computed, *range(low, high)]
            computed = []
            after: list[tuple[int, int, int] | None] = [(low, high - 1, left)]
        else:
            middle = low + _snapshot(high - low, left)
            computed += range(low, middle)
            after = [(low, middle - 1, left), None, (middle, high, left - 1)]
        parts += [part for part in after if part is None or part[0] < part[1]]


@cache
def _snapshot(steps: int, snapshots: int) -> int:
    """How many of a part's steps to advance to its first snapshot; at least one is left behind it.

    Neither the part behind the snapshot nor the one before it may need more runs than the whole.
    """
    runs = _runs(steps, snapshots)
    behind = min(_reach(runs, snapshots - 1), steps - 1 - _reach(runs - 2, snapshots))
    return min(max(steps - behind, 1), steps - 1)
