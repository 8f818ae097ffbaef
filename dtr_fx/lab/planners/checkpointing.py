"""Checkpointing by segments (Chen et al., "Training deep nets with sublinear memory cost", 2016), and
binomial (Griewank and Walther, "Algorithm 799: Revolve", 2000).  The papers know chains; here all values that
cross a boundary are checkpoints, as in Checkmate's "linearized" variants (Jain et al. 2020, section 6): sound
on every graph, if with more of them where connections skip.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise

from dtr_fx.lab.planners.graph import OperatorGraph
from dtr_fx.lab.planners.plan import CannotPlan, cheapest, check, forward_and_backward, plan_order, prune
from dtr_fx.runtime import Plan

# Chen's greedy search tries this many thresholds at most.
THRESHOLDS = 64


def plan_chen_sqrt(graph: OperatorGraph, budget: float = math.inf) -> Plan:
    """Segments of ⌈√N⌉ operators, N in the forward pass (Chen, section 3.1); the budget changes nothing."""
    forward, _ = forward_and_backward(graph, "Chen √N")
    length = math.isqrt(max(len(forward) - 1, 0)) + 1
    boundaries = tuple(range(length, len(forward), length))
    return cheapest(graph, [segment_order(graph, boundaries)], budget, "Chen √N")


def plan_chen_greedy(graph: OperatorGraph, budget: float) -> Plan:
    """Segments that end when their bytes pass a threshold b (Algorithm 3), the best b for the budget."""
    forward_and_backward(graph, "Chen greedy")
    cuts = dict.fromkeys(boundaries(graph, threshold) for threshold in _thresholds(graph))
    return cheapest(graph, (segment_order(graph, cut) for cut in cuts), budget, "Chen greedy")


def boundaries(graph: OperatorGraph, threshold: float) -> tuple[int, ...]:
    """Where the segments of the forward pass after the first start, for Chen's threshold b in bytes."""
    held = 0
    starts = []
    for number in graph.forward[:-1]:
        held += graph.nodes[number].size
        if held > threshold:
            starts.append(number + 1)
            held = 0
    return tuple(starts)


def _thresholds(graph: OperatorGraph) -> Iterator[float]:
    """From no threshold at all to one that only the largest value passes, evenly in ratio."""
    sizes = [graph.nodes[number].size for number in graph.forward]
    low, high = max(min(sizes, default=1), 1), max(sum(sizes), 1)
    for step in range(THRESHOLDS):
        yield high * (low / high) ** (step / (THRESHOLDS - 1))
    yield 0


def segment_order(graph: OperatorGraph, starts: Sequence[int]) -> list[int]:
    """The operators to compute, in order, when the segments after the first start at these operators.

    What a later segment of the forward pass reads is kept; the rest is freed when its segment is done, and
    the whole segment is recomputed when the backward pass first asks for it.  The last segment is not freed.
    """
    forward, backward = forward_and_backward(graph, "checkpointing")
    bounds = [0, *starts, len(forward)]
    segment = [number for number, (low, high) in enumerate(pairwise(bounds)) for _ in range(low, high)]
    checkpoints = {
        number
        for number in forward
        if any(user in forward and segment[user] != segment[number] for user in graph.users[number])
    }
    order = list(forward)
    live = {number for number in forward if number in checkpoints or segment[number] == len(starts)}
    for number in backward:
        for source in sorted(graph.nodes[number].inputs):
            if source in forward and source not in live:
                again = [op for op in range(*bounds[segment[source] :][:2]) if op not in live]
                order += again
                live.update(again)
        order.append(number)
    return order


def plan_revolve(graph: OperatorGraph, budget: float) -> Plan:
    """The plan with the most snapshots that fits the budget.

    On graphs that are no chains the peak need not grow with the snapshots.  So numbers are tried from the
    largest down, each about four fifths of the one before, and those in between by bisection.
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
    """The operators to compute, in order, with a number of snapshots beside the input.

    Values are visited from the last to the first: a snapshot is put at the place that minimizes the forward
    steps, the part behind it is visited with one snapshot less, then the part before it.  On graphs that are
    no chains a snapshot is all values that cross its place.
    """
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
    """How far to advance to a part's first snapshot; neither side of it may need more runs than the whole."""
    runs = 0
    while _reach(runs, snapshots) < steps:
        runs += 1
    behind = min(_reach(runs, snapshots - 1), steps - 1 - _reach(runs - 2, snapshots))
    return min(max(steps - behind, 1), steps - 1)


def _reach(runs: int, snapshots: int) -> int:
    """The longest chain that is visited with no operator running more often than this."""
    return math.comb(snapshots + 1 + runs, snapshots + 1) - 1 if runs >= 0 else 0
