"""A step that is traced once, with symbols for sizes, and serves all sizes that it is verified to fit."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import sympy
from torch import SymInt, Tensor
from torch.fx import GraphModule
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    GuardOnDataDependentSymNode,
    ShapeEnv,
    StatelessSymbolicContext,
)

from dtr_fx.compiler.dynamo import bound, forget_with, stores_watched, tracing_again
from dtr_fx.compiler.reference import budget_of, rewrite_within
from dtr_fx.compiler.retrace import Compile, Compiled, Retracer
from dtr_fx.compiler.traced import Traced, traces_kept
from dtr_fx.errors import GraphError, InfeasibleBudgetError, OptionError, OverBudgetError
from dtr_fx.inspect.views import Report
from dtr_fx.passes.drops import LowerDrops
from dtr_fx.passes.modes import fake_mode_of_values, static_mode
from dtr_fx.passes.sizes import give_sizes
from dtr_fx.planning.options import Options
from dtr_fx.planning.planning import Carried, copy_of
from dtr_fx.planning.rewrite import rewrite_alike, rewrite_for_all, write_alike
from dtr_fx.torch_private import ConstantSource, FakeTensorMode, base_of

log = logging.getLogger(__name__)

# How many steps with symbols for sizes a graph keeps, the last ones compiled.
_MOST_STEPS = 16


class Trace(NamedTuple):
    """A graph as AOTAutograd traced it, and what it was rewritten by.

    Without options the budget is the peak of ``reference``, PyTorch's own forward and backward in one graph.
    One without a backward pass ``saves_nothing``.
    """

    graph: GraphModule
    reference: GraphModule | None
    carried: Carried
    saves_nothing: bool


class SymbolicInputs:
    """Fake inputs for a graph of Dynamo's: a symbol for each size that is a symbol there.

    The symbols are new, as Dynamo's may stand for less by now, and no two sizes share one: where the trace
    takes sizes for equal it leaves a guard.  Floats at the positions ``fixed`` are as they are.
    """

    def __init__(self, gm: GraphModule, arguments: Sequence[Any], fixed: Iterable[int]) -> None:
        self._shapes = ShapeEnv()
        self.mode = FakeTensorMode(shape_env=self._shapes, allow_non_fake_inputs=True)
        placeholders = gm.graph.find_nodes(op="placeholder")
        examples = [node.meta.get("example_value") for node in placeholders]
        self.fakes = [
            self._fake(f"input {at}", example, given)
            for at, (example, given) in enumerate(zip(examples, arguments))
        ]
        self._expressions = [[_expression(size) for size in _sizes(fake)] for fake in self.fakes]
        self._fixed = {position: arguments[position].item() for position in fixed}

    def _fake(self, name: str, example: Any, given: Any) -> Any:
        if isinstance(given, Tensor):
            sizes = example.shape if isinstance(example, Tensor) else given.shape
            if not any(isinstance(size, SymInt) for size in sizes):
                return self.mode.from_tensor(given, static_shapes=True)
            kinds = DimDynamic.STATIC, DimDynamic.DYNAMIC
            context: Any = StatelessSymbolicContext([kinds[isinstance(size, SymInt)] for size in sizes])
            return self.mode.from_tensor(given, symbolic_context=context)
        if isinstance(example, SymInt):
            source = ConstantSource(name)
            symbol = self._shapes.create_symbol(given, source, DimDynamic.DYNAMIC)
            return self._shapes.create_symintnode(symbol, hint=given, source=source)
        return given

    def values(self, arguments: Sequence[Any]) -> dict[sympy.Symbol, sympy.Integer] | None:
        """The symbols' values for other arguments; None where what was traced does not hold for these."""
        pairs: list[tuple[sympy.Expr, Any]] = []
        for expressions, given in zip(self._expressions, arguments):
            pairs += zip(expressions, _sizes(given))
        values: dict[sympy.Symbol, sympy.Integer] = {}
        for expression, size in pairs:
            if isinstance(expression, sympy.Symbol):
                values.setdefault(expression, sympy.Integer(size))
        ranges = self._shapes.var_to_range
        holds = (
            all(arguments[position].item() == value for position, value in self._fixed.items())
            and all(expression.xreplace(values) == size for expression, size in pairs)
            and all(size in ranges[symbol] for symbol, size in values.items())
            and all(guard.expr.xreplace(values) == sympy.true for guard in self._shapes.guards)
        )
        return values if holds else None


def _expression(size: int | SymInt) -> sympy.Expr:
    return size.node.expr if isinstance(size, SymInt) else sympy.Integer(size)


def _sizes(value: Any) -> Sequence[int | SymInt]:
    if isinstance(value, Tensor):
        own = (*value.shape, *value.stride(), value.storage_offset())
        return own if base_of(value) is None else (*own, *_sizes(base_of(value)))
    return (value,) if isinstance(value, (int, SymInt)) else ()


@dataclass(frozen=True)
class SymbolicStep:
    """A step compiled for symbolic inputs; it can be planned anew if it was ``traced``."""

    inputs: SymbolicInputs
    trace: Trace
    compiled: Compiled
    traced: Traced | None


