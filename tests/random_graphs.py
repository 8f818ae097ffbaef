"""Random FX graphs: views, several outputs, randomness, in-place writes, dead code, every kind of output.

A ``Recipe`` is a list of numbers, which ``Program`` reads as operators on a few inputs and parameters.  It is
built as a graph of ATen operators (``traced``, by make_fx) or of functions, methods, modules and attributes
without shapes (``modular``, as ``symbolic_trace`` makes them).
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

WIDTH = 16
MAX_CALLS = 60
_MAX_CALLS_BEFORE_REREADING = 36


@dataclass(frozen=True)
class Op:
    """``name`` in ``MENU``; ``a`` and ``b`` choose operands among the values that fit, ``n`` a variant."""

    name: str
    a: int
    b: int
    n: int


@dataclass(frozen=True)
class Recipe:
    """A program: its operators, how often it reads early values again, what it returns, and how nested.

    ``reread`` is 0 for not at all, else every so-manieth value.
    """

    ops: tuple[Op, ...]
    reread: int
    outputs: tuple[int, ...]
    structure: str


@dataclass(frozen=True)
class Case:
    """A graph, and the example inputs that it needs to know its shapes."""

    gm: GraphModule
    example_inputs: tuple[Tensor, ...] | None


def make_inputs() -> tuple[Tensor, ...]:
    """A matrix, a taller one, and a vector, with values in [-1, 1]; the same every time."""
    shapes = ((WIDTH, WIDTH), (2 * WIDTH, WIDTH), (WIDTH,))
    return tuple(torch.arange(1.0, 1 + torch.Size(shape).numel()).sin().reshape(shape) for shape in shapes)


def traced(recipe: Recipe, tracing_mode: str) -> Case:
    """The recipe as ATen operators that know their shapes."""
    layers = Layers()

    def run(*inputs: Tensor) -> Any:
        return Program(Builder(layers), list(inputs)).run(recipe)

    trace = make_fx(run, tracing_mode=tracing_mode, _allow_non_fake_inputs=True)
    with torch.no_grad():
        return Case(trace(*make_inputs()), None)


def modular(recipe: Recipe) -> Case:
    """The recipe as functions, methods, modules and attributes, without shapes."""
    builder = GraphBuilder(Layers())
    inputs = [builder.placeholder(f"x{number}", value) for number, value in enumerate(make_inputs())]
    with torch.no_grad():
        result = Program(builder, list(inputs)).run(recipe)
    builder.graph.output(_map_items(result, lambda item: item.node))
    return Case(GraphModule(Layers(), builder.graph), make_inputs())


BUILDS: dict[str, Callable[[Recipe], Case]] = {
    "aten": lambda recipe: traced(recipe, "fake"),
    "aten, traced on real tensors": lambda recipe: traced(recipe, "real"),
    "functions, methods and modules": modular,
}


class Layers(nn.Module):
    """The modules and parameters that a graph can name; the same every time."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.weight = nn.Parameter(torch.empty(WIDTH, WIDTH))
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.batch_norm = nn.BatchNorm1d(WIDTH)
        self.dropout = nn.Dropout(0.3)
        self.relu = nn.ReLU()
        self.relu_in_place = nn.ReLU(inplace=True)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) / 4)


class Builder:
    """Runs the calls of a program: functions, ``".methods"`` and ``"modules"``."""

    def __init__(self, layers: Layers) -> None:
        self.layers = layers
        self.calls = 0

    def call(self, target: Any, *args: Any, **kwargs: Any) -> Any:
        self.calls += 1
        return self._function(target)(*args, **kwargs)

    def element(self, values: Any, index: int) -> Any:
        return values[index]

    def attribute(self, name: str) -> Any:
        return getattr(self.layers, name)

    def example(self, value: Any) -> Tensor:
        """The tensor that a value stands for."""
        return value

    def _function(self, target: Any) -> Callable[..., Any]:
        if not isinstance(target, str):
            return target
        if target.startswith("."):
            return lambda tensor, *args, **kwargs: getattr(tensor, target[1:])(*args, **kwargs)
        return getattr(self.layers, target)


@dataclass(frozen=True)
class Item:
    """A node and the value that it had on the example inputs."""

    node: Node
    value: Any


class GraphBuilder(Builder):
    """Writes each call down as a node, too."""

    def __init__(self, layers: Layers) -> None:
        super().__init__(layers)
        self.graph = Graph()

    def placeholder(self, name: str, value: Tensor) -> Item:
        return Item(self.graph.placeholder(name), value)

    def call(self, target: Any, *args: Any, **kwargs: Any) -> Item:
        values = _map_items((args, kwargs), lambda item: item.value)
        nodes = _map_items((args, kwargs), lambda item: item.node)
        value = super().call(target, *values[0], **values[1])
        if not isinstance(target, str):
            return Item(self.graph.call_function(target, *nodes), value)
        if target.startswith("."):
            return Item(self.graph.call_method(target[1:], *nodes), value)
        return Item(self.graph.call_module(target, *nodes), value)

    def element(self, values: Item, index: int) -> Item:
        node = self.graph.call_function(operator.getitem, (values.node, index))
        return Item(node, values.value[index])

    def attribute(self, name: str) -> Item:
        return Item(self.graph.get_attr(name), getattr(self.layers, name))

    def example(self, value: Item) -> Tensor:
        return value.value


