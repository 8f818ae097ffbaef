"""A plan for each tuple of sizes that a graph is called with.

Planning waits for the first call, where sizes are numbers: Dynamo compiles once for all sizes, and its limit
of recompilations is not met.
"""

from __future__ import annotations

import copy
import logging
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from dtr_fx.compiler.accounting import StepAccounting, compiled_node, makers
from dtr_fx.compiler.dynamo import without_numbers
from dtr_fx.compiler.guard import guard
from dtr_fx.compiler.retrace import CompiledStep, LivePlan, Retracer, Sizes
from dtr_fx.costs.machine import are_several
from dtr_fx.errors import InfeasibleBudgetError, OverBudgetError
from dtr_fx.planning.options import Budget, Others
from dtr_fx.torch_private import compile_lock
from dtr_fx.units import format_bytes

log = logging.getLogger(__name__)

_DISPATCHERS: weakref.WeakSet[Dispatcher] = weakref.WeakSet()


class Dispatcher:
    """A graph of Dynamo's as a function that compiles a step for each new tuple of sizes.

    The last ``plans_kept`` steps that were used are kept.  Under a budget whose ``accounting`` the graph
    shares with others, a step is planned for what these leave, and anew when that was too much; ``given`` is
    the object of options that the graph was compiled with.
    """

    def __init__(
        self, retracer: Retracer, plans_kept: int, accounting: StepAccounting | None, given: object
    ) -> None:
        self._retracer = retracer
        self._plans_kept = plans_kept
        self._accounting = accounting
        self._given = given
        self._steps: OrderedDict[Sizes, CompiledStep] = OrderedDict()
        self._lock = threading.Lock()
        # PyTorch's minifier asks what a backend returns for these.
        self.zero_grad = retracer.gm.zero_grad
        self.named_parameters, self.named_buffers = retracer.gm.named_parameters, retracer.gm.named_buffers
        _DISPATCHERS.add(self)

    def __call__(self, *arguments: Any) -> Any:
        accounting = self._accounting
        if accounting is None:
            is_early = self._retracer.is_first_compilation
            own = self._known(arguments) or self._agreed(
                arguments, lambda: self._make(arguments), is_early=is_early
            )
            return _run(own, arguments, is_looked_at=False)[0]
        accounting.start_graph()
        known = self._known(arguments)
        step = known if known is not None and accounting.continues(known.need) else None
        if step is None or accounting.is_early:
            step = self._agreed(
                arguments,
                lambda: step or self._make_fit(known, arguments, accounting),
                is_early=accounting.is_early,
            )
        outputs, node = _run(step, arguments, is_looked_at=True)
        accounting.end_graph(node, outputs, arguments)
        return outputs

    def __deepcopy__(self, memo: object) -> Dispatcher:
        """A function is its own copy: PyTorch's minifier copies what a backend returns."""
        return self

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

    def _agreed(
        self, arguments: Sequence[Any], make: Callable[[], CompiledStep], *, is_early: bool
    ) -> CompiledStep:
        """The step that is made, or where another rank cannot run its own, an error; see ``ranks``."""
        is_first = not self._steps
        if not (is_first or is_early) or not are_several():
            return make()
        from dtr_fx.compiler.ranks import groups_around, planning_together  # only here: there are others

        with planning_together(groups_around() if is_early else (), is_first=is_first) as together:
            step = make()
        error = together.agree(step.plan.error)
        if error is not None:
            step = replace(step, compiled=None, plan=replace(step.plan, error=error))
            self._keep(arguments, step)
        return step

    def _keep(self, arguments: Sequence[Any], step: CompiledStep) -> None:
        with self._lock:
            self._steps[self._retracer.sizes(arguments)] = step
            while len(self._steps) > self._plans_kept:
                self._steps.popitem(last=False)
        log.info("%s", str(step.plan))  # what keeps a record of the log keeps no plan

    def _make(self, arguments: Sequence[Any]) -> CompiledStep:
        with compile_lock:
            step = self._known(arguments)  # another thread may have made it meanwhile
            if step is None:
                step = self._retracer.compile(arguments)
                if step.compiled is not None or not self._retracer.asks_the_device:
                    self._keep(arguments, step)
            return step

    def _make_fit(
        self, step: CompiledStep | None, arguments: Sequence[Any], accounting: StepAccounting
    ) -> CompiledStep:
        """A step that fits beside what other graphs hold."""
        key, is_part = self._retracer.key(arguments), self._retracer.is_part(arguments)
        others = accounting.others(key, self._given, arguments, is_part=is_part)
        is_new = step is None or step.compiled is None
        if step is None or step.compiled is None:
            step = self._plan(arguments, accounting.first_budget(key, others), accounting)
        if step.compiled is not None and not accounting.is_right(step.need, others, is_new=is_new):
            budget = accounting.budget_for(step.need, others)
            step = self._plan(arguments, budget, accounting, step.need.smallest)
        if step.compiled is not None:
            accounting.add(step.need, self._given, arguments)
        return step

    def _plan(
        self, arguments: Sequence[Any], budget: Budget, accounting: StepAccounting, known: int = 0
    ) -> CompiledStep:
        """A step planned for the budget; it needs at least ``known`` bytes, as far as is known."""
        others = budget.others
        step = self._retracer.compile(arguments, budget, known, others)
        error = step.plan.error
        if isinstance(error, (InfeasibleBudgetError, OverBudgetError)):
            if not accounting.may_exceed(step.need.key, is_news=0 < known < error.smallest):
                step = replace(step, plan=replace(step.plan, error=_with_others(error, others)))
                self._keep(arguments, step)
                return step
            log.log(
                logging.WARNING if accounting.is_first_excess() else logging.INFO,
                "the first step may be above the budget: a graph takes %s beside %s that others hold, %s is "
                "left for it; from the next step on all of them are planned to fit",
                format_bytes(error.smallest),
                format_bytes(others.held),
                format_bytes(error.budget if isinstance(error, OverBudgetError) else error.asked),
            )
            least = Budget("bytes", error.smallest, budget.saved, asked=budget.asked)
            step = self._retracer.compile(arguments, least, error.smallest, others)
        self._keep(arguments, step)
        return step


