"""Seconds per operator, by running it: on a CPU in the order of its graph, else alone, in a warm cache."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import torch
from torch.fx import Graph, Node

from dtr_fx.costs.machine import free_memory
from dtr_fx.costs.operators import CannotRunAlone, is_custom, is_free, is_too_large, signature
from dtr_fx.costs.timings import Timings
from dtr_fx.errors import OptionError
from dtr_fx.passes.tensors import is_selection

log = logging.getLogger(__name__)

# Seconds that timing may take unasked: about a seventh of what PyTorch takes for the first step of a graph,
# which is so much and so much for a node; and how much longer operators take than by the roofline.
_FOR_GRAPH, _FOR_NODE, _LONGEST, _SLOWER = 0.075, 4e-4, 1.0, 3.0
# Seconds that a step takes beside its operators: Dynamo's guards, AOTAutograd and autograd in a call, for an
# input in each, and for a view.  Measured on a CPU of 3 GHz between the graphs of the zoo's steps.
_CALLING, _PER_INPUT, _PER_VIEW = 6e-4, 5e-6, 2.5e-6


@dataclass
class Tally:
    """How many distinct operators were timed, and in how many seconds; how many were known before."""

    timed: int = 0
    known: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.timed} operators timed in {self.seconds:.1f} s, {self.known} known"


class Profile:
    """A cost function that measures: the median time of a node's operator, in seconds.

    The operators of a graph are timed when the first of its nodes is asked for, and the times stay on disk,
    in the ``cache_folder`` of ``cache``.  On a CPU they are run in the order of their graph (``in_order``),
    else, as modules and methods, each distinct one alone.  Operands are made up, random generators stay as
    they were.  All that is made up and computed takes no more than ``room`` bytes at once, nor than half of
    what is free.  What is not run (collectives, operators with effects, what takes more;
    custom operators unless it ``runs_custom`` ones that declare no mutation; alone, writes in place and
    higher-order operators) costs its ``estimate`` in seconds, scaled to agree in total with what was measured
    in its graph.  ``OptionError`` if the device is no CPU or CUDA device here.
    """

    def __init__(
        self,
        device: torch.device,
        estimate: Callable[[Node], float],
        cache: str | bool | None = None,
        room: float = math.inf,
        *,
        runs_custom: bool = True,
    ) -> None:
        if device.type != "cpu" and not (device.type == "cuda" and torch.cuda.is_available()):
            raise OptionError(
                f"costs='profile' runs operators on the graph's device, and {device} is no CPU or CUDA "
                "device that is here: write 'roofline'"
            )
        self._device = device
        self._estimate = estimate
        self._timings = Timings(device, cache)
        self._room, self._runs_custom = room, runs_custom
        self._asked: set[str] = set()
        self._keys: dict[Node, str] = {}
        self._seconds: dict[Node, float | None] = {}
        self._described: dict[Node, str] = {}
        self._scales: dict[Graph, float] = {}
        self._learned: set[Graph] = set()
        self.tally = Tally()

    def __call__(self, node: Node) -> float:
        seconds = self._look_up(node)
        return self._scale(node.graph) * self._estimate(node) if seconds is None else seconds

    def measured(self, node: Node) -> float | None:
        """Seconds of the node's operator; None if it is a view, which is free, or cannot be run alone."""
        return self._look_up(node) or None

    def is_quick(self, graph: Graph) -> bool:
        """True if what is not known of a graph of functions on a CPU is timed in little time."""
        nodes = [node for node in graph.nodes if node.op != "output"]
        is_of_functions = all(node.op in ("placeholder", "get_attr", "call_function") for node in nodes)
        if self._device.type != "cpu" or not is_of_functions or any(map(is_too_large, nodes)):
            return False
        keys = self._keys_of(node for node in nodes if node.op == "call_function")
        unknown = {node: key for node, key in keys.items() if key not in self._timings.seconds}
        if not unknown:
            return True
        from dtr_fx.costs.in_order import seconds_to_time

        seconds = {key: _SLOWER * self._estimate(node) for node, key in unknown.items()}
        most = min(_LONGEST, _FOR_GRAPH + _FOR_NODE * len(nodes))
        return seconds_to_time(unknown.values(), seconds) <= most

    def step(self, graph: Graph, cost: float) -> float | None:
        """Seconds of an eager step of a joint graph whose operators take ``cost``; None by estimates only."""
        if not self.tally.timed + self.tally.known:
            return None
        views = sum(is_free(node) and not is_selection(node) for node in graph.nodes)
        inputs = len(graph.find_nodes(op="placeholder"))
        return cost + _CALLING + _PER_INPUT * inputs + _PER_VIEW * views

    def _look_up(self, node: Node) -> float | None:
        if node.graph not in self._learned:
            self._learned.add(node.graph)
            self._learn([used for used in node.graph.nodes if used.op.startswith("call")])
            log.info("%s, %s", self.tally, self._timings.file)
        if node not in self._seconds:
            # An input of which the plan keeps a copy.
            self._learn([node])
        return self._seconds[node]

    def _learn(self, nodes: Iterable[Node]) -> None:
        """Look the nodes up on disk, and time what is not there."""
        keys = self._keys_of(nodes)
        asked = set(keys.values()) - self._asked
        self._asked |= asked
        new = {node: key for node, key in keys.items() if key in asked - self._timings.seconds.keys()}
        self.tally.known += len(asked) - len(set(new.values()))
        if new:
            self._time(new)
        self._seconds.update((node, self._timings.seconds.get(key)) for node, key in keys.items())

    def _keys_of(self, nodes: Iterable[Node]) -> dict[Node, str]:
        """By what those nodes that are neither free nor to be estimated are known."""
        found = {}
        for node in nodes:
            if node not in self._seconds:
                self._seconds[node] = 0.0 if is_free(node) else None
                try:
                    if self._seconds[node] is None and (self._runs_custom or not is_custom(node)):
                        self._keys[node] = signature(node, self._described)
                except CannotRunAlone as reason:
                    log.debug("%s is estimated: %s", node.name, reason)
            if node in self._keys:
                found[node] = self._keys[node]
        return found

    def _time(self, keys: Mapping[Node, str]) -> None:
        # Only here and above: a graph whose times are on disk runs nothing.
        from dtr_fx.costs.in_order import timed

        started = time.perf_counter()
        free = free_memory(self._device)
        room = self._room if free is None else min(self._room, free / 2)
        found = timed(keys, self._device, room)
        self.tally.timed += len(found)
        self.tally.seconds += time.perf_counter() - started
        self._timings.add(found)

    def _scale(self, graph: Graph) -> float:
        """The factor with which the estimate agrees in total with what was measured."""
        if graph not in self._scales:
            calls = (node for node in graph.nodes if node.op.startswith("call"))
            timed = [(self._keys[node], node) for node in calls if self._seconds.get(node)]
            estimates = {key: self._estimate(node) for key, node in dict(timed).items()}
            estimated = sum(estimates[key] for key, _ in timed)
            measured = sum(self._timings.seconds[key] for key, _ in timed)
            self._scales[graph] = measured / estimated if estimated else 1.0
        return self._scales[graph]
