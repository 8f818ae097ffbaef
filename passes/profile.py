"""Seconds per operator, by running it: each distinct operator once, alone, on its device.

    Profile(device, estimate)(node)
      ├─ signature      operator, layouts of what it reads and makes, other arguments: the key
      ├─ Timings        what was timed before, on disk
      ├─ _Case          the operator on made-up tensors, outside of any tracing
      └─ estimate       for what cannot be run alone, scaled to what the graph's other operators take

Floating-point tensors are random, since max pooling on equal numbers takes a third of its time.  Integers are
zero, which is a valid index, and booleans true.  Inputs are in the cache when the operator is timed.

Requires: ``meta["val"]`` on every node.
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
import platform
import re
import statistics
import time
import uuid
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import Tensor, nn
from torch._dispatch.python import no_python_dispatcher
from torch.fx import Graph, Node
from torch.utils._python_dispatch import _disable_current_modes, is_traceable_wrapper_subclass

from dtr_fx.errors import OptionError

from . import rng
from .storages import hint, is_selection, may_run_twice, storage_key, tensors_of

log = logging.getLogger(__name__)

_WARM_UPS = 3
_MOST_REPEATS, _FEWEST_REPEATS = 50, 3
_TIME_CAP = 0.02  # seconds of repeats of one operator, unless so many are fewer than the fewest
_SHORTEST = 1e-9  # seconds: the resolution of the clock; a cost is above zero
_PLAIN = (
    bool, int, float, complex, str, type(None), type(...),
    torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip


@dataclass(frozen=True)
class Tally:
    """How many distinct operators were timed, and in how many seconds; how many were known before."""

    timed: int = 0
    known: int = 0
    seconds: float = 0.0

    def __str__(self) -> str:
        return f"{self.timed} operators timed in {self.seconds:.1f} s, {self.known} known"

    def __add__(self, other: Tally) -> Tally:
        return Tally(self.timed + other.timed, self.known + other.known, self.seconds + other.seconds)


class Profile:
    """A cost function that measures: the median time of a node's operator, in seconds, run alone.

    The operators of a graph are timed together when the first of its nodes is asked for.  Nothing of the
    user's is read or changed: operands are made up, random generators stay as they were.  A custom operator
    that declares no mutation is run, too; collectives, operators with effects, writes in place and
    higher-order operators are estimated.

    Parameters
    ----------
    device:
        Where the graph runs.
    estimate:
        Seconds of what cannot be run alone, up to a factor.

    Raises
    ------
    OptionError
        The device is neither the CPU nor a CUDA device that is there.
    """

    def __init__(self, device: torch.device, estimate: Callable[[Node], float]) -> None:
        _check(device)
        self._device = device
        self._estimate = estimate
        self._timings = Timings(device)
        self._asked: set[str] = set()
        self._learned: weakref.WeakSet[Graph] = weakref.WeakSet()
        self._scales: weakref.WeakKeyDictionary[Graph, float] = weakref.WeakKeyDictionary()
        self.tally = Tally()

    def __call__(self, node: Node) -> float:
        if node.op.startswith("call") and may_run_twice(node) and not _makes_storage(node):
            return 0.0
        if node.graph not in self._learned:
            self._learned.add(node.graph)
            self._learn(_cases(node.graph))
            log.info("%s, %s", self.tally, self._timings.file)
        seconds = self.measured(node)
        return self._scale(node.graph) * self._estimate(node) if seconds is None else seconds

    def measured(self, node: Node) -> float | None:
        """Seconds of the node's operator; None if it cannot be run alone."""
        try:
            key = signature(node)
        except CannotRunAlone as reason:
            log.debug("%s is estimated: %s", node.name, reason)
            return None
        if key not in self._asked:
            # A copy that the plan keeps of an input is no node of the graph.
            self._learn({key: _Case(key, node)})
        return self._timings.seconds.get(key)

    def _learn(self, cases: Mapping[str, _Case]) -> None:
        """Time what is new."""
        asked = cases.keys() - self._asked
        new = [cases[key] for key in cases if key in asked and key not in self._timings.seconds]
        self._asked |= asked
        self.tally += Tally(known=len(asked) - len(new))
        if new:
            self._time(new)

    def _scale(self, graph: Graph) -> float:
        """What the estimate is to be multiplied by, so that it agrees in total with what was measured."""
        if graph not in self._scales:
            measured = estimated = 0.0
            for node in filter(_is_operator, graph.nodes):
                seconds = self.measured(node)
                if seconds is not None:
                    measured += seconds
                    estimated += self._estimate(node)
            self._scales[graph] = measured / estimated if estimated else 1.0
        return self._scales[graph]

    def _time(self, cases: Iterable[_Case]) -> None:
        found: dict[str, float] = {}
        started = time.perf_counter()
        for case in cases:
            try:
                with _outside_of_tracing(self._device):
                    found[case.key] = _median_seconds(case.prepared(self._device), self._device)
            except Exception as reason:
                log.debug("%s is estimated: %s", case.key, reason)
        _empty_cache(self._device)
        self.tally += Tally(timed=len(found), seconds=time.perf_counter() - started)
        self._timings.add(found)


