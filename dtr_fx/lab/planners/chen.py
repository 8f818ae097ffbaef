"""Checkpointing by segments: Chen et al., "Training deep nets with sublinear memory cost" (2016).

The forward pass is cut into segments of consecutive operators.  A value that a later segment of the forward
pass reads is a checkpoint and is kept; the others are freed when their segment is done, and the whole segment
is recomputed when the backward pass first asks for one of them.  The last segment is not freed.

The paper knows chains, where each segment ends in one checkpoint.  Here any operator may end a segment, and
every value that crosses a boundary is a checkpoint: the "linearized" variant of Checkmate's evaluation (Jain
et al. 2020, section 6), sound on every graph.  Skip connections only make for more checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise

from dtr_fx.lab.planners.graph import OperatorGraph
from dtr_fx.lab.planners.plan import cheapest, forward_and_backward
from dtr_fx.runtime import Plan

# Chen's greedy search tries this many thresholds at most.
THRESHOLDS = 64


def plan_chen_sqrt(graph: OperatorGraph, budget: float = math.inf) -> Plan:
    """Segments of ⌈√N⌉ operators, N in the forward pass (section 3.1); the budget changes nothing.

    Raises
    ------
    CannotPlan
        The graph has no backward pass, or the plan does not fit the budget.
    """
    forward, _ = forward_and_backward(graph, "Chen √N")
    length = math.isqrt(max(len(forward) - 1, 0)) + 1
    boundaries = tuple(range(length, len(forward), length))
    return cheapest(graph, [segment_order(graph, boundaries)], budget, "Chen √N")


def plan_chen_greedy(graph: OperatorGraph, budget: float) -> Plan:
    """Segments that are closed when their bytes pass a threshold b (Algorithm 3), the best b for the budget.

    Raises
    ------
    CannotPlan
        The graph has no backward pass, or the budget is too small for every threshold that was tried.
    """
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
    """The operators to compute, in order, when the segments after the first start at these operators."""
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
