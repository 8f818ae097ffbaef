"""A plan for each tuple of sizes that a graph is called with.

    Dispatcher(*arguments)
      ├─ known sizes   the step that was compiled for them: a dictionary look-up
      └─ new sizes     the graph with the sizes in it (see ``dynamo``) is traced, planned and compiled

Planning waits for the first call, where sizes are numbers.  Dynamo compiles once for all sizes, and its limit
of recompilations is not met.
"""

from __future__ import annotations

import copy
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from numbers import Number
from typing import Any, cast

from torch import Tensor
from torch._guards import CompileContext
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from dtr_fx.dynamo import (
    bound,
    compile_id,
    copy_of_dynamos,
    fakes,
    float_inputs,
    recompile_reason,
    sized_inputs,
    tracing_again,
    without_numbers,
)
from dtr_fx.errors import DTRError, InfeasibleBudgetError, OverBudgetError
from dtr_fx.live import LivePlan, keep_in_sight
from dtr_fx.options import Options
from dtr_fx.report import Report

log = logging.getLogger(__name__)

Sizes = tuple[Any, ...]
Compile = Callable[[GraphModule, Sequence[Any], Options], Callable[..., Any]]


@dataclass(frozen=True)
class _Step:
    """What a tuple of sizes leads to: a compiled function, or the error of the plan."""

    plan: LivePlan
    run: Callable[..., Any] | None


class Dispatcher:
    """A graph of Dynamo's as a function that compiles a step for each new tuple of sizes.

    Parameters
    ----------
    gm:
        The graph; where its inputs have symbolic sizes, those are what the steps are told apart by.
    options:
        Of the backend; ``plans_kept`` is how many steps are kept, the last ones used.
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
        self._steps: OrderedDict[Sizes, _Step] = OrderedDict()
        self._lock = threading.Lock()
        keep_in_sight(self)

    def __call__(self, *arguments: Any) -> Any:
        step = self._step(arguments)
        if step.run is None:
            raise copy.copy(cast(DTRError, step.plan.error))
        return step.run(*without_numbers(arguments))

    def plans(self) -> list[LivePlan]:
        """Those that are kept, in the order of their last use."""
        with self._lock:
            return [step.plan for step in self._steps.values()]

    def _step(self, arguments: Sequence[Any]) -> _Step:
        sizes = self._sizes(arguments)
        step = self._known(sizes)
        if step is None:
            with tracing_again(self._context, arguments) as mode:
                step = self._known(sizes)  # another thread may have made it meanwhile
                if step is None:
                    step = self._compile(arguments, mode)
                    self._keep(self._sizes(arguments), step)
            log.info("%s", step.plan)
        return step

    def _sizes(self, arguments: Sequence[Any]) -> Sizes:
        sizes = [_size(arguments[position]) for position in self._sized]
        return (*sizes, *(arguments[position].item() for position in self._fixed))

    def _known(self, sizes: Sizes) -> _Step | None:
        with self._lock:
            step = self._steps.get(sizes)
            if step is not None:
                self._steps.move_to_end(sizes)
            return step

    def _keep(self, sizes: Sizes, step: _Step) -> None:
        with self._lock:
            self._steps[sizes] = step
            while len(self._steps) > self._options.plans_kept:
                self._steps.popitem(last=False)

    def _compile(self, arguments: Sequence[Any], mode: FakeTensorMode) -> _Step:
        reports: list[Report] = []
        options = replace(self._options, on_report=reports.append)
        run = error = None
        started = time.perf_counter()
        try:
            run = self._compile_for(arguments, mode, options)
        except (InfeasibleBudgetError, OverBudgetError) as caught:
            error = caught.with_traceback(None)
        seconds = time.perf_counter() - started
        for report in reports:
            if self._options.on_report is not None:
                self._options.on_report(report)
        return _Step(self._plan(arguments, tuple(reports), error, seconds), run)

    def _compile_for(
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
        return self._compile_for(arguments, mode, options)

    def _plan(
        self, arguments: Sequence[Any], reports: tuple[Report, ...], error: DTRError | None, seconds: float
    ) -> LivePlan:
        known = self.plans()
        names = (*self._sized.values(), *self._fixed.values())
        named = _named(names, self._sizes(arguments))
        reason = _changes(known[-1].sizes, named) if known else self._reason
        return LivePlan(self._compile_id, reason, named, reports, error, seconds)


def _size(argument: Any) -> Any:
    return (argument.shape, argument.stride()) if isinstance(argument, Tensor) else argument


def _named(names: Iterable[str], sizes: Sizes) -> dict[str, Any]:
    """The numbers that a graph takes; without any, the shapes."""
    told = {name: size if isinstance(size, Number) else tuple(size[0]) for name, size in zip(names, sizes)}
    numbers = {name: size for name, size in told.items() if isinstance(size, Number)}
    return numbers or told


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}: {before[name]} → {now[name]}" for name in now if before[name] != now[name])