def signature(node: Node) -> str:
    """What decides the time of a node's operator, as text.

    Raises
    ------
    CannotRunAlone
        The operator cannot be run alone; the message says why.
    """
    target, args, kwargs = _call(node)
    numbers: dict[Node, int] = {}

    def describe(value: Any) -> str:
        if isinstance(value, Node):
            if value in numbers:
                return f"%{numbers[value]}"
            numbers[value] = len(numbers)
            return _describe_value(value.meta.get("val"))
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(map(describe, value))}]"
        if isinstance(value, slice):
            return f"{describe(value.start)}:{describe(value.stop)}:{describe(value.step)}"
        return _describe_plain(value)

    given = [*map(describe, args), *(f"{name}={describe(value)}" for name, value in sorted(kwargs.items()))]
    return f"{_name(node, target)}({', '.join(given)}) -> {_describe_value(node.meta.get('val'))}"


# --- what a node runs --------------------------------------------------------------------------------------


class CannotRunAlone(Exception):
    """Why an operator cannot be run by itself."""


def _is_operator(node: Node) -> bool:
    return node.op.startswith("call") and not is_selection(node) and _makes_storage(node)


def _makes_storage(node: Node) -> bool:
    read = (tensor for used in node.all_input_nodes for tensor in tensors_of(used.meta.get("val")))
    made = {storage_key(tensor) for tensor in tensors_of(node.meta.get("val"))}
    return bool(made.difference(map(storage_key, read)))


def _call(node: Node) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Target and arguments; an input of the graph stands for a copy of it."""
    if node.op in ("placeholder", "get_attr"):
        return torch.ops.aten.clone.default, (node,), {}
    if not may_run_twice(node):
        raise CannotRunAlone("it may not run twice")
    return node.target, node.args, dict(node.kwargs)


def _name(node: Node, target: Any) -> str:
    if node.op == "call_module":
        return _describe_module(_module(node))
    if isinstance(target, torch._ops.OpOverload):
        return str(target)
    name = rng.reference(node)
    if name is None:
        raise CannotRunAlone("its function has no name to be known by")
    return str(name)


def _module(node: Node) -> nn.Module:
    module = node.graph.owning_module.get_submodule(str(node.target))  # type: ignore[union-attr]
    for part in module.modules():
        if not type(part).__module__.startswith("torch.nn."):
            raise CannotRunAlone(f"{type(part).__name__} is no module of PyTorch's own")
    return module


def _describe_module(module: nn.Module) -> str:
    """Its parts with their plain attributes (``repr`` does not tell the number of heads), and its tensors."""
    parts = [
        type(part).__name__ + repr({k: v for k, v in vars(part).items() if isinstance(v, (*_PLAIN, tuple))})
        for part in module.modules()
    ]
    state = map(_layout, [*module.parameters(), *module.buffers()])
    return f"{', '.join(parts)} [{', '.join(state)}]"


def _describe_value(value: Any) -> str:
    if isinstance(value, Tensor):
        return _layout(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_describe_value, value))}]"
    return _describe_plain(value)


def _describe_plain(value: Any) -> str:
    value = _known(value)
    if not isinstance(value, _PLAIN):
        raise CannotRunAlone(f"a {type(value).__name__} among its arguments or results")
    return repr(value)


def _known(value: Any) -> Any:
    """A symbol's value in the trace at hand, None for what only the data says."""
    symbols = (torch.SymInt, torch.SymFloat, torch.SymBool)
    return value.node.hint if isinstance(value, symbols) else value


def _layout(tensor: Tensor) -> str:
    if tensor.layout is not torch.strided or is_traceable_wrapper_subclass(tensor):
        raise CannotRunAlone(f"a {type(tensor).__name__} of layout {tensor.layout}")
    shape, stride = _sizes(tensor)
    return f"{tensor.device.type} {str(tensor.dtype).removeprefix('torch.')}{shape}@{stride}"


