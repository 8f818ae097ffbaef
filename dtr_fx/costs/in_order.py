"""A graph's operators timed in their order, on made-up inputs: each meets caches and memory as in a step.

Alone and again and again an operator finds what it reads in the cache, and memory that has been touched.  In
a step what the forward pass left has gone from the cache, and memory comes anew from the system.
"""

from __future__ import annotations

import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from dtr_fx.costs.isolated import CannotRunAlone, Maker, may_run, outside_of_tracing
from dtr_fx.costs.measure import free_memory
from dtr_fx.passes.modes import largest_to_run
from dtr_fx.passes.tensors import held_by

_CPU = torch.device("cpu")
# Seconds that passes take together, and how many there are at most, after a first one.
_TIME_CAP, _MOST_PASSES = 0.5, 7
# Bytes that a quick graph makes, and seconds by the roofline, which is a half to a third of what they are.
_QUICK_BYTES, _QUICK_SECONDS = 2**31, 0.2


def seconds_in_order(graph: Graph) -> dict[Node, float]:
    """Of each operator that runs here, the median of some passes.

    ``CannotRunAlone`` or ``MemoryError`` where the graph is not of functions on a CPU, or needs too much.
    """
    with outside_of_tracing(_CPU):
        order = _Order(graph)
        started = time.perf_counter()
        order.run()
        took = time.perf_counter() - started
        passes = min(_MOST_PASSES, int(_TIME_CAP / took))
        if passes:
            order.times.clear()
        for _ in range(passes):
            order.run()
    return {node: statistics.median(times) for node, times in order.times.items()}


def is_quick(graph: Graph, estimate: Callable[[Node], float]) -> bool:
    """True if all of a graph's operators can be timed in their order within about a second."""
    calls = [node for node in graph.nodes if node.op == "call_function"]
    try:
        nbytes = _bytes_to_run(graph)
    except CannotRunAlone:
        return False
    return nbytes <= _QUICK_BYTES and sum(map(estimate, calls)) <= _QUICK_SECONDS


def _bytes_to_run(graph: Graph) -> int:
    """Bytes of all that a graph reads and makes; ``CannotRunAlone`` where it is not one to be run."""
    nodes = [node for node in graph.nodes if node.op != "output"]
    held = [held for node in nodes for held in held_by(node)]
    if any(node.op not in ("placeholder", "call_function") for node in nodes):
        raise CannotRunAlone("the graph calls modules or methods, or holds tensors of its own")
    if any(each.device != "cpu" for each in held):
        raise CannotRunAlone("the graph is not of a CPU")
    if not nodes or any(largest_to_run(node) < math.inf for node in nodes[:1]):
        raise CannotRunAlone("the model has no memory")
    return sum({each.storage: each.nbytes for each in held}.values())


class _Order:
    """A graph's calls, with what dies after each, on inputs that are made up once."""

    def __init__(self, graph: Graph) -> None:
        needed, free = _bytes_to_run(graph), free_memory(_CPU)
        if free is not None and needed > free / 2:
            raise MemoryError(f"{needed} bytes are too many for what is free")
        self._nodes = [node for node in graph.nodes if node.op == "call_function"]
        given = graph.find_nodes(op="placeholder")
        self._maker = Maker()
        self._given = {node: self._maker.value(node.meta.get("val")) for node in given}
        last = {used: node for node in self._nodes for used in node.all_input_nodes}
        self._dies: defaultdict[Node, list[Node]] = defaultdict(list)
        for used, node in last.items():
            if used not in self._given:
                self._dies[node].append(used)
        self.times: defaultdict[Node, list[float]] = defaultdict(list)

    def run(self) -> None:
        values: dict[Node, Any] = dict(self._given)
        for node in self._nodes:
            if not may_run(node):
                values[node] = self._maker.value(node.meta.get("val"))
                continue
            args, kwargs = map_arg((node.args, node.kwargs), values.__getitem__)
            dying: list[Any] = []
            clock: Callable[[], float] = time.perf_counter
            started = clock()
            made = node.target(*args, **kwargs)
            ended = clock()
            values[node] = made
            del args, kwargs, made
            dying += (values.pop(used) for used in self._dies[node])
            freed = clock()
            dying.clear()
            self.times[node].append(ended - started + clock() - freed)
