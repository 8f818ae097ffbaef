"""Training methods that save memory, as their users write them, and how far each gets under a cap."""

from __future__ import annotations

import contextlib
import functools
import gc
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

from dtr_fx.compiler.backend import dtr
from dtr_fx.costs.measure import measure_peak
from dtr_fx.errors import InfeasibleBudgetError, OverBudgetError
from dtr_fx.lab.baselines import activation_memory_budget, checkpoints
from dtr_fx.lab.trainee import bytes_held, time_of
from dtr_fx.lab.zoo.sized import Subject

Forward: TypeAlias = Callable[..., Tensor]

# The share of its activations that Inductor keeps, and the most that a plan may add to the compute of a step.
_KEPT, _ACCEPTED = 0.5, 0.5
# Seconds of each plan that is made to learn the bytes that a size needs.
_PROBING = 0.05
# The allocator cannot use all of its memory: blocks are rounded up, and gaps between them are lost.
_USABLE = 0.95
_SMALLER, _TRIES = 0.95, 5
_STEPS = 5


@dataclass(frozen=True)
class Trial:
    """Training steps that fitted: ``peak`` in bytes, with parameters and inputs, and ``seconds`` a step.

    ``reserved`` is what a GPU's allocator took for them, 0 on a CPU.
    """

    size: int
    peak: int
    reserved: int
    seconds: float


Method: TypeAlias = "Callable[[nn.Module, int | None], contextlib.AbstractContextManager[Forward]]"


@contextlib.contextmanager
def _checkpointed(model: nn.Module, budget: int | None) -> Iterator[Forward]:
    with checkpoints(model):
        yield model


@contextlib.contextmanager
def _inductor(model: nn.Module, budget: int | None, *, kept: float = 1.0) -> Iterator[Forward]:
    with activation_memory_budget(kept):
        yield torch.compile(model, dynamic=False)


@contextlib.contextmanager
def _dtr(model: nn.Module, budget: int | None, *, executor: str) -> Iterator[Forward]:
    """Within the budget; without one, in about the least memory at an accepted overhead."""
    probing = {"max_overhead": _ACCEPTED, "plan_seconds": _PROBING}
    options = {"executor": executor, **(probing if budget is None else {"budget": budget})}
    yield torch.compile(model, backend=functools.partial(dtr, options=options), dynamic=False)


EAGER, CHECKPOINT, KEEPING = "eager", "checkpoint per block", f"Inductor, activation_memory_budget={_KEPT}"
DTR, DTR_INDUCTOR = "dtr", "dtr, Inductor"
METHODS: dict[str, Method] = {
    EAGER: lambda model, budget: contextlib.nullcontext(model),
    CHECKPOINT: _checkpointed,
    "Inductor": _inductor,
    KEEPING: functools.partial(_inductor, kept=_KEPT),
    DTR: functools.partial(_dtr, executor="eager"),
    DTR_INDUCTOR: functools.partial(_dtr, executor="inductor"),
}
BUDGET_OF = {DTR: CHECKPOINT, DTR_INDUCTOR: KEEPING}
"""Whose peak each of ours is given as its budget."""


def largest(method: Method, subject: Subject, device: torch.device, cap: int) -> Trial | None:
    """The largest size that trains under ``cap`` bytes, to some per cent; None if the start does not."""
    first, second = (
        attempt(method, subject, size, device, cap) for size in (subject.start, 2 * subject.start)
    )
    if first is None or second is None:
        return first
    slope = (second.peak - first.peak) / subject.start
    size = first.size + int((cap - first.peak) / max(slope, 1))
    for _ in range(_TRIES):
        if size <= second.size:
            break
        trial = attempt(method, subject, size, device, cap, budget=int(_USABLE * cap))
        if trial is not None:
            return trial
        size = int(_SMALLER * size)
    return second


def attempt(
    method: Method, subject: Subject, size: int, device: torch.device, cap: int, *, budget: int | None = None
) -> Trial | None:
    """Some training steps of one size; None if they take more than the cap, or no plan fits."""
    model, inputs = made(subject, size, device)
    try:
        with method(model, budget) as forward, _capped(device, cap):
            trial = tried(model, forward, inputs, size, device)
    except (torch.OutOfMemoryError, InfeasibleBudgetError, OverBudgetError):
        return None
    return trial if trial.peak <= cap else None


def made(subject: Subject, size: int, device: torch.device) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """The model and its inputs on the device, drawn from seed 0; what was compiled before is forgotten."""
    torch.compiler.reset()
    gc.collect()
    torch.manual_seed(0)
    model, inputs = subject.make(size)
    return model.to(device), tuple(tensor.to(device) for tensor in inputs)


def tried(
    model: nn.Module, forward: Forward, inputs: tuple[Tensor, ...], size: int, device: torch.device
) -> Trial:
    """Training steps, the first of which compiles and is not measured."""
    step = functools.partial(_step, model, forward, inputs)
    step()
    on_card = device.type == "cuda"
    if on_card:
        gc.collect()
        torch.cuda.empty_cache()  # segments that only compiling took
    peak = bytes_held(model, inputs) + measure_peak(step, device=device)
    reserved = torch.cuda.max_memory_reserved(device) if on_card else 0
    return Trial(size, peak, reserved, statistics.median(time_of(step, device) for _ in range(_STEPS)))


def _step(model: nn.Module, forward: Forward, inputs: tuple[Tensor, ...]) -> None:
    forward(*inputs).backward()
    model.zero_grad(set_to_none=True)


@contextlib.contextmanager
def _capped(device: torch.device, cap: int) -> Iterator[None]:
    """A device with no more than ``cap`` bytes for PyTorch; a CPU has no such limit."""
    if device.type != "cuda":
        yield
        return
    torch.cuda.empty_cache()
    total = torch.cuda.get_device_properties(device).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, cap / total), device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0, device)
        torch.cuda.empty_cache()
