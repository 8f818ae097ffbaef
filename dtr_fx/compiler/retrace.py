"""A graph of Dynamo's, compiled anew for the sizes at hand."""

from __future__ import annotations

import copy
import itertools
import logging
import re
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import cached_property
from numbers import Number
from typing import Any, NamedTuple

from torch import Tensor
from torch.fx import GraphModule
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from dtr_fx.compiler.accounting import Need
from dtr_fx.compiler.dynamo import (
    bound,
    compile_id,
    copy_of_dynamos,
    float_inputs,
    forget_with,
    input_names,
    is_called_by_module,
    recompile_reason,
    sized_inputs,
    stores_watched,
    tracing_again,
    without_numbers,
)
from dtr_fx.compiler.publish import publish
from dtr_fx.errors import (
    DTRError,
    GraphError,
    InfeasibleBudgetError,
    OptionError,
    OverBudgetError,
    UncompiledError,
    did_you_mean,
)
from dtr_fx.inspect.views import Report
from dtr_fx.passes.modes import fake_mode_of_values, static_mode
from dtr_fx.planning.options import Budget, Options, Others
from dtr_fx.planning.reporting import source_line
from dtr_fx.report import Relied
from dtr_fx.torch_private import UNTRACEABLE, CompileContext, compile_context, is_followed, pytree

log = logging.getLogger(__name__)

_NUMBERS = itertools.count()

Sizes = tuple[Any, ...]
_ALONE = Others()


class Compiled(NamedTuple):
    """A compiled function, and how it is called.

    It ``takes_numbers`` where sizes are symbols to it; else they are bound.  One that ``takes_none`` does so
    for gradients that are zero, see ``zeros``.  Of one that serves other sizes, too, ``sources`` are the
    names of the texts that FX keeps.
    """

    run: Callable[..., Any]
    takes_none: bool = False
    takes_numbers: bool = False
    sources: Set[str] = frozenset()


Compile = Callable[..., Compiled]


@dataclass(frozen=True)
class LivePlan:
    """A compiled graph with the sizes that it was planned for.

    ``compile_id`` is Dynamo's number of the compilation, ``"1/0"``: of the frame, and how often that was
    compiled before.  ``reason`` says why it was traced: the guard that failed or the sizes that are new;
    nothing the first time.  ``sizes`` are what the plan was made for: ``{"L['x'].size()[0]": 48}``.  Where
    there was nothing to plan or no plan fits there are no ``reports``; in the latter case the sizes raise
    ``error``.  ``seconds`` are those of tracing, planning and compiling.
    """

    compile_id: str
    reason: str
    sizes: Mapping[str, int | tuple[int, ...]]
    reports: tuple[Report, ...]
    error: DTRError | None
    seconds: float

    @property
    def planning_seconds(self) -> float:
        """Of ``seconds``, those that planning took."""
        return sum(sum(report.seconds.values()) for report in self.reports)

    @property
    def verdict(self) -> str:
        """In one line, whether the plans fit and what they cost."""
        if self.error is not None:
            return str(self.error).partition("\n")[0]
        return "; ".join(report.summary() for report in self.reports) or "nothing to plan"

    def __str__(self) -> str:
        sizes = ", ".join(f"{name} = {value}" for name, value in self.sizes.items())
        because = f" ({self.reason})" if self.reason else ""
        return f"[{self.compile_id}] {sizes or 'all sizes fixed'}{because}: {self.verdict}"


@dataclass(frozen=True)
class CompiledStep:
    """A step for one tuple of sizes: a compiled function, or the plan's error."""

    plan: LivePlan
    need: Need
    compiled: Compiled | None

    @cached_property
    def relied(self) -> tuple[Relied, ...]:
        """What the caller must not write before the backward pass."""
        reports = self.plan.reports
        return tuple(each for report in reports for each in (*report.relied, *report.relied_parameters))


