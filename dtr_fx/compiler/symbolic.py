"""A step that is traced once, with symbols for sizes, and serves all sizes that it is verified to fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any

import sympy
from torch import SymInt, Tensor
from torch.fx import GraphModule
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext

from dtr_fx.compiler.reference import Trace, budget_of
from dtr_fx.compiler.traced import Traced
from dtr_fx.errors import GraphError, InfeasibleBudgetError
from dtr_fx.inspect.views import Report
from dtr_fx.passes.drops import LowerDrops
from dtr_fx.passes.sizes import give_sizes
from dtr_fx.planning.options import Options
from dtr_fx.planning.planning import Carried, copy_of
from dtr_fx.planning.rewrite import rewrite_alike, rewrite_for_all, write_alike
from dtr_fx.torch_private import ConstantSource, FakeTensorMode, base_of


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
    """A step compiled for symbolic inputs; ``run`` takes their numbers, too.

    ``sources`` are the names of the texts that FX keeps of it.  It can be planned anew if it was ``traced``.
    """

    inputs: SymbolicInputs
    trace: Trace
    run: Callable[..., Any]
    sources: Set[str]
    traced: Traced | None


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
        reference, saves_nothing = step.trace.reference, step.trace.saves_nothing
        try:
            graph = _sized(step.trace.graph, sizes)
            if reference is not None:
                options = replace(options, budget=budget_of(_sized(reference, sizes), options.count))
        except GraphError:
            return None
        try:
            report, carried = rewrite_for_all(graph, options, saves_nothing=saves_nothing)
        except InfeasibleBudgetError as error:
            if reference is None:
                raise
            options = replace(options, budget=replace(options.budget, value=error.smallest))
            report, carried = rewrite_for_all(graph, options, saves_nothing=saves_nothing)
        return None if carried is None else (step, carried, report)
    return None


def planned_anew(step: SymbolicStep, carried: Carried, options: Options) -> SymbolicStep | None:
    """The step by another plan; None where that is for another program."""
    graph = copy_of(step.trace.graph)
    if step.traced is None or not write_alike(graph, carried, options):
        return None
    LowerDrops().call(graph)
    return replace(step, trace=replace(step.trace, carried=carried), run=step.traced.compile(graph))


def _sized(gm: GraphModule, sizes: Mapping[sympy.Symbol, sympy.Integer]) -> GraphModule:
    copied = copy_of(gm)
    give_sizes(copied, sizes)
    return copied