def _map_items(arguments: Any, function: Callable[[Item], Any]) -> Any:
    if isinstance(arguments, Item):
        return function(arguments)
    if isinstance(arguments, (tuple, list)):
        return type(arguments)(_map_items(argument, function) for argument in arguments)
    if isinstance(arguments, dict):
        return {key: _map_items(argument, function) for key, argument in arguments.items()}
    return arguments


class Program:
    """A recipe being read: the values so far, and how an operator finds its operands among them."""

    def __init__(self, builder: Builder, inputs: list[Any]) -> None:
        self.builder = builder
        self.values = list(inputs)

    def run(self, recipe: Recipe) -> Any:
        for op in recipe.ops:
            if self.builder.calls < _MAX_CALLS_BEFORE_REREADING:
                made = MENU[op.name](self, op)
                self.values += made if isinstance(made, list) else [made]
        if recipe.reread:
            self.values.append(self._read_again(recipe.reread))
        chosen = [self.values[-1 - index % len(self.values)] for index in recipe.outputs]
        return STRUCTURES[recipe.structure](chosen)

    def _read_again(self, every: int) -> Any:
        """Read early values once more, the last first, as a backward pass does."""
        real = [value for value in self.values if self.builder.example(value).is_floating_point()]
        total = self.call(torch.sum, real[-1])
        for value in real[-2::-every]:
            if self.builder.calls < MAX_CALLS - 1:
                total = self.call(torch.add, total, self.call(torch.mean, value))
        return total

    def pick(self, index: int, fits: Callable[[Tensor], bool]) -> Any:
        """One of the values that fit, counted from the latest; inputs fit whatever an operator asks for."""
        fitting = [value for value in self.values if fits(self.builder.example(value))]
        return fitting[-1 - index % len(fitting)]

    def real(self, index: int) -> Any:
        return self.pick(index, Tensor.is_floating_point)

    def matrix(self, index: int, rows: int = 0) -> Any:
        def fits(tensor: Tensor) -> bool:
            is_matrix = tensor.dim() == 2 and tensor.shape[1] == WIDTH and tensor.shape[0] >= rows
            return is_matrix and tensor.is_floating_point()

        return self.pick(index, fits)

    def partner(self, value: Any, index: int) -> Any:
        """Something that broadcasts with the value, into its shape."""
        shape = self.shape(value)
        return self.pick(index, lambda t: t.is_floating_point() and _broadcasts(t.shape, shape))

    def shape(self, value: Any) -> torch.Size:
        return self.builder.example(value).shape

    def call(self, target: Any, *args: Any, **kwargs: Any) -> Any:
        return self.builder.call(target, *args, **kwargs)

    def parts(self, whole: Any, count: int) -> list[Any]:
        return [self.builder.element(whole, index) for index in range(count)]


def _broadcasts(shape: torch.Size, into: torch.Size) -> bool:
    pairs = zip(reversed(shape), reversed(into))
    return len(shape) <= len(into) and all(size in (1, other) for size, other in pairs)


# --- the menu ----------------------------------------------------------------------------------------------

_UNARY = (torch.sin, torch.tanh, torch.sigmoid, torch.cos, ".neg", ".clone", ".abs", F.silu)
_BINARY = (torch.add, torch.mul, torch.sub, torch.maximum, ".add", operator.add)
_MODULES = ("linear", "norm", "relu", "dropout", "batch_norm")
_REDUCTIONS: tuple[tuple[Any, ...], ...] = ((torch.sum,), (torch.mean, 0), (".sum", 1), (torch.softmax, 1))


def _unary(p: Program, op: Op) -> Any:
    return p.call(_UNARY[op.n % len(_UNARY)], p.real(op.a))


def _binary(p: Program, op: Op) -> Any:
    left = p.real(op.a)
    return p.call(_BINARY[op.n % len(_BINARY)], left, p.partner(left, op.b))


def _where(p: Program, op: Op) -> Any:
    left = p.real(op.a)
    right = p.partner(left, op.b)
    return p.call(torch.where, p.call(torch.gt, left, right), left, right)


def _matmul(p: Program, op: Op) -> Any:
    left, right = p.matrix(op.a), p.matrix(op.b)
    product = p.call(torch.matmul, left, p.call(".t", right))
    return [product, p.call(torch.tanh, p.call(torch.matmul, product, right))]


def _linear(p: Program, op: Op) -> Any:
    return p.call(F.linear, p.matrix(op.a), p.builder.attribute("weight"))


def _module(p: Program, op: Op) -> Any:
    return p.call(_MODULES[op.n % len(_MODULES)], p.matrix(op.a, rows=2))


def _reduce(p: Program, op: Op) -> Any:
    target, *dim = _REDUCTIONS[op.n % len(_REDUCTIONS)]
    return p.call(target, p.matrix(op.a), *dim)