class Retracer:
    """A graph of Dynamo's, compiled whenever sizes come that no step of before serves.

    ``compile_step`` traces, plans and compiles it on fake inputs.
    """

    def __init__(self, gm: GraphModule, options: Options, compile_step: Compile) -> None:
        self.gm = copy_of_dynamos(gm)
        self._options = options
        self._compile_step = compile_step
        self._sized = sized_inputs(gm)
        self._floats = float_inputs(gm)
        self._fixed: dict[int, str] = {}
        self._context = CompileContext.try_get()
        self._compile_id = compile_id()
        self._reason = recompile_reason()
        self._is_followed = is_followed(gm)
        self._last: Mapping[str, Any] | None = None
        self._number = next(_NUMBERS)
        self._has_reports = False

    @property
    def asks_the_device(self) -> bool:
        """True if the budget is what is free at the time, so that what did not fit may fit later."""
        return self._options.budget.kind == "auto"

    @property
    def is_first_compilation(self) -> bool:
        """True unless Dynamo compiled this code before, for other sizes or settings."""
        return self._compile_id.endswith("/0")

    def sizes(self, arguments: Sequence[Any]) -> Sizes:
        """The sizes that the compiled steps are told apart by."""
        sized = [arguments[position] for position in self._sized]
        sizes = [(given.shape, given.stride()) if isinstance(given, Tensor) else given for given in sized]
        return (*sizes, *(arguments[position].item() for position in self._fixed))

    def key(self, arguments: Sequence[Any]) -> tuple[int, Hashable]:
        """What tells this graph, for these sizes, from all others."""
        return self._number, self.sizes(arguments)

    def is_part(self, arguments: Sequence[Any]) -> bool:
        """True if more than this graph is seen to belong to the step that it runs in.

        Dynamo broke a graph here, autograd knows where an argument comes from, or another module calls.
        """
        made = any(isinstance(value, Tensor) and value.grad_fn is not None for value in arguments)
        return made or self._is_followed or is_called_by_module()

    def compile(
        self,
        arguments: Sequence[Any],
        budget: Budget | None = None,
        smallest: int = 0,
        others: Others = _ALONE,
    ) -> CompiledStep:
        """Compile for the sizes of the arguments, under ``budget`` if that is not the options' own."""
        key = self.key(arguments)
        reports: list[Report] = []
        options = replace(self._options, budget=budget or self._options.budget, on_report=reports.append)
        compiled = error = None
        started = time.perf_counter()
        try:
            with stores_watched() as sources:
                compiled = self._serving_all(arguments, options, reports) or self._compile(arguments, options)
        except (InfeasibleBudgetError, OverBudgetError) as caught:
            error = copy.copy(caught)  # without the frames that it came through
        seconds = time.perf_counter() - started
        named = self._named(arguments)
        reason = self._reason if self._last is None else _changes(self._last, named)
        self._check_hints(reports, arguments)
        self._last = named
        takes_numbers = compiled is not None and compiled.takes_numbers
        names = input_names(self.gm, arguments, with_numbers=takes_numbers)
        saves_least = options.strict and options.budget.saved == 0
        published = tuple(_told(report, reason, names, others, saves_least=saves_least) for report in reports)
        with compile_context(self._context or CompileContext(None)):  # for artifacts of TORCH_TRACE
            for report in published:
                publish(report, self._options)
        plan = LivePlan(self._compile_id, reason, named, published, error, seconds)
        step = CompiledStep(plan, _need(key, reports, smallest), compiled)
        forget_with(step, sources if compiled is None else sources - compiled.sources)
        return step

    def _serving_all(
        self, arguments: Sequence[Any], options: Options, reports: list[Report]
    ) -> Compiled | None:
        """A function that serves these sizes, and others; None where these are numbers to each."""
        return None

    def _compile(self, arguments: Sequence[Any], options: Options) -> Compiled:
        """Compile for these sizes alone.

        Floats are any, unless the graph does not trace so: then they are told apart, too.  A graph that does
        not trace at all runs as it is, as under PyTorch's backends.
        """
        mode = fake_mode_of_values(arguments) or static_mode()
        try:
            with tracing_again(self._context, mode):
                graph = bound(self.gm, arguments, self._fixed)
                if any(isinstance(value, Tensor) and value.is_nested for value in arguments):
                    raise GraphError(
                        "an input is a nested tensor, whose sizes are no numbers: make it inside, by "
                        "torch.nested.nested_tensor_from_jagged(values, offsets)"
                    )
                fakes = pytree.tree_map_only(Tensor, mode.from_tensor, without_numbers(arguments))
                return self._compile_step(graph, fakes, options)
        except GuardOnDataDependentSymNode as error:
            if self._fixed or not self._floats:
                return self._untraced(error, arguments)
        except UNTRACEABLE as error:
            return self._untraced(error, arguments)
        self._fixed = self._floats
        return self._compile(arguments, options)

    def _untraced(self, error: Exception, arguments: Sequence[Any]) -> Compiled:
        """The graph as it is; said aloud, or an error, if a budget is to be in force."""
        node = next(node for node in self.gm.graph.nodes if node.op not in ("placeholder", "get_attr"))
        place = f"the graph that starts at {source_line(node) or node.name}"
        why = f"{type(error).__name__}: {error}"
        told = UncompiledError(self._options.asked, place, why.partition("\n")[0])
        if self._options.limits and self._options.strict:
            raise told from None
        log.log(logging.WARNING if self._options.limits else logging.INFO, "%s", told)
        return Compiled(bound(self.gm, arguments, self._fixed))

    def _check_hints(self, reports: Sequence[Report], arguments: Sequence[Any]) -> None:
        """Say once which hints cover nothing; of a part of a step that may be as the user means it."""
        for report in reports if not self._has_reports else ():
            modules = {re.sub(r"\b\d+\b", "*", event.module) for event in report.events if event.module}
            for hint in report.hints:
                if hint.operators:
                    continue
                guess = did_you_mean(hint.pattern, sorted(modules))
                text = f"policy[{hint.pattern!r}] covers nothing in this graph{guess}"
                if self.is_part(arguments):
                    log.info("%s", text)
                elif self._options.strict:
                    raise OptionError(text)
                else:
                    log.warning("%s", text)

        self._has_reports |= bool(reports)

    def _named(self, arguments: Sequence[Any]) -> dict[str, Any]:
        """The numbers that the graph takes; without any, the shapes."""
        names = (*self._sized.values(), *self._fixed.values())
        sizes = dict(zip(names, self.sizes(arguments)))
        numbers = {name: size for name, size in sizes.items() if isinstance(size, Number)}
        return numbers or {name: tuple(shape) for name, (shape, _) in sizes.items()}


