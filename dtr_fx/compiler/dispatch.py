"""A plan for each tuple of sizes that a graph is called with.

    Dispatcher(*arguments)
      ├─ known sizes   the step that was compiled for them: a dictionary look-up
      └─ new sizes     the graph is traced with them (see ``retrace``), planned and compiled

Planning waits for the first call, where sizes are numbers.  Dynamo compiles once for all sizes, and its limit
of recompilations is not met.  Under a budget in bytes a step is planned for what other graphs leave of it,
and planned anew when that was too much (see ``accounting``).
"""

from __future__ import annotations

import copy
import itertools
import logging
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dtr_fx.compiler.accounting import SharedBudget, StepAccounting
from dtr_fx.compiler.dynamo import without_numbers
from dtr_fx.compiler.guard import guard
from dtr_fx.compiler.registry import LivePlan, keep_in_sight
from dtr_fx.compiler.retrace import CompiledStep, Retracer, Sizes
from dtr_fx.errors import InfeasibleBudgetError, OverBudgetError
from dtr_fx.planning.options import Budget
from dtr_fx.torch_private import compile_lock
from dtr_fx.units import format_bytes

log = logging.getLogger(__name__)


class Dispatcher:
    """A graph of Dynamo's as a function that compiles a step for each new tuple of sizes.

    Parameters
    ----------
    retracer:
        The graph.
    plans_kept:
        How many steps are kept, the last ones used.
    shared:
        The budget that the graph shares with others; None if it has one of its own.
    """

    def __init__(self, retracer: Retracer, plans_kept: int, shared: SharedBudget | None) -> None:
        self._retracer = retracer
        self._plans_kept = plans_kept
        self._shared = shared
        self._steps: OrderedDict[Sizes, CompiledStep] = OrderedDict()
        self._lock = threading.Lock()
        self._number = next(_NUMBERS)
        keep_in_sight(self)

    def __call__(self, *arguments: Any) -> Any:
        if self._shared is None:
            return _run(self._known(arguments) or self._make(arguments), arguments)
        accounting = self._shared.accounting
        accounting.start_graph()
        step = self._known(arguments)
        if step is None or not accounting.continues(step.need):
            step = self._make_fit(step, arguments, accounting)
        outputs = _run(step, arguments)
        accounting.end_graph(outputs, arguments)
        return outputs

    def plans(self) -> list[LivePlan]:
        """Those that are kept, in the order of their last use."""
        with self._lock:
            return [step.plan for step in self._steps.values()]

    def _known(self, arguments: Sequence[Any]) -> CompiledStep | None:
        sizes = self._retracer.sizes(arguments)
        with self._lock:
            step = self._steps.get(sizes)
            if step is not None:
                self._steps.move_to_end(sizes)
            return step

    def _keep(self, arguments: Sequence[Any], step: CompiledStep) -> None:
        with self._lock:
            self._steps[self._retracer.sizes(arguments)] = step
            while len(self._steps) > self._plans_kept:
                self._steps.popitem(last=False)
        log.info("%s", step.plan)

    def _make(self, arguments: Sequence[Any]) -> CompiledStep:
        with compile_lock:
            step = self._known(arguments)  # another thread may have made it meanwhile
            if step is None:
                step = self._compile(arguments)
                if step.run is not None or not self._retracer.asks_the_device:
                    self._keep(arguments, step)
            return step

    def _make_fit(
        self, step: CompiledStep | None, arguments: Sequence[Any], accounting: StepAccounting
    ) -> CompiledStep:
        """A step that fits beside what other graphs hold."""
        held = accounting.held(arguments)
        left = max(1, accounting.nbytes - held)
        if step is None or step.run is None:
            step = self._plan(arguments, replace(accounting.budget, value=left), held, accounting)
        if step.run is not None and not accounting.is_right(step.need, left):
            budget = accounting.budget_for(step.need, left)
            step = self._plan(arguments, budget, held, accounting, step.need.smallest)
        if step.run is not None:
            accounting.add(step.need, arguments)
        return step

    def _plan(
        self,
        arguments: Sequence[Any],
        budget: Budget,
        held: int,
        accounting: StepAccounting,
        smallest: int = 0,
    ) -> CompiledStep:
        step = self._compile(arguments, budget, smallest)
        error = step.plan.error
        if isinstance(error, (InfeasibleBudgetError, OverBudgetError)) and held:
            if not accounting.may_exceed():
                return replace(step, plan=replace(step.plan, error=_with_others(error, held)))
            log.warning(_EXCEEDS, format_bytes(error.smallest + held), format_bytes(accounting.nbytes))
            budget = replace(accounting.budget, value=error.smallest)
            step = self._compile(arguments, budget, error.smallest)
        self._keep(arguments, step)
        return step

    def _compile(
        self, arguments: Sequence[Any], budget: Budget | None = None, smallest: int = 0
    ) -> CompiledStep:
        key = self._number, self._retracer.sizes(arguments)
        return self._retracer.compile(arguments, key, budget, smallest)


_NUMBERS = itertools.count()
_EXCEEDS = (
    "this step needs %s, the budget is %s: earlier graphs hold too much, and are planned for less from the "
    "next step on"
)


def _run(step: CompiledStep, arguments: Sequence[Any]) -> Any:
    if step.run is None:
        assert step.plan.error is not None
        raise copy.copy(step.plan.error)
    given = without_numbers(arguments)
    outputs = step.run(*given)
    if step.relied:
        guard(step.relied, given, outputs)
    return outputs


def _with_others(
    error: InfeasibleBudgetError | OverBudgetError, held: int
) -> InfeasibleBudgetError | OverBudgetError:
    """The error in terms of the budget that the graphs of a step share."""
    if isinstance(error, OverBudgetError):
        return replace(error, budget=error.budget + held)
    return replace(
        error,
        asked=error.asked + held,
        smallest=error.smallest + held,
        lower_bound=error.lower_bound + held,
        baseline_peak=error.baseline_peak + held,
        pinned={**error.pinned, "other graphs": held},
    )