def _view(p: Program, op: Op) -> Any:
    x = p.matrix(op.a, rows=1)
    rows = p.shape(x)[0]
    views: tuple[Callable[[], Any], ...] = (
        lambda: p.call(".t", x),
        lambda: p.call(torch.narrow, x, 0, 0, max(1, rows // 2)),
        lambda: p.call(".unsqueeze", x, 0),
        lambda: p.call(".select", x, 0, rows - 1),
        lambda: p.call(torch.transpose, x, 0, 1),
        lambda: p.call(".detach", x),
        lambda: p.call(".expand_as", p.call(".select", x, 0, 0), x),
        lambda: p.call(torch.flatten, x),
        lambda: p.call(".reshape", x, -1, WIDTH // 2),
        lambda: p.call(operator.getitem, x, slice(1, None)) if rows > 1 else x,
        lambda: p.call(torch.narrow, x, 0, 0, 0),
    )
    return views[op.n % len(views)]()


def _split(p: Program, op: Op) -> Any:
    x = p.matrix(op.a)
    half = p.shape(x)[0] // 2
    if half == 0:
        return p.parts(p.call(torch.unbind, x, 1), 3)
    return p.parts(p.call(torch.split, x, half) if op.n % 2 else p.call(".chunk", x, 2), 2)


def _several(p: Program, op: Op) -> Any:
    """Operators with several fresh outputs, of which some may stay unused."""
    x = p.matrix(op.a, rows=1)
    norm = (torch.ops.aten.native_layer_norm.default, x, [WIDTH], None, None, 1e-5)
    calls: tuple[tuple[Any, ...], ...] = (
        (torch.topk, x, 4),
        (torch.sort, x),
        (torch.max, x, 0),
        (torch.var_mean, x, 1),
        (torch.min, x, 1),
        (".sort", x),
        norm,
    )
    call = calls[op.n % len(calls)]
    made = p.parts(p.call(*call), 3 if call is norm else 2)
    return made[: 1 + op.b % len(made)]


def _random(p: Program, op: Op) -> Any:
    x = p.real(op.a)
    calls: tuple[Callable[[], Any], ...] = (
        lambda: p.call(torch.rand_like, x),
        lambda: p.call(torch.bernoulli, p.call(torch.sigmoid, x)),
        lambda: p.call(F.dropout, x, 0.4),
        lambda: p.parts(p.call(torch.ops.aten.native_dropout.default, x, 0.5, True), 2)[op.b % 2],
        lambda: _shuffle(p, p.matrix(op.a)),
    )
    return calls[op.n % len(calls)]()


def _shuffle(p: Program, x: Any) -> Any:
    order = p.call(torch.randperm, p.shape(x)[0])
    return [order, p.call(".index_select", x, 0, order)]


def _gather(p: Program, op: Op) -> Any:
    x = p.matrix(op.a)
    order = p.call(torch.argsort, p.matrix(op.b), 1)
    fits = p.shape(order)[0] <= p.shape(x)[0]
    return [order, p.call(torch.gather, x, 1, order)] if fits else order


def _write(p: Program, op: Op) -> Any:
    """In place: into a fresh value, a view of it, or whatever a matrix is, an input of the graph included."""
    x = p.matrix(op.a)
    if op.n % 4:
        x = p.call(".clone", x)
    if 0 in p.builder.example(x).stride():
        return x
    if op.n % 3 == 0:
        return p.call("relu_in_place", x)
    if op.n % 3 == 1 or not len(p.builder.example(x)):
        return p.call(".add_", x, 0.25)
    return [x, p.call(".mul_", p.call(".select", x, 0, 0), 0.5)]


def _dead(p: Program, op: Op) -> list[Any]:
    p.call(torch.cos, p.call(torch.sin, p.real(op.a)))
    if op.n % 2:
        p.call(torch.rand_like, p.real(op.b))
    return []


MENU: dict[str, Callable[[Program, Op], Any]] = {
    "unary": _unary,
    "binary": _binary,
    "where": _where,
    "matmul": _matmul,
    "linear": _linear,
    "module": _module,
    "reduce": _reduce,
    "view": _view,
    "split": _split,
    "several": _several,
    "random": _random,
    "gather": _gather,
    "write": _write,
    "dead": _dead,
}
_WEIGHTS = {"unary": 4, "binary": 3, "view": 2, "matmul": 2, "several": 2, "random": 2}

STRUCTURES: dict[str, Callable[[list[Any]], Any]] = {
    "single": lambda values: values[0],
    "tuple": tuple,
    "nested": lambda values: {"first": values[0], "rest": [tuple(values[1:]), None, 3]},
    "with none": lambda values: (None, *values, None),
}

_names = st.sampled_from([name for name in MENU for _ in range(_WEIGHTS.get(name, 1))])
_ops = st.builds(Op, _names, st.integers(0, 12), st.integers(0, 12), st.integers(0, 59))
recipes = st.builds(
    Recipe,
    st.lists(_ops, min_size=5, max_size=30).map(tuple),
    st.sampled_from([0, 1, 1, 1, 2, 3]),
    st.lists(st.integers(0, 60), min_size=1, max_size=4).map(tuple),
    st.sampled_from(list(STRUCTURES)),
)
