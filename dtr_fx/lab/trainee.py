"""Hold a plan against what a training step really does: its results, its allocator peak, its time.

ours = measure(Trainee(model, inputs), Options(budget="60%")); print(ours.deviation, ours.report.overhead)
"""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from dtr_fx.compiler.backend import dtr
from dtr_fx.compiler.explain import plan_step
from dtr_fx.costs.measure import measure_peak
from dtr_fx.errors import GraphError, InfeasibleBudgetError
from dtr_fx.inspect.views import Report
from dtr_fx.passes.tensors import tensors_of
from dtr_fx.planning.options import Options
from dtr_fx.planning.step import call, loss_of

Results: TypeAlias = Mapping[str, Tensor]
Clock: TypeAlias = Callable[[], float]

SMALLEST = "smallest"
"""Among budgets: the smallest that works."""


class Trainee:
    """A model and its inputs, whose training step can be run again and again from the same start.

    A step is ``model(*inputs)``, or ``model(**inputs)`` of a mapping. The loss is its output if that is a
    scalar, else the sum of its floating-point outputs.
    """

    def __init__(self, model: nn.Module, inputs: tuple[Any, ...] | Mapping[str, Any]) -> None:
        self.model = model
        self.inputs = inputs
        self._start = {name: tensor.detach().clone() for name, tensor in self.tensors().items()}

    @property
    def device(self) -> torch.device:
        return next((tensor.device for tensor in self.tensors().values()), torch.device("cpu"))

    def tensors(self) -> dict[str, Tensor]:
        """Parameters, buffers and inputs, by name."""
        return {
            **dict(self.model.named_parameters()),
            **dict(self.model.named_buffers()),
            **{f"input {number}": tensor for number, tensor in enumerate(tensors_of(self.inputs))},
        }

    def restart(self) -> None:
        """Put every tensor and generator back to the start, and take the gradients away."""
        with torch.no_grad():
            for name, tensor in self.tensors().items():
                tensor.copy_(self._start[name])
        self.clear_gradients()
        torch.manual_seed(0)

    def clear_gradients(self) -> None:
        for tensor in self.tensors().values():
            tensor.grad = None

    def step(self, forward: Callable[..., Any]) -> list[Tensor]:
        """One forward and backward pass; gradients are added to those that are there. The outputs."""
        output = call(forward, self.inputs)
        loss = loss_of(output)
        if loss is not None:
            loss.backward()
        return [tensor.detach() for tensor in tensors_of(output)]

    def fresh_step(self, forward: Callable[..., Any]) -> dict[str, Tensor]:
        """One step from the start, and the results of it."""
        self.restart()
        return self.results(self.step(forward))

    def results(self, outputs: Iterable[Tensor]) -> dict[str, Tensor]:
        """Copies of all that a step may leave behind, by name: outputs, tensors, gradients, generators."""
        found = {f"output {number}": tensor for number, tensor in enumerate(outputs)}
        for name, tensor in self.tensors().items():
            found[name] = tensor.detach()
            if tensor.grad is not None:
                found[f"gradient of {name}"] = tensor.grad
        found["generator"] = torch.get_rng_state()
        if self.device.type == "cuda":
            found["cuda generator"] = torch.cuda.get_rng_state(self.device)
        return {name: tensor.clone() for name, tensor in found.items()}


@dataclass(frozen=True)
class Measurement:
    """Two training steps in a row under one plan, and the second's peak in bytes above what was there before.

    ``results`` has what each of the two left behind. ``seconds`` is the median time of a step, 0 if none was
    timed.
    """

    forward: Callable[..., Any]
    report: Report
    results: tuple[Results, Results]
    peak: int
    seconds: float

    @property
    def planned(self) -> int:
        """The planned peak, above the inputs and parameters that are there before."""
        return self.report.planned_peak - self.report.constants

    @property
    def allowed(self) -> int:
        """The bytes that the budget leaves for a step, above the inputs and parameters."""
        return self.report.budget - self.report.constants

    @property
    def deviation(self) -> float:
        """How far the measured peak is above the planned one: 0.01 is 1%."""
        return self.peak / self.planned - 1 if self.planned else 0.0