def plans() -> tuple[LivePlan, ...]:
    """The plans that are alive: of every graph that Dynamo holds, for the sizes that it keeps.

    Dynamo holds a graph by the globals of the module whose code it is, also when the model is gone, until
    ``torch._dynamo.reset()``.
    """
    return tuple(plan for dispatcher in list(_DISPATCHERS) for plan in dispatcher.plans())


def _run(step: CompiledStep, arguments: Sequence[Any], *, is_looked_at: bool) -> tuple[Any, Any]:
    """What the step returns, and if it ``is_looked_at`` its node in autograd's graph."""
    compiled = step.compiled
    if compiled is None:
        assert step.plan.error is not None
        raise copy.copy(step.plan.error)
    given = arguments if compiled.takes_numbers else without_numbers(arguments)
    if not (is_looked_at or step.relied or compiled.takes_none):
        return compiled.run(*given), None
    earlier = set(makers(given))
    outputs = compiled.run(*given)
    node = compiled_node(outputs, given, earlier)
    if node is not None and compiled.takes_none:
        node.set_materialize_grads(False)
    if node is not None and step.relied:
        guard(node, step.relied, given, outputs)
    return outputs, node


def _with_others(
    error: InfeasibleBudgetError | OverBudgetError, others: Others
) -> InfeasibleBudgetError | OverBudgetError:
    """The error in terms of the budget that the graphs of a step share."""
    if not others.are_known:
        return error
    held = others.held
    if isinstance(error, OverBudgetError):
        return replace(error, budget=error.budget + held)
    return replace(
        error,
        asked=error.asked + held,
        smallest=error.smallest + held,
        lower_bound=error.lower_bound + held,
        baseline_peak=max(error.baseline_peak + (others.unconstrained or held), others.peak),
        pinned={**error.pinned, "other graphs": held},
    )
