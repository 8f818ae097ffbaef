"""An operator by itself, run on made-up tensors, whatever is being traced.

Floats are random, since max pooling on equal numbers takes a third of its time; integers are zero, which is
a valid index, and booleans true, which is the most that a mask can select.
"""

from __future__ import annotations

import contextlib
import functools
import statistics
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Node

from dtr_fx.costs.operators import (
    GIVEN,
    CannotRunAlone,
    bytes_to_run,
    call_of,
    extent,
    is_too_large,
    value_of,
)
from dtr_fx.passes.effects import may_run_twice
from dtr_fx.passes.tensors import called_module, sizes_of
from dtr_fx.torch_private import disable_current_modes, no_python_dispatcher, pytree


@contextlib.contextmanager
def outside_of_tracing(device: torch.device) -> Iterator[None]:
    """Real tensors and plain kernels while a compiler traces on fake ones; generators are left alone."""
    with on_real_tensors(device), generators_kept(device):
        yield


@contextlib.contextmanager
def on_real_tensors(device: torch.device) -> Iterator[None]:
    """Real tensors and plain kernels."""
    # AOTAutograd has the Python dispatcher on, under which operators take up to four times as long, and some
    # are decomposed and so take more memory.
    with (
        disable_current_modes(),
        no_python_dispatcher(),
        torch.no_grad(),
        torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext(),
    ):
        yield


def generators_kept(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """The generators that draw in between are afterwards as they were before."""
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


SHORTEST = 1e-9  # seconds: the resolution of the clock; a cost is above zero
_WARM_UPS = 3
_MOST_REPEATS, _FEWEST_REPEATS = 50, 3
_TIME_CAP = 0.02  # seconds of repeats of one operator, unless so many are fewer than the fewest
# Bytes of a kept state, and one to be given back.
KEPT_BYTES = 2 * 5056
# Elements that are drawn of a tensor, and the types that can be.
_PIECE = 4096
_DRAWN = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Maker:
    """Makes tensors up, the same ones every time, with generators of its own."""

    def __init__(self) -> None:
        self._generators: dict[torch.device, torch.Generator] = {}

    def value(self, like: Any) -> Any:
        """A made-up value in the place of a node's."""
        return pytree.tree_map(self._leaf, like)

    def arguments(self, arguments: Any) -> Any:
        """A node's arguments, with one made-up value in the place of each other node."""

        @functools.cache
        def value(node: Node) -> Any:
            return self.value(node.meta.get("val"))

        return torch.fx.node.map_arg(arguments, value)

    def module(self, module: nn.Module) -> nn.Module:
        """A copy of the module with parameters and buffers that are made up."""
        made: dict[int, Any] = {id(state): self.tensor(state) for state in module.buffers()}
        for parameter in module.parameters():
            made[id(parameter)] = nn.Parameter(self.tensor(parameter), requires_grad=False)
        return deepcopy(module, made)

    def tensor(self, like: Tensor) -> Tensor:
        """A tensor of the same layout."""
        dtype, device, elements = like.dtype, like.device, extent(like)
        if dtype.is_floating_point or dtype.is_complex:
            made = torch.empty(elements, dtype=dtype, device=device)
            self._fill(made)
        else:
            made = torch.full((elements,), int(dtype == torch.bool), dtype=dtype, device=device)
        return made.as_strided(*sizes_of(like))

    def _fill(self, made: Tensor) -> None:
        """Random numbers, a piece of them again and again: to draw each takes ten times as long."""
        device = made.device
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(0)
        piece = made[:_PIECE]
        if made.dtype in _DRAWN:
            piece.uniform_(generator=self._generators[device])
        else:
            piece.copy_(torch.rand(len(piece), generator=self._generators[device], device=device))
        whole = len(made) // _PIECE * _PIECE
        if whole:
            made[:whole].view(-1, _PIECE)[1:] = piece
            made[whole:] = piece[: len(made) - whole]

    def _leaf(self, value: Any) -> Any:
        return self.tensor(value) if isinstance(value, Tensor) else value_of(value)


def prepared(node: Node, room: float) -> Callable[[], Any]:
    """The node's operator on made-up tensors, which live as long as the function and fit into ``room``."""
    if not (node.op in GIVEN or may_run_twice(node)):
        raise CannotRunAlone("it may not run twice")
    if is_too_large(node):
        raise CannotRunAlone("it is large, and the model has no memory")
    needed = bytes_to_run(node)
    # As much again for what the operator takes for itself.
    if 2 * needed > room:
        raise CannotRunAlone(f"{needed} bytes of operands are too many for {room}")
    return on_made_up(node, *call_of(node))


def on_made_up(node: Node, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any]:
    """A call for a node, with made-up tensors in the place of what its arguments name."""
    maker = Maker()
    args, kwargs = maker.arguments((args, kwargs))
    if node.op == "call_module":
        target = maker.module(called_module(node))
    elif node.op == "call_method":
        target, args = getattr(args[0], target), args[1:]
    return lambda: target(*args, **kwargs)


def median_seconds(run: Callable[[], Any], device: torch.device) -> float:
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


def clock() -> Callable[[], float]:
    """The seconds of this thread, where no other computes with it: a busy machine does not count."""
    return time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
