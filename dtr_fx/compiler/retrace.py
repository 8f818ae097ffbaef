"""A graph of Dynamo's, compiled anew for the sizes at hand."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Number
from typing import Any

from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from dtr_fx.compiler.accounting import Need
from dtr_fx.compiler.dynamo import (
    bound,
    compile_id,
    copy_of_dynamos,
    fakes,
    float_inputs,
    input_names,
    recompile_reason,
    sized_inputs,
)
from dtr_fx.compiler.publish import publish
from dtr_fx.compiler.registry import LivePlan
from dtr_fx.compiler.tracing import forget_with, stores_watched, tracing_again
from dtr_fx.errors import InfeasibleBudgetError, OverBudgetError
from dtr_fx.inspect.views import Report
from dtr_fx.planning.options import Budget, Options
from dtr_fx.report import Relied
from dtr_fx.torch_private import CompileContext, FakeTensorMode

log = logging.getLogger(__name__)

Sizes = tuple[Any, ...]
Compile = Callable[[GraphModule, Sequence[Any], Options], Callable[..., Any]]


@dataclass(frozen=True)
class CompiledStep:
    """A step for one tuple of sizes: a compiled function, which takes no numbers, or the plan's error."""

    plan: LivePlan
    need: Need
    run: Callable[..., Any] | None

    @property
    def relied(self) -> tuple[Relied, ...]:
        """What the caller must not write before the backward pass."""
        return tuple(tensor for report in self.plan.reports for tensor in report.relied)


class Retracer:
    """A graph of Dynamo's that is compiled for concrete sizes, whenever new ones come.

    Parameters
    ----------
    gm:
        The graph; its inputs may have symbolic sizes.
    options:
        Of the backend.
    compile_step:
        Traces, plans and compiles a graph without symbols, on fake inputs.
    """

    def __init__(self, gm: GraphModule, options: Options, compile_step: Compile) -> None:
        self._gm = copy_of_dynamos(gm)
        self._options = options
        self._compile_step = compile_step
        self._sized = sized_inputs(gm)
        self._floats = float_inputs(gm)
        self._fixed: dict[int, str] = {}
        self._context = CompileContext.try_get()
        self._compile_id = compile_id()
        self._reason = recompile_reason()
        self._last: Mapping[str, Any] | None = None

    @property
    def asks_the_device(self) -> bool:
        """True if the budget is what is free at the time, so that what did not fit may fit later."""
        return self._options.budget.kind == "auto"

    def sizes(self, arguments: Sequence[Any]) -> Sizes:
        """The sizes that the compiled steps are told apart by."""
        sizes = [_size(arguments[position]) for position in self._sized]
        return (*sizes, *(arguments[position].item() for position in self._fixed))

    def compile(
        self, arguments: Sequence[Any], key: Hashable, budget: Budget | None = None, smallest: int = 0
    ) -> CompiledStep:
        """Compile for the sizes of the arguments, under ``budget`` if that is not the options' own."""
        reports: list[Report] = []
        options = replace(self._options, budget=budget or self._options.budget, on_report=reports.append)
        run = error = None
        started = time.perf_counter()
        try:
            with tracing_again(self._context, arguments) as mode, stores_watched() as sources:
                run = self._compile(arguments, mode, options)
        except (InfeasibleBudgetError, OverBudgetError) as caught:
            error = copy.copy(caught)  # without the frames that it came through
        seconds = time.perf_counter() - started
        named = self._named(arguments)
        reason = self._reason if self._last is None else _changes(self._last, named)
        self._last = named
        names = input_names(self._gm, arguments)
        published = tuple(_told(report, reason, names) for report in reports)
        for report in published:
            publish(report, self._options)
            for tensor in report.relied:
                log.warning("%s", tensor)
        plan = LivePlan(self._compile_id, reason, named, published, error, seconds)
        step = CompiledStep(plan, _need(key, reports, smallest), run)
        forget_with(step, sources)
        return step

    def _compile(
        self, arguments: Sequence[Any], mode: FakeTensorMode, options: Options
    ) -> Callable[..., Any]:
        """Floats are any, unless the graph does not trace so: then they are told apart, too."""
        graph = bound(self._gm, arguments, self._fixed)
        try:
            return self._compile_step(graph, fakes(arguments, mode), options)
        except GuardOnDataDependentSymNode:
            if self._fixed or not self._floats:
                raise
        self._fixed = self._floats
        return self._compile(arguments, mode, options)

    def _named(self, arguments: Sequence[Any]) -> dict[str, Any]:
        """The numbers that the graph takes; without any, the shapes."""
        names = (*self._sized.values(), *self._fixed.values())
        sizes = dict(zip(names, self.sizes(arguments)))
        numbers = {name: size for name, size in sizes.items() if isinstance(size, Number)}
        return numbers or {name: tuple(shape) for name, (shape, _) in sizes.items()}


def _told(report: Report, reason: str, names: Sequence[str]) -> Report:
    """The report with the reason of the trace, and the user's names for inputs that the plan relies on."""
    relied = (
        replace(tensor, name=names[tensor.position]) if tensor.kind == "input" else tensor
        for tensor in report.relied
    )
    return replace(report, trigger=reason, relied=tuple(relied))


def _size(argument: Any) -> Any:
    return (argument.shape, argument.stride()) if isinstance(argument, Tensor) else argument


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    changed = (name for name in now if name in before and before[name] != now[name])
    return ", ".join(f"{name}: {before[name]} → {now[name]}" for name in changed)


def _need(key: Hashable, reports: Iterable[Report], smallest: int) -> Need:
    """Of the step's one report; where there was nothing to plan, nothing."""
    for report in reports:
        return Need(key, report.constants, report.baseline_peak, smallest, report.planned_peak)
    return Need(key, 0, 0, smallest, 0)
