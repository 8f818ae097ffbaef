"""Seconds per operator, by running it: on a CPU in the order of its graph, else alone, in a warm cache."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import math
import platform
import re
import statistics
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.fx import Graph, Node

from dtr_fx.costs.files import cache_folder, replace_file
from dtr_fx.costs.in_order import SHORTEST, clock, is_free, seconds_in_order, seconds_to_time
from dtr_fx.costs.isolated import (
    CannotRunAlone,
    is_custom,
    is_too_large,
    on_real_tensors,
    outside_of_tracing,
    prepared,
    signature,
)
from dtr_fx.costs.machine import free_memory
from dtr_fx.errors import OptionError
from dtr_fx.passes.tensors import is_selection

log = logging.getLogger(__name__)

_WARM_UPS = 3
_MOST_REPEATS, _FEWEST_REPEATS = 50, 3
_TIME_CAP = 0.02  # seconds of repeats of one operator, unless so many are fewer than the fewest
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
        started = time.perf_counter()
        free = free_memory(self._device)
        room = self._room if free is None else min(self._room, free / 2)
        is_ordered = self._device.type == "cpu"
        calls = {node: key for node, key in keys.items() if is_ordered and node.op == "call_function"}
        with on_real_tensors(self._device):
            found = seconds_in_order(calls, room) if calls else {}
        with outside_of_tracing(self._device):
            for key, node in {key: node for node, key in keys.items() if node not in calls}.items():
                try:
                    found[key] = _median_seconds(prepared(node, room), self._device)
                except Exception as reason:
                    log.debug("%s is estimated: %s", key, reason)
        if self._device.type == "cuda":
            torch.cuda.empty_cache()  # the device's memory is as it was
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


def _median_seconds(run: Callable[[], Any], device: torch.device) -> float:
    repeats = _MOST_REPEATS
    for _ in range(_WARM_UPS):
        started = time.perf_counter()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize()
        took = time.perf_counter() - started
        repeats = max(_FEWEST_REPEATS, min(_MOST_REPEATS, int(_TIME_CAP / max(took, SHORTEST))))
        if took > _TIME_CAP:
            break
    times = _cuda_times if device.type == "cuda" else _cpu_times
    return max(statistics.median(times(run, repeats)), SHORTEST)


def _cpu_times(run: Callable[[], Any], repeats: int) -> list[float]:
    times = []
    now = clock()
    for _ in range(repeats):
        started = now()
        run()
        times.append(now() - started)
    return times


def _cuda_times(run: Callable[[], Any], repeats: int) -> list[float]:
    """Between two events around each run, with no wait between them: the longer of launch and kernel."""
    event = functools.partial(torch.cuda.Event, enable_timing=True)
    events = [(event(), event()) for _ in range(repeats)]
    for before, after in events:
        before.record()
        run()
        after.record()
    torch.cuda.synchronize()
    return [before.elapsed_time(after) * 1e-3 for before, after in events]


# --- times on disk -----------------------------------------------------------------------------------------


class Timings:
    """Seconds by operator, in one JSON file for each device, torch version and setting that counts.

    It lies in the ``cache_folder``.  A file that is damaged or cannot be written is ignored with a warning.
    Of processes that write at once the last replaces the whole file.
    """

    def __init__(self, device: torch.device, cache: str | bool | None = None) -> None:
        self._settings = _settings(device)
        words = [str(word) for pair in self._settings.items() for word in pair][1:]
        name = re.sub(r"[^\w.+]+", "-", "-".join(words))
        folder = cache_folder(cache)
        self.file = None if folder is None else folder / f"{name}.json"
        self.seconds = {} if self.file is None else self._read_if_sound(self.file)

    def add(self, found: Mapping[str, float]) -> None:
        """Write down what was found; what another process found first stays."""
        if not found:
            return
        self.seconds.update(found)
        if self.file is None:
            return
        with contextlib.suppress(OSError, ValueError):
            self.seconds.update(self._read(self.file))
        content = json.dumps({**self._settings, "seconds": self.seconds}, indent=0)
        try:
            replace_file(self.file, content.encode())
        except OSError as error:
            warnings.warn(
                f"the times of operators cannot be kept in {self.file}: {error.strerror}; "
                "set DTR_CACHE to a folder that can be written",
                stacklevel=2,
            )

    def _read_if_sound(self, file: Path) -> dict[str, float]:
        try:
            return self._read(file)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except (OSError, ValueError) as error:
            warnings.warn(f"{file} is ignored, operators are timed anew: {error}", stacklevel=2)
            return {}

    def _read(self, file: Path) -> dict[str, float]:
        content = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(content, dict) or not isinstance(content.get("seconds"), dict):
            raise ValueError("it holds no times of operators")
        seconds: dict[str, float] = content["seconds"]
        for value in seconds.values():
            if not (isinstance(value, float) and 0 < value < math.inf):
                raise ValueError(f"{value!r} is no time in seconds")
        return seconds


def _settings(device: torch.device) -> dict[str, Any]:
    """All else that the time of an operator depends on."""
    if device.type == "cuda":
        name, precision = torch.cuda.get_device_name(device), torch.backends.cuda.matmul.fp32_precision
        return {"device": name, "torch": torch.__version__, "float32": precision}
    precision = torch.backends.mkldnn.matmul.fp32_precision  # type: ignore[attr-defined]
    threads = torch.get_num_threads()
    return {"device": _cpu_name(), "torch": torch.__version__, "float32": precision, "threads": threads}


def _cpu_name() -> str:
    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as lines:
        name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), name)
    return f"{name} {torch.backends.cpu.get_cpu_capability()}"