class SymbolicRetracer(Retracer):
    """A graph with symbols for sizes: compiled with them if it can be traced so, else as any other."""

    def __init__(self, gm: GraphModule, options: Options, compile_step: Compile) -> None:
        super().__init__(gm, options, compile_step)
        self._steps: deque[SymbolicStep] = deque(maxlen=_MOST_STEPS)
        self._takes_symbols, self._serves_others = True, False

    def _serving_all(
        self, arguments: Sequence[Any], options: Options, reports: list[Report]
    ) -> Compiled | None:
        if not self._takes_symbols or fake_mode_of_values(arguments) is not None:
            return None
        try:
            found = self._of_known(arguments, options)
        except InfeasibleBudgetError:
            if options.slices == "off":
                raise
            return None  # what has symbols for sizes is not cut into slices
        if found is not None:
            step, report = found
            reports.append(report)
            self._serves_others = True
            return step.compiled
        if len(self._steps) > 1 and not self._serves_others:
            self._takes_symbols = False
            return None
        traces: list[Trace] = []
        unbound = [None if isinstance(given, int) else given for given in arguments]
        try:
            inputs = SymbolicInputs(self.gm, arguments, self._fixed)
            graph = bound(self.gm, unbound, self._fixed)
            with (
                tracing_again(self._context, inputs.mode),
                stores_watched() as sources,
                traces_kept() as kept,
            ):
                compiled = self._compile_step(
                    graph, inputs.fakes, options, lambda *facts: traces.append(Trace(*facts))
                )
        except InfeasibleBudgetError:
            if options.slices == "off":
                raise
            return None  # what has symbols for sizes is not cut into slices
        except (OverBudgetError, OptionError):
            raise
        except Exception as reason:
            if isinstance(reason, GuardOnDataDependentSymNode) and self._floats and not self._fixed:
                self._fixed = self._floats
                return self._serving_all(arguments, options, reports)
            log.info("sizes are fixed, as the graph does not trace with symbols for them: %s", reason)
            traces = []
        if len(traces) != 1:
            # So it will be at other sizes.
            self._takes_symbols = False
            reports.clear()
            return None
        # What AOTAutograd takes from the graph itself, it puts before the arguments: that is traced anew.
        is_whole = len(kept) == 1 and not [*graph.parameters(), *graph.buffers()]
        compiled = compiled._replace(takes_numbers=True, sources=sources)
        return self._remember(
            SymbolicStep(inputs, traces[0], compiled, kept[0] if is_whole else None)
        ).compiled

    def _of_known(self, arguments: Sequence[Any], options: Options) -> tuple[SymbolicStep, Report] | None:
        """A step that was traced for other sizes, with a plan of before, or else a new one.

        InfeasibleBudgetError where no plan fits.
        """
        known = tuple(self._steps)
        with tracing_again(self._context, static_mode()):
            found = step_for(arguments, options, known)
            planned = plan_for(arguments, options, known) if found is None else None
        if planned is None:
            return found
        step, carried, report = planned
        with tracing_again(self._context, step.inputs.mode), stores_watched() as sources:
            anew = planned_anew(step, carried, options)
        if anew is None:
            return None
        compiled = anew.compiled._replace(sources=sources)
        return self._remember(replace(anew, compiled=compiled)), report

    def _remember(self, step: SymbolicStep) -> SymbolicStep:
        forget_with(step, step.compiled.sources)
        self._steps.appendleft(step)
        return step


def step_for(
    arguments: Sequence[Any], options: Options, steps: Iterable[SymbolicStep]
) -> tuple[SymbolicStep, Report] | None:
    """The step that serves other arguments best, and its report at their sizes; None if none does well."""
    values = ((step, step.inputs.values(arguments)) for step in steps)
    holding = [(step, found) for step, found in values if found is not None]
    if not holding:
        return None
    step, sizes = holding[0]  # all have one graph
    try:
        if step.trace.reference is not None:
            options = replace(options, budget=budget_of(_sized(step.trace.reference, sizes), options.count))
        graph = _sized(step.trace.graph, sizes)
    except GraphError:
        return None
    by_carried = {id(each.trace.carried): each for each, _ in holding}
    found = rewrite_alike(graph, options, [each.trace.carried for each, _ in holding])
    if found is None:
        return None
    report, carried = found
    return by_carried[id(carried)], report


def plan_for(
    arguments: Sequence[Any], options: Options, steps: Iterable[SymbolicStep]
) -> tuple[SymbolicStep, Carried, Report] | None:
    """A step of which another one can be made for these arguments, by the plan that it is to have.

    None where they take a trace of their own.  InfeasibleBudgetError where no plan fits.
    """
    for step in steps:
        sizes = step.inputs.values(arguments)
        if step.traced is None or sizes is None:
            continue
        options = replace(options, slices="off")  # what has symbols for sizes is not cut
        reference = step.trace.reference
        try:
            graph = _sized(step.trace.graph, sizes)
            most = None if reference is None else budget_of(_sized(reference, sizes), options.count)
        except GraphError:
            return None
        rewrite = partial(rewrite_for_all, graph, saves_nothing=step.trace.saves_nothing)
        report, carried = rewrite(options) if most is None else rewrite_within(most, options, rewrite)
        return None if carried is None else (step, carried, report)
    return None


def planned_anew(step: SymbolicStep, carried: Carried, options: Options) -> SymbolicStep | None:
    """The step by another plan; None where that is for another program."""
    graph = copy_of(step.trace.graph)
    if step.traced is None or not write_alike(graph, carried, options):
        return None
    LowerDrops().call(graph)
    compiled = Compiled(step.traced.compile(graph), takes_numbers=True)
    return replace(step, trace=step.trace._replace(carried=carried), compiled=compiled)


def _sized(gm: GraphModule, sizes: Mapping[sympy.Symbol, sympy.Integer]) -> GraphModule:
    copied = copy_of(gm)
    give_sizes(copied, sizes)
    return copied