def _sizes(tensor: Tensor) -> tuple[list[int], list[int]]:
    return [hint(size) for size in tensor.shape], [hint(step) for step in tensor.stride()]


def _extent(tensor: Tensor) -> int:
    """Elements from the tensor's first to its last, gaps included."""
    shape, stride = _sizes(tensor)
    return 0 if 0 in shape else 1 + sum((size - 1) * step for size, step in zip(shape, stride))


# --- running it --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Case:
    """One operator to be timed: a node that runs it, and what it is known by."""

    key: str
    node: Node

    def prepared(self, device: torch.device) -> Callable[[], Any]:
        """The operator on made-up tensors, which live as long as the function."""
        self._check_size(device)
        make = _Maker()
        target, args, kwargs = _call(self.node)
        used = self.node.all_input_nodes or [self.node]
        operands = {node: make.value(node.meta.get("val")) for node in used}
        args, kwargs = torch.fx.node.map_arg((args, kwargs), operands.__getitem__)
        if self.node.op == "call_module":
            target = make.module(_module(self.node))
        elif self.node.op == "call_method":
            target, args = getattr(args[0], target), args[1:]
        return lambda: target(*args, **kwargs)

    def _check_size(self, device: torch.device) -> None:
        values = [used.meta.get("val") for used in (self.node, *self.node.all_input_nodes)]
        tensors = [tensor for value in values for tensor in tensors_of(value)]
        needed = sum(_extent(tensor) * tensor.element_size() for tensor in tensors)
        # As much again for what the operator takes for itself.
        if 2 * needed > _free_bytes(device):
            raise MemoryError(f"{needed} bytes of operands are too many for what {device} has free")


def _cases(graph: Graph) -> dict[str, _Case]:
    """One case of each distinct operator, in order."""
    cases: dict[str, _Case] = {}
    for node in filter(_is_operator, graph.nodes):
        with contextlib.suppress(CannotRunAlone):
            key = signature(node)
            cases.setdefault(key, _Case(key, node))
    return cases