def _told(report: Report, reason: str, names: Sequence[str], others: Others, *, saves_least: bool) -> Report:
    """The report with the reason of the trace, and what the plan relies on in the user's terms.

    Where graphs share a budget, each may rely on the caller until they all fit as they are; at no budget does
    a plan that is to save the least rely on less.
    """

    def told(tensor: Relied) -> Relied:
        name = tensor.name if tensor.kind == "output" else names[tensor.position]
        alone = None if saves_least else tensor.safe_budget
        safe = None if alone is None else max(alone + others.held, others.peak)
        return replace(tensor, name=name, safe_budget=safe)

    relied, parameters = map(told, report.relied), map(told, report.relied_parameters)
    return replace(report, trigger=reason, relied=tuple(relied), relied_parameters=tuple(parameters))


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    changed = (name for name in now if name in before and before[name] != now[name])
    return ", ".join(f"{name}: {before[name]} → {now[name]}" for name in changed)


def _need(key: tuple[int, Hashable], reports: Iterable[Report], smallest: int) -> Need:
    """Of the step's one report; where there was nothing to plan, nothing."""
    for report in reports:
        return Need(
            key,
            inputs=report.constants,
            unconstrained=report.unconstrained_peak,
            saved=report.unconstrained_saved,
            smallest=max(smallest, report.lower_bound),
            planned=report.planned_peak,
        )
    return Need(key, 0, 0, 0, smallest, 0)