def compile_step(trainee: Trainee, options: Options) -> tuple[Callable[..., Any], list[Report]]:
    """The model, compiled at its first call, and its reports; what was compiled before is forgotten."""
    torch.compiler.reset()
    return _compiled(trainee, options)


def first_step(trainee: Trainee, options: Options) -> tuple[Callable[..., Any], Report, Results]:
    """The model, compiled by a step from the start; the report of its one plan; what the step left behind."""
    forward, reports = _compiled(trainee, options)
    results = trainee.fresh_step(forward)
    if len(reports) != 1:
        raise GraphError(f"{len(reports)} graphs were traced: only the step of a single one can be measured")
    return forward, reports[0], results


def _compiled(trainee: Trainee, options: Options) -> tuple[Callable[..., Any], list[Report]]:
    reports: list[Report] = []
    given = {**vars(options), "executor": options.executor or "eager", "on_report": reports.append}
    return torch.compile(trainee.model, backend=functools.partial(dtr, options=given)), reports


def measure(trainee: Trainee, options: Options, *, repeats: int = 0) -> Measurement:
    """Compile the model and measure its second step; then time ``repeats`` more."""
    torch.compiler.reset()
    forward, report, first = first_step(trainee, options)
    trainee.clear_gradients()
    outputs: list[Tensor] = []
    peak = measure_peak(lambda: outputs.extend(trainee.step(forward)), device=trainee.device)
    second = trainee.results(outputs)
    outputs.clear()
    times = [time_of_step(trainee, forward) for _ in range(repeats)]
    trainee.clear_gradients()
    return Measurement(forward, report, (first, second), peak, statistics.median(times) if times else 0.0)


def smallest_budget(trainee: Trainee, options: Options) -> InfeasibleBudgetError:
    """The planner's refusal of one byte, which nothing fits: ``.smallest`` is what works."""
    torch.compiler.reset()
    trainee.restart()
    try:
        plan_step(trainee.model, trainee.inputs, replace(options, budget=1))
    except InfeasibleBudgetError as error:
        return error
    raise GraphError("the model fits into one byte: there is nothing to plan")


def differing(results: Iterable[Results], expected: Iterable[Results]) -> tuple[str, ...]:
    """The names of the results that are not the same bits, or that only one side has."""
    names = (
        name
        for ours, theirs in zip(results, expected, strict=True)
        for name in {**theirs, **ours}
        if name not in ours or name not in theirs or not same_bits(ours[name], theirs[name])
    )
    return tuple(dict.fromkeys(names))


def same_bits(a: Tensor, b: Tensor) -> bool:
    """True if two tensors hold the same bytes; unlike ``torch.equal``, NaN is itself and 0.0 is not -0.0."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    ours, theirs = (tensor.detach().contiguous().reshape(-1).view(torch.uint8) for tensor in (a, b))
    return torch.equal(ours, theirs)


def time_of_step(trainee: Trainee, forward: Callable[..., Any], clock: Clock = time.perf_counter) -> float:
    """Seconds that a step takes by a clock, on the device too."""
    trainee.clear_gradients()
    return time_of(lambda: trainee.step(forward), trainee.device, clock)


def time_of(run: Callable[[], Any], device: torch.device, clock: Clock = time.perf_counter) -> float:
    """Seconds by a clock until the device has done all that ``run`` asks of it."""
    _wait_for(device)
    started = clock()
    run()
    _wait_for(device)
    return clock() - started


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def bytes_held(model: nn.Module, inputs: Iterable[Any]) -> int:
    """The bytes of parameters, buffers and inputs: what is there before a step."""
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers(), *tensors_of(inputs)))