class _Maker:
    """Makes tensors up, the same ones every time, with generators of its own."""

    def __init__(self) -> None:
        self._generators: dict[torch.device, torch.Generator] = {}

    def value(self, value: Any) -> Any:
        return pytree.tree_map(self._leaf, value)

    def _leaf(self, value: Any) -> Any:
        return self.tensor(value) if isinstance(value, Tensor) else _known(value)

    def tensor(self, like: Tensor) -> Tensor:
        dtype, device, extent = like.dtype, like.device, _extent(like)
        if dtype.is_floating_point or dtype.is_complex:
            made = torch.rand(extent, generator=self._generator(device), device=device).to(dtype)
        else:
            made = torch.full((extent,), int(dtype == torch.bool), dtype=dtype, device=device)
        return made.as_strided(*_sizes(like))

    def module(self, module: nn.Module) -> nn.Module:
        """A copy of the module with parameters and buffers that are made up."""
        made: dict[int, Any] = {id(state): self.tensor(state) for state in module.buffers()}
        for parameter in module.parameters():
            made[id(parameter)] = nn.Parameter(self.tensor(parameter), requires_grad=False)
        return deepcopy(module, made)

    def _generator(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(0)
        return self._generators[device]


@contextlib.contextmanager
def _outside_of_tracing(device: torch.device) -> Iterator[None]:
    """Real tensors and plain kernels while a compiler traces on fake ones; random generators are left alone.

    AOTAutograd has the Python dispatcher on, under which operators take up to four times as long.  What turns
    it off, ``no_python_dispatcher``, is private, and so is ``_disable_current_modes``: checked on torch 2.11
    and 2.13.
    """
    with (
        _disable_current_modes(),
        no_python_dispatcher(),
        torch.no_grad(),
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext(),
    ):
        yield


def _median_seconds(run: Callable[[], Any], device: torch.device) -> float:
    repeats = _MOST_REPEATS
    for _ in range(_WARM_UPS):
        started = time.perf_counter()
        run()
        _wait_for(device)
        took = time.perf_counter() - started
        repeats = max(_FEWEST_REPEATS, min(_MOST_REPEATS, int(_TIME_CAP / max(took, _SHORTEST))))
        if took > _TIME_CAP:
            break
    times = _cuda_times if device.type == "cuda" else _cpu_times
    return max(statistics.median(times(run, repeats)), _SHORTEST)


def _cpu_times(run: Callable[[], Any], repeats: int) -> list[float]:
    times = []
    for _ in range(repeats):
        started = time.perf_counter_ns()
        run()
        times.append((time.perf_counter_ns() - started) * 1e-9)
    return times


def _cuda_times(run: Callable[[], Any], repeats: int) -> list[float]:
    """Between two events around each run, with no wait between them: the longer of launch and kernel."""
    events = [(_event(), _event()) for _ in range(repeats)]
    for before, after in events:
        before.record()
        run()
        after.record()
    torch.cuda.synchronize()
    return [before.elapsed_time(after) * 1e-3 for before, after in events]


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _empty_cache(device: torch.device) -> None:
    """Leave the device's memory as it was."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _check(device: torch.device) -> None:
    if device.type == "cpu" or (device.type == "cuda" and torch.cuda.is_available()):
        return
    raise OptionError(
        f"costs='profile' runs operators on the graph's device, and {device} is no CPU or CUDA device that "
        "is here: write 'roofline'"
    )


def _free_bytes(device: torch.device) -> float:
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    try:
        with open("/proc/meminfo") as lines:
            sizes = dict(line.split(":", 1) for line in lines)
        return int(sizes["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        return math.inf


# --- what was timed before ---------------------------------------------------------------------------------


class Timings:
    """Seconds by operator, in one JSON file for each device, torch version and setting that counts.

    It lies in ``$DTR_FX_CACHE``, else in ``~/.cache/dtr_fx``.  A file that is damaged or cannot be written is
    ignored with a warning.  Processes that write at once replace the whole file, each with what it has just
    read and what it timed; what one of them loses that way is timed again some day.
    """

    def __init__(self, device: torch.device) -> None:
        self._settings = _settings(device)
        words = [str(word) for pair in self._settings.items() for word in pair][1:]
        name = re.sub(r"[^\w.+]+", "-", "-".join(words))
        self.file = _folder() / f"{name}.json"
        self.seconds = self._read_if_sound()

    def add(self, found: Mapping[str, float]) -> None:
        """Write down what was found; what another process found first stays."""
        if not found:
            return
        self.seconds.update(found)
        with contextlib.suppress(OSError, ValueError):
            self.seconds.update(self._read())
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            _replace(self.file, json.dumps({**self._settings, "seconds": self.seconds}, indent=0))
        except OSError as error:
            warnings.warn(
                f"the times of operators cannot be kept in {self.file}: {error.strerror}; "
                "set DTR_FX_CACHE to a folder that can be written",
                stacklevel=2,
            )

    def _read_if_sound(self) -> dict[str, float]:
        try:
            return self._read()
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except (OSError, ValueError) as error:
            warnings.warn(f"{self.file} is ignored, operators are timed anew: {error}", stacklevel=2)
            return {}

    def _read(self) -> dict[str, float]:
        content = json.loads(self.file.read_text(encoding="utf-8"))
        if not isinstance(content, dict) or not isinstance(content.get("seconds"), dict):
            raise ValueError("it holds no times of operators")
        seconds: dict[str, float] = content["seconds"]
        for value in seconds.values():
            if not (isinstance(value, float) and 0 < value < math.inf):
                raise ValueError(f"{value!r} is no time in seconds")
        return seconds


def _folder() -> Path:
    return Path(os.path.expanduser(os.environ.get("DTR_FX_CACHE") or "~/.cache/dtr_fx"))


def _settings(device: torch.device) -> dict[str, Any]:
    """What else the time of an operator depends on."""
    if device.type == "cuda":
        name, matmul = torch.cuda.get_device_name(device), torch.backends.cuda.matmul
        return {"device": name, "torch": torch.__version__, "float32": matmul.fp32_precision}
    return {
        "device": _cpu_name(),
        "torch": torch.__version__,
        "float32": torch.backends.mkldnn.matmul.fp32_precision,  # type: ignore[attr-defined]
        "threads": torch.get_num_threads(),
    }


def _cpu_name() -> str:
    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as lines:
        name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), name)
    return f"{name} {torch.backends.cpu.get_cpu_capability()}"


def _replace(file: Path, text: str) -> None:
    """Write the file in one step: a reader sees all of the old or all of the new."""
    written = file.with_name(f"{file.stem}.{uuid.uuid4().hex}.tmp")
    try:
        written.write_text(text, encoding="utf-8")
        written.replace(file)
    except BaseException:
        written.unlink(missing_ok=True)
        raise
