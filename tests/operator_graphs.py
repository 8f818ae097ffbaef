"""Small random operator graphs, and what their cheapest plan costs, found by trying all of them."""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

from dtr_fx.lab.planners import Node, OperatorGraph
from dtr_fx.tiers.tier import Bandwidth


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


def first_end(graph: OperatorGraph, budget: float, link: Bandwidth, host: float = math.inf) -> float:
    """When the best plan with transfers ends, found by trying every action everywhere.

    A shortest path over what is on the device and on the host, and what is left of the copies under way.
    Infinite where no plan fits.
    """
    count = len(graph)
    results = sum(1 << number for number in graph.results)
    numbers = itertools.count()
    # clock, done, on the device, on the host, copies out under way and back (when they end), queues free at
    queue: list[Any] = [(0.0, next(numbers), 0, 0, 0, (), (), 0.0, 0.0)]
    seen = set()
    while queue:
        clock, _, done, here, away, outs, backs, out, back = heapq.heappop(queue)
        outs = tuple(pair for pair in outs if pair[1] > clock)
        out, back = max(out, clock), max(back, clock)
        if done == count and here & results == results:
            late = max([clock, *(end for value, end in backs if results >> value & 1)])
            if late == clock:
                return clock
            heapq.heappush(queue, (late, next(numbers), done, here, away, outs, (), out, back))
        key = (
            done,
            here,
            away,
            tuple(sorted((value, round(end - clock, 9)) for value, end in outs)),
            tuple(sorted((value, round(max(end - clock, 0), 9)) for value, end in backs)),
            round(out - clock, 9),
            round(back - clock, 9),
        )
        if key in seen:
            continue
        seen.add(key)
        used = sum(graph.nodes[number].size for number in range(count) if here >> number & 1)
        ends, arrivals = dict(outs), dict(backs)
        for value in range(min(done + 1, count)):
            node, bit = graph.nodes[value], 1 << value
            if here & bit:
                if arrivals.get(value, 0.0) <= clock:
                    later = max(clock, ends.get(value, 0.0))
                    left = tuple(pair for pair in backs if pair[0] != value)
                    heapq.heappush(
                        queue, (later, next(numbers), done, here & ~bit, away, outs, left, out, back)
                    )
                if not away & bit and _bytes(graph, away | bit) <= host:
                    end = out + link.seconds_out(node.size)
                    copies = (*outs, (value, end))
                    heapq.heappush(
                        queue, (clock, next(numbers), done, here, away | bit, copies, backs, end, back)
                    )
                continue
            if used + node.size > budget:
                continue
            if away & bit and value < done:
                end = back + link.seconds_back(node.size)
                heapq.heappush(
                    queue,
                    (clock, next(numbers), done, here | bit, away, outs, (*backs, (value, end)), out, end),
                )
            if all(here >> source & 1 for source in node.inputs):
                start = max([clock, *(arrivals.get(source, 0.0) for source in node.inputs)])
                end = start + node.cost
                state = (done + (value == done), here | bit, away, outs, backs, out, back)
                heapq.heappush(queue, (end, next(numbers), *state))
    return math.inf


def _bytes(graph: OperatorGraph, values: int) -> int:
    return sum(node.size for number, node in enumerate(graph.nodes) if values >> number & 1)
