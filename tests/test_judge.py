"""What the judge says of a training step, against timelines by hand, plans, and the allocator."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any

import pairs
import pytest
import torch
from torch import Tensor
from torch._prims.rng_prims import graphsafe_run_with_rng_state as graphsafe
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node, symbolic_trace
from torch.fx.experimental.proxy_tensor import make_fx

from dtr_fx import GraphError, OptionError, transform
from dtr_fx.lab import baselines, zoo
from dtr_fx.lab.zoo.layers import Model
from dtr_fx.planning.judge import Judgement, judge
from dtr_fx.planning.options import Options

pytestmark = pytest.mark.little_effort

aten = torch.ops.aten
MIB = 2**20
SMALL = 64  # bytes that a kernel takes for the numbers among its arguments

MODELS: dict[str, Callable[[], Model]] = {
    "gpt": lambda: zoo.gpt(layers=2, width=64, batch=8, length=64, dropout=0.1),
    "resnet": lambda: zoo.resnet50(blocks=(1, 1), width=8, batch=4, size=32),
    "unet": lambda: zoo.unet_bn(depth=2, width=4, batch=2, size=32),
    "lstm": lambda: zoo.lstm_cell(steps=6, batch=16, inputs=16, hidden=32),
    "mlp": lambda: zoo.mlp(layers=6, width=64, batch=1024),
}
WITHOUT_BUFFERS = ("gpt", "lstm", "mlp")

_traced: dict[str, baselines.Joint] = {}


def joint(name: str) -> baselines.Joint:
    if name not in _traced:
        with FakeTensorMode(allow_non_fake_inputs=True):
            _traced[name] = baselines.trace(*MODELS[name]())
    return _traced[name]


# Graphs by hand, of tensors of one MiB


class Build:
    """A graph under construction; nodes of one name have one value, as partitioners leave them."""

    def __init__(self, values: dict[str, Tensor]) -> None:
        self.graph = Graph()
        self._values = values

    def input(self, name: str) -> Node:
        return self._named(self.graph.placeholder(name), name)

    def call(self, name: str, target: Any, *args: Any) -> Node:
        return self._named(self.graph.create_node("call_function", target, args, name=name), name)

    def returning(self, *nodes: Node) -> GraphModule:
        self.graph.output(nodes)
        return GraphModule({}, self.graph)

    def _named(self, node: Node, name: str) -> Node:
        node.meta["val"] = self._values.setdefault(name, torch.empty(512, 512))
        return node


@pytest.fixture
def values() -> dict[str, Tensor]:
    with FakeTensorMode():
        return {name: torch.empty(512, 512) for name in ("x", "a", "b", "c", "tangents_1", "s", "g")}


def forward(values: dict[str, Tensor], saves: str) -> GraphModule:
    """c = exp(cos(sin(x)))"""
    build = Build(values)
    x = build.input("x")
    a = build.call("a", aten.sin.default, x)
    b = build.call("b", aten.cos.default, a)
    c = build.call("c", aten.exp.default, b)
    return build.returning(c, {"x": x, "a": a, "b": b}[saves])


def test_a_saved_activation_lives_to_its_last_use_in_the_backward_pass(values: dict[str, Tensor]) -> None:
    build = Build(values)
    a, tangent = build.input("a"), build.input("tangents_1")
    s = build.call("s", aten.sin.default, a)
    backward = build.returning(build.call("g", aten.mul.Tensor, s, tangent))
    found = judge(forward(values, saves="a"), backward)
    # At cos: x, a, b; at exp: x, a, b, c; at sin: x, a, c, tangent, s; at mul: x, c, tangent, s, g.
    assert found.constants == MIB
    assert 4 * MIB <= found.above_constants <= 4 * MIB + SMALL


def test_a_copy_in_the_backward_graph_has_memory_of_its_own(values: dict[str, Tensor]) -> None:
    build = Build(values)
    x, tangent = build.input("x"), build.input("tangents_1")
    a = build.call("a", aten.sin.default, x)
    backward = build.returning(build.call("g", aten.mul.Tensor, a, tangent))
    found = judge(forward(values, saves="x"), backward)
    # At cos: x, a, b; at exp, a is gone: x, b, c; at the second sin: x, c, tangent, a; at mul: one more, g.
    assert 4 * MIB <= found.above_constants <= 4 * MIB + SMALL
    assert found.operator == "g"


def test_views_of_a_copy_are_in_the_copy(values: dict[str, Tensor]) -> None:
    values["v"] = values["a"].view(-1)
    build = Build(values)
    x, tangent = build.input("x"), build.input("tangents_1")
    v = build.call("v", aten.view.default, build.call("a", aten.sin.default, x), [-1])
    g = build.call("g", aten.mul.Tensor, build.call("s", aten.sum.default, v), tangent)
    values["s"] = torch.empty(())
    found = judge(forward(values, saves="x"), build.returning(g))
    # As above: the view takes nothing, neither in the first pass nor in the second.
    assert 4 * MIB <= found.above_constants <= 4 * MIB + SMALL


def test_what_is_returned_and_saved_lives_to_the_end(values: dict[str, Tensor]) -> None:
    build = Build(values)
    x = build.input("x")
    a = build.call("a", aten.sin.default, x)
    both = build.returning(a, a)
    build = Build(values)
    saved, tangent = build.input("a"), build.input("tangents_1")
    s = build.call("s", aten.sin.default, saved)
    backward = build.returning(build.call("g", aten.mul.Tensor, s, tangent))
    found = judge(both, backward)
    assert 4 * MIB <= found.above_constants <= 4 * MIB + SMALL  # a, tangent, s, g


def test_every_operator_costs_once_for_each_run(values: dict[str, Tensor]) -> None:
    build = Build(values)
    x, tangent = build.input("x"), build.input("tangents_1")
    a = build.call("a", aten.sin.default, x)
    backward = build.returning(build.call("g", aten.mul.Tensor, a, tangent))
    seconds = {
        aten.sin.default: 1.0,
        aten.cos.default: 10.0,
        aten.exp.default: 100.0,
        aten.mul.Tensor: 1000.0,
    }
    assert judge(forward(values, saves="x"), backward, costs=seconds).cost == 1112.0


def test_a_wrapped_random_operator_counts_as_the_operator(values: dict[str, Tensor]) -> None:
    """On CUDA partitioners leave calls without a value, which read a generator that is an input."""

    def step(*, wrapped: bool) -> GraphModule:
        build = Build(values)
        x = build.input("x")
        state = build.graph.placeholder("fwd_rng_state_0")
        state.meta["val"] = torch.Generator()
        if wrapped:
            draw = aten.native_dropout.default
            node = build.graph.call_function(graphsafe, (draw, x, 0.5, True), {"rng_state": state})
        else:
            node = build.call("drawn", aten.native_dropout.default, x, 0.5, True)
        values["y"], values["mask"] = values["drawn"]
        y = build.call("y", operator.getitem, node, 0)
        mask = build.call("mask", operator.getitem, node, 1)
        return build.returning(build.call("z", aten.mul.Tensor, y, mask))

    with values["x"].fake_mode:  # type: ignore[attr-defined]
        values["drawn"] = aten.native_dropout.default(values["x"], 0.5, True)
    values["z"] = values["s"]
    plain, wrapped = judge(step(wrapped=False)), judge(step(wrapped=True))
    assert (wrapped.peak, wrapped.cost) == (plain.peak, plain.cost)


def test_a_lone_graph_is_judged_alone() -> None:
    gm = make_fx(lambda x: x.sin().cos().view(-1).exp(), tracing_mode="fake")(torch.ones(512, 512))
    found = judge(gm, costs=lambda node: 1.0)
    assert found.constants == MIB
    assert 2 * MIB <= found.above_constants <= 2 * MIB + SMALL
    assert found.cost == 3.0  # a view costs nothing


def test_the_overhead_is_over_the_eager_step() -> None:
    eager = Judgement(peak=10, constants=2, cost=4.0, operator="")
    assert Judgement(peak=6, constants=2, cost=5.0, operator="").overhead(eager) == 0.25


# Bad input


def test_a_graph_without_shapes_is_refused() -> None:
    with pytest.raises(GraphError, match="no shape"):
        judge(symbolic_trace(lambda x: x.sin().cos()))


def test_a_graph_without_operators_is_refused() -> None:
    with pytest.raises(GraphError, match="nothing to judge"):
        judge(make_fx(lambda x: x, tracing_mode="fake")(torch.ones(2)))


def test_unknown_costs_are_refused() -> None:
    gm = make_fx(lambda x: x.sin(), tracing_mode="fake")(torch.ones(2))
    with pytest.raises(OptionError, match="costs='flops'"):
        judge(gm, costs="flops")


# Our own plans


def sweep(*names: str) -> list[Any]:
    """Only the first is not slow."""
    return [names[0], *(pytest.param(name, marks=pytest.mark.slow) for name in names[1:])]


@pytest.mark.parametrize("name", sweep("mlp", "resnet", "gpt", "unet", "lstm"))
def test_the_judge_sees_of_a_plan_what_its_report_says(name: str) -> None:
    asis, eager = judge(joint(name).planned), judge(*baselines.eager(joint(name)))
    for budget in (1.0, 0.75):
        pair, report = baselines.planned(joint(name), Options(budget=budget))
        found = judge(*pair)
        # Duplicates are merged before the graph is planned.
        assert asis.peak == report.baseline_peak <= eager.peak
        assert (found.peak, found.constants) == (report.planned_peak, report.constants)
        assert math.isclose(found.cost, sum(event.cost for event in report.events), rel_tol=1e-9)
        if name in WITHOUT_BUFFERS:
            assert math.isclose(found.cost, report.total_cost, rel_tol=1e-9)
            assert math.isclose(asis.cost, report.base_cost, rel_tol=1e-9)
            assert report.base_cost <= eager.cost * (1 + 1e-9)


def test_a_rewritten_graph_is_judged_with_its_drops() -> None:
    def chain(x: Tensor) -> Tensor:
        made = [x]
        for _ in range(8):
            made.append(made[-1].sin())
        return torch.stack([value.sum() for value in reversed(made)]).sum()

    gm = make_fx(chain, tracing_mode="fake")(torch.ones(512, 512))
    rewritten, report = transform(gm, 0.6)
    assert report.drops
    found = judge(rewritten)
    assert found.peak == report.planned_peak
    assert math.isclose(found.cost, report.total_cost, rel_tol=1e-9)


# Against the allocator


def off(form: baselines.Pair) -> float:
    """By how much the judged peak, above inputs and parameters, is off the measured one."""
    return judge(*form).above_constants / pairs.peak(form) - 1


@pytest.mark.parametrize("name", sweep("mlp", "gpt", "unet"))
def test_pytorchs_graphs_reach_the_peak_that_is_judged(name: str) -> None:
    forms = [baselines.eager(joint(name)), *(baselines.min_cut(joint(name), budget) for budget in (0.5, 0.0))]
    assert [off(form) for form in forms] == pytest.approx([0.0] * len(forms), abs=0.02)


@pytest.mark.parametrize("name", sweep("resnet", "gpt"))
def test_checkpointed_graphs_reach_the_peak_that_is_judged(name: str) -> None:
    """Dropout and batch norm are among what is recomputed."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        form = baselines.checkpointed(*MODELS[name]())
    assert off(form) == pytest.approx(0.0, abs=0.02)
