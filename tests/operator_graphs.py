"""Small random operator graphs, and what their cheapest plan costs, found by trying all of them."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator

from hypothesis import strategies as st

from dtr_fx.lab.planners import Node, OperatorGraph


@st.composite
def graphs(draw: st.DrawFn) -> OperatorGraph:
    """Five to eight operators; gradients read a forward operator or two and the gradient before them."""
    forward = draw(st.integers(3, 4))
    count = draw(st.integers(2 * forward - 1, 2 * forward))
    nodes: list[Node] = []
    for number in range(count):
        cost, size = draw(st.integers(1, 4)), draw(st.integers(0, 4) | st.just(2))
        mirror = 2 * forward - 1 - number
        if number < forward:
            reads = draw(st.sets(st.integers(0, number - 1), min_size=1, max_size=2)) if number else set()
        else:
            reads = {max(mirror, 0), number - 1} | draw(st.sets(st.integers(0, number - 1), max_size=1))
        nodes.append(Node(f"op{number}", cost, size, tuple(sorted(reads))))
    results = draw(st.sets(st.integers(0, count - 1), max_size=2))
    return OperatorGraph("random", tuple(nodes), forward, frozenset(results))


def cheapest(graph: OperatorGraph, budget: float, *, staged: bool = False) -> float:
    """The cost of the cheapest plan that runs the operators in program order for the first time.

    A shortest path over which results are live, how many operators ran, and, for plans in stages as
    Checkmate's, which operator ran last in the stage.  Infinite where no plan fits.
    """
    count = len(graph)
    results = sum(1 << number for number in graph.results)
    queue = [(0.0, 0, 0, -1)]
    seen = set()
    while queue:
        cost, done, live, last = heapq.heappop(queue)
        if done == count and live & results == results:
            return cost
        if (done, live, last) not in seen:
            seen.add((done, live, last))
            for more, *state in _moves(graph, budget, done, live, last):
                heapq.heappush(queue, (cost + more, state[0], state[1], state[2] if staged else -1))
    return math.inf


def _moves(
    graph: OperatorGraph, budget: float, done: int, live: int, last: int
) -> Iterator[tuple[float, int, int, int]]:
    used = sum(node.size for number, node in enumerate(graph.nodes) if live >> number & 1)
    for number, node in enumerate(graph.nodes[: done + 1]):
        if live >> number & 1:
            yield 0, done, live & ~(1 << number), last
        elif number > last and used + node.size <= budget and all(live >> n & 1 for n in node.inputs):
            first = number == done
            yield node.cost, done + first, live | 1 << number, -1 if first else number
