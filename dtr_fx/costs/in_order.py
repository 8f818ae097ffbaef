"""A graph's operators timed in its order, each distinct one some times, within a number of bytes.

Alone and again and again an operator finds what it reads in the cache, and memory that has been touched.
Here it comes after those that make what it reads, on memory that is new.  Operators that have been timed
often enough are skipped: of twelve equal layers some run.  What a skipped one would have made is made up
where it is read, and what does not fit beside the rest is let go, and made up again.
"""

from __future__ import annotations

import contextlib
import logging
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch.fx import Node
from torch.fx.node import map_arg

from dtr_fx.costs.isolated import (
    KEPT_BYTES,
    SHORTEST,
    Maker,
    clock,
    generators_kept,
    median_seconds,
    on_real_tensors,
    outside_of_tracing,
    prepared,
)
from dtr_fx.costs.operators import bytes_made_up, bytes_to_run, is_custom, is_free, may_run
from dtr_fx.costs.workspaces import workspaces
from dtr_fx.passes import rng
from dtr_fx.passes.tensors import is_selection, is_view, tensors_of

log = logging.getLogger(__name__)

_CPU = torch.device("cpu")
# Passes over the graph, and one before them, in which code is made ready and memory is had from the system;
# runs of an operator, or fewer that take so many seconds, that are enough in all passes.
_PASSES, _ENOUGH, _FEW, _FEW_SECONDS = 3, 5, 2, 0.02


def timed(keys: Mapping[Node, str], device: torch.device, room: float) -> dict[str, float]:
    """Seconds by key, of nodes of one graph: functions on a CPU in its order, else each key's alone."""
    is_ordered = device.type == "cpu"
    calls = {node: key for node, key in keys.items() if is_ordered and node.op == "call_function"}
    with on_real_tensors(device):
        found = seconds_in_order(calls, room) if calls else {}
    with outside_of_tracing(device):
        for key, node in {key: node for node, key in keys.items() if node not in calls}.items():
            try:
                found[key] = median_seconds(prepared(node, room), device)
            except Exception as reason:
                log.debug("%s is estimated: %s", key, reason)
    if device.type == "cuda":
        torch.cuda.empty_cache()  # the device's memory is as it was
    return found


def seconds_in_order(keys: Mapping[Node, str], room: float) -> dict[str, float]:
    """The median of each key's runs; of these nodes of one graph those with the same key run alike.

    Operands, results and workspaces take no more than ``room`` bytes together; what needs more does not run.
    """
    run = _Run(keys, room)
    run.once()
    run.times.clear()
    for _ in range(_PASSES):
        run.once()
    return {key: max(statistics.median(times), SHORTEST) for key, times in run.times.items() if times}


def seconds_to_time(keys: Iterable[str], seconds: Mapping[str, float]) -> float:
    """What ``seconds_in_order`` takes, about, if a run of an operator takes so many seconds."""
    counts = Counter(keys)
    runs = {key: min(_ENOUGH, count) + min(_ENOUGH, _PASSES * count) for key, count in counts.items()}
    least = {key: min(_FEW, count) + _FEW for key, count in counts.items()}
    return sum(
        max(least[key] * seconds[key], min(number * seconds[key], 2 * _FEW_SECONDS))
        for key, number in runs.items()
    )


def _is_own_view(node: Node) -> bool:
    """True if the node only looks at something it reads in another way, by PyTorch's own code."""
    return is_selection(node) or (is_view(node) and is_free(node) and not is_custom(node))


class _Run:
    """Passes over a graph, each of which runs what has not been timed often enough."""

    def __init__(self, keys: Mapping[Node, str], room: float) -> None:
        graph = next(iter(keys)).graph
        self._nodes = [node for node in graph.nodes if node.op == "call_function"]
        numbers = enumerate(self._nodes)
        self._last_use = {used: number for number, node in numbers for used in node.all_input_nodes}
        self._dying: defaultdict[int, list[Node]] = defaultdict(list)
        for used, number in self._last_use.items():
            self._dying[number].append(used)
        self._room, self._workspace = room, workspaces(keys)
        self._draws = {node for node in keys if rng.is_random(node)}
        for node in self._draws:
            self._workspace[node] += KEPT_BYTES
        self._keys = {
            node: key
            for node, key in keys.items()
            if may_run(node) and bytes_to_run(node) + self._workspace[node] <= room
        }
        self._maker, self._clock = Maker(), clock()
        self._read_clock = statistics.median(-(self._clock() - self._clock()) for _ in range(21))
        self.times: defaultdict[str, list[float]] = defaultdict(list)

    def once(self) -> None:
        values = _Values(self._last_use)
        for number, node in enumerate(self._nodes):
            key = self._keys.get(node)
            if key is not None and not self._is_enough(key):
                draws = generators_kept(_CPU) if node in self._draws else contextlib.nullcontext()
                try:
                    with draws:
                        self.times[key].append(self._seconds(node, values, self._dying[number]))
                except Exception as reason:
                    log.debug("%s is estimated: %s", key, reason)
                    del self._keys[node]
            elif _is_own_view(node) and all(used in values.of for used in node.all_input_nodes):
                values.add(node, _call(node, _given(node.args, values), _given(node.kwargs, values)))
            for used in self._dying[number]:
                values.drop(used)

    def _is_enough(self, key: str) -> bool:
        times = self.times[key]
        return len(times) >= _ENOUGH or (len(times) >= _FEW and sum(times) >= _FEW_SECONDS)

    def _seconds(self, node: Node, values: _Values, dying: Iterable[Node]) -> float:
        """Run a node; with it goes what it reads last."""
        self._prepare(node, values)
        args, kwargs = _given(node.args, values), _given(node.kwargs, values)
        last = [values.drop(used) for used in dying]
        now = self._clock
        started = now()
        made = _call(node, args, kwargs)
        args = kwargs = None
        last.clear()
        ended = now()
        values.add(node, made)
        return ended - started - self._read_clock

    def _prepare(self, node: Node, values: _Values) -> None:
        """Make up what a node reads and is not there, and room for that and for what it makes."""
        read = node.all_input_nodes
        results = self._workspace[node] + bytes_made_up(node)
        missing = [used for used in read if used not in values.of]
        if values.nbytes + results + sum(map(bytes_made_up, missing)) > self._room:
            values.let_go(self._room - results - sum(map(bytes_made_up, missing)), read)
            missing = [used for used in read if used not in values.of]
        for used in missing:
            values.add(used, self._maker.value(used.meta.get("val")))


def _call(node: Node, args: Any, kwargs: Any) -> Any:
    return node.target(*args, **kwargs)  # type: ignore[operator]


def _given(arguments: Any, values: _Values) -> Any:
    return map_arg(arguments, values.of.__getitem__)


class _Values:
    """What is there of a graph's values, and the bytes of it."""

    def __init__(self, last_use: Mapping[Node, int]) -> None:
        self.of: dict[Node, Any] = {}
        self.nbytes = 0
        self._last_use = last_use
        self._sharing: Counter[int] = Counter()

    def add(self, node: Node, value: Any) -> None:
        self.of[node] = value
        for address, nbytes in _storages(value):
            self.nbytes += 0 if self._sharing[address] else nbytes
            self._sharing[address] += 1

    def drop(self, node: Node) -> Any:
        value = self.of.pop(node, None)
        for address, nbytes in _storages(value):
            self._sharing[address] -= 1
            self.nbytes -= 0 if self._sharing[address] else nbytes
        return value

    def let_go(self, most: float, read: Iterable[Node]) -> None:
        """Drop values until ``most`` bytes are left, those that are read last first; else all of them."""
        others = [node for node in self.of if node not in set(read)]
        others.sort(key=lambda node: self._last_use.get(node, len(self._last_use)))
        while others and self.nbytes > most:
            self.drop(others.pop())
        if self.nbytes > most:
            # A view is there with all that it is a part of; made up it is by itself.
            for node in list(self.of):
                self.drop(node)


def _storages(value: Any) -> list[tuple[int, int]]:
    storages = (tensor.untyped_storage() for tensor in tensors_of(value))
    return [(storage.data_ptr(), storage.nbytes()) for storage in storages]
