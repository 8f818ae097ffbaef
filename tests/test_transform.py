"""``transform`` on every kind of FX graph: the same results within the budget; errors say what to do."""

from __future__ import annotations

import copy
import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from chains import chain
from functorch.compile import aot_function, default_partition, nop
from torch import Tensor, nn
from torch._functorch.aot_autograd import aot_export_joint_simple
from torch.fx import GraphModule, Node, symbolic_trace
from torch.fx.experimental.proxy_tensor import make_fx

import dtr_fx
from dtr_fx import GraphError, InfeasibleBudgetError, OptionError, Report, measure_peak
from dtr_fx.passes.tensors import is_selection

MiB = 2**20
WIDTH = 64
# Raised inside torch when the structure of an exported graph is copied.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.isinstance.treespec, LeafSpec:FutureWarning"),
    pytest.mark.little_effort,
]


def mib(seed: int = 0) -> Tensor:
    """One MiB of numbers."""
    return torch.randn(512, 512, generator=torch.Generator().manual_seed(seed))


def traced(fn: Callable[..., Any], *inputs: Any, mode: str = "fake") -> GraphModule:
    return make_fx(fn, tracing_mode=mode, _allow_non_fake_inputs=True)(*inputs)


def tightest(gm: GraphModule, example_inputs: Sequence[Any] | None = None) -> tuple[GraphModule, Report]:
    """The graph rewritten for the smallest budget that one pass works with, which takes recomputation."""
    with pytest.raises(InfeasibleBudgetError) as caught:
        dtr_fx.transform(gm, 1, planner="online", example_inputs=example_inputs)
    smallest = caught.value.smallest
    rewritten, report = dtr_fx.transform(gm, smallest, planner="online", example_inputs=example_inputs)
    assert report.planned_peak <= smallest < report.baseline_peak
    assert report.drops >= 1
    assert report.recomputes >= 1
    return rewritten, report


def run(gm: GraphModule, *inputs: Any) -> tuple[Any, dict[str, Tensor], Tensor]:
    """Outputs, parameters and buffers, and the generator's state, from seed 0; the graph is put back."""
    before = {name: tensor.clone() for name, tensor in module_tensors(gm).items()}
    torch.manual_seed(0)
    with torch.no_grad():
        outputs = gm(*inputs)
        state = {name: tensor.clone() for name, tensor in module_tensors(gm).items()}
        outcome = copy.deepcopy(outputs), state, torch.get_rng_state()
        for name, tensor in module_tensors(gm).items():
            tensor.copy_(before[name])
    return outcome


def module_tensors(gm: GraphModule) -> dict[str, Tensor]:
    return dict(sorted([*gm.named_parameters(), *gm.named_buffers()]))


def assert_same_runs(rewritten: GraphModule, gm: GraphModule, *inputs: Any) -> None:
    outputs, state, generator = run(rewritten, *inputs)
    expected_outputs, expected_state, expected_generator = run(gm, *inputs)
    assert_same(outputs, expected_outputs)
    # A plain tensor attribute becomes a buffer of the copy, as GraphModule has it.
    assert_same({name: state[name] for name in expected_state}, expected_state)
    assert torch.equal(generator, expected_generator)


def assert_same(left: Any, right: Any) -> None:
    """Equal structure, and equal leaves, to the bit."""
    left_leaves, left_structure = pytree.tree_flatten(left)
    right_leaves, right_structure = pytree.tree_flatten(right)
    assert left_structure == right_structure
    for one, other in zip(left_leaves, right_leaves):
        if isinstance(one, Tensor):
            assert one.dtype == other.dtype
            assert torch.equal(one, other)
        else:
            assert one == other


def roles(gm: GraphModule, role: str) -> list[Node]:
    return [node for node in gm.graph.nodes if node.meta.get("dtr", {}).get("role") == role]


def peak_above_inputs(gm: GraphModule, *inputs: Tensor) -> int:
    with torch.no_grad():
        gm(*inputs)
        return measure_peak(lambda: gm(*inputs))


class Net(nn.Module):
    """Modules, methods, attributes, a buffer that changes, dropout, an in-place module, nested outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(5))
        self.dropout = nn.Dropout(0.2)
        self.norm = nn.BatchNorm1d(WIDTH)
        self.relu = nn.ReLU(inplace=True)
        self.scale = nn.Parameter(torch.ones(WIDTH))
        self.register_buffer("shift", torch.ones(WIDTH))
        self.table = torch.ones(2, WIDTH)

    def forward(self, x: Tensor) -> dict[str, Any]:
        saved = []
        y = x
        for layer in self.layers:
            y = torch.tanh(layer(y)).view(-1).view_as(x)
            saved.append(y)
        saved.append(self.dropout(y))
        y = self.relu(self.norm(y * self.scale + self.shift + self.table[0]))
        for value in reversed(saved):
            y = y * value.sigmoid()
        return {"y": y.mean(0), "rest": [None, (x, x[:2]), saved[0].sum()]}


def exported(model: nn.Module, x: Tensor) -> GraphModule:
    return torch.export.export(model, (x,)).module()


def decomposed(model: nn.Module, x: Tensor) -> GraphModule:
    return torch.export.export(model, (x,)).run_decompositions().module()


KINDS: dict[str, Callable[[nn.Module, Tensor], GraphModule]] = {
    "symbolic_trace": lambda model, x: symbolic_trace(model),
    "make_fx, fake tensors": lambda model, x: traced(model, x),
    "make_fx, real tensors": lambda model, x: traced(copy.deepcopy(model), x, mode="real"),
    "make_fx, symbolic sizes": lambda model, x: traced(model, x, mode="symbolic"),
    "torch.export": exported,
    "torch.export, decomposed": decomposed,
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_graph_of_a_module(kind: str) -> None:
    torch.manual_seed(0)
    x, other = torch.randn(128, WIDTH), torch.randn(128, WIDTH)
    gm = KINDS[kind](Net(), x)
    rewritten, _ = tightest(gm, [x] if kind == "symbolic_trace" else None)
    assert_same_runs(rewritten, gm, x)
    assert_same_runs(rewritten, gm, other)
    assert rewritten(x)["rest"][1][0] is x


def test_buffers_are_updated_once() -> None:
    x = torch.randn(128, WIDTH)
    for kind in ("symbolic_trace", "torch.export"):
        gm = KINDS[kind](Net(), x)
        rewritten, _ = tightest(gm, [x])
        rewritten(x)
        assert rewritten.state_dict()["norm.num_batches_tracked"] == 1


def test_a_functional_batch_norm_is_not_run_twice() -> None:
    def f(x: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        y = nn.functional.batch_norm(x, mean, var, training=True)
        return chain(y)

    x = torch.randn(512, 512)
    for gm, example in (
        (symbolic_trace(f), [x, torch.zeros(512), torch.ones(512)]),
        (traced(f, x, torch.zeros(512), torch.ones(512)), None),
    ):
        rewritten, _ = tightest(gm, example)
        statistics = [(torch.zeros(512), torch.ones(512)) for _ in range(2)]
        assert torch.equal(rewritten(x, *statistics[0]), gm(x, *statistics[1]))
        assert_same(statistics[0], statistics[1])


def test_joint_graph_of_aot_export() -> None:
    def f(x: Tensor, w: Tensor) -> tuple[Tensor]:
        for _ in range(4):
            x = torch.tanh(x @ w).sin()
        return (x.cos().sum(),)

    inputs = [torch.randn(WIDTH, WIDTH, requires_grad=True) for _ in range(2)]
    joint = aot_export_joint_simple(f, inputs, trace_joint=True)
    rewritten, _ = tightest(joint)
    tangents = [torch.ones(())]
    assert_same(rewritten(inputs, tangents), joint(inputs, tangents))


def test_joint_graph_in_a_partition_function() -> None:
    """What transform makes of a joint graph can be split and trained with."""
    torch.manual_seed(0)
    layers = ([nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Dropout(0.3)] for _ in range(4))
    model = nn.Sequential(*(module for layer in layers for module in layer))
    x = torch.randn(256, WIDTH)
    reports = []

    def partition(joint: GraphModule, inputs: Any, **facts: Any) -> tuple[GraphModule, GraphModule]:
        rewritten, report = tightest(joint)
        reports.append(report)
        return default_partition(rewritten, inputs, **facts)

    def gradients(partition_fn: Callable[..., Any]) -> list[Tensor]:
        names = list(dict(model.named_parameters()))

        def loss(x: Tensor, *parameters: Tensor) -> Tensor:
            return torch.func.functional_call(model, dict(zip(names, parameters)), (x,)).square().sum()

        compiled = aot_function(loss, fw_compiler=nop, bw_compiler=nop, partition_fn=partition_fn)
        torch.manual_seed(1)
        return list(torch.autograd.grad(compiled(x, *model.parameters()), list(model.parameters())))

    assert_same(gradients(partition), gradients(default_partition))
    assert len(reports) == 1


@pytest.mark.parametrize("mode", ["fake", "real", "symbolic"])
def test_a_write_through_a_view_is_seen(mode: str) -> None:
    """make_fx on real tensors leaves no trace in its metadata of who shares memory."""

    def f(x: Tensor) -> Tensor:
        a = x.sin()
        b = a.cos()
        flat = a.view(-1)
        flat.add_(1)
        return chain(b) + (a * b).sum() + flat.sum()

    rewritten, _ = tightest(traced(f, mib(), mode=mode))
    assert torch.equal(rewritten(mib()), f(mib()))


def test_views_of_parameters_are_no_storages_of_their_own() -> None:
    torch.manual_seed(0)
    model = nn.Linear(512, 512)
    x = mib()
    _, report = tightest(traced(lambda x: chain(model(x)) + model(x).sum(), x))
    transposed = [storage for storage in report.storages if storage.name.startswith("t")]
    assert {storage.nbytes for storage in transposed} <= {0, MiB}
    assert report.constants == 2 * MiB + 512 * 4


def test_the_measured_peak_is_the_planned_one() -> None:
    x = mib()
    gm = traced(chain, x)
    for budget in (1.0, 0.6):
        rewritten, report = dtr_fx.transform(gm, budget)
        assert report.planned_peak <= report.budget == int(budget * report.baseline_peak)
        assert peak_above_inputs(rewritten, x) == pytest.approx(report.planned_peak - MiB, abs=256)
    assert peak_above_inputs(gm, x) == pytest.approx(report.baseline_peak - MiB, abs=256)


def test_a_budget_of_the_whole_peak_changes_nothing() -> None:
    gm = traced(chain, mib())
    rewritten, report = dtr_fx.transform(gm, 1.0)
    assert [node.target for node in rewritten.graph.nodes] == [node.target for node in gm.graph.nodes]
    assert (report.drops, report.recomputes, report.overhead) == (0, 0, 0.0)
    assert report.planned_peak == report.baseline_peak == report.budget


# --- outputs and values ------------------------------------------------------------------------------------


def both(f: Callable[..., Any], *inputs: Any) -> list[tuple[GraphModule, Sequence[Any] | None]]:
    """The function as a graph of functions and as one of ATen operators."""
    return [(symbolic_trace(f), inputs), (traced(f, *inputs), None)]


def test_nested_outputs_with_none_inputs_and_views_of_inputs() -> None:
    def f(x: Tensor, y: Tensor) -> dict[str, Any]:
        a = x.sin()
        return {"loss": chain(a), "more": [None, (x, [y.t(), a.view(-1)]), 7], "empty": (), "again": a}

    x, y = mib(0), mib(1)
    for gm, example in both(f, x, y):
        rewritten, _ = tightest(gm, example)
        outputs = rewritten(x, y)
        assert_same(outputs, f(x, y))
        assert outputs["more"][1][0] is x
        assert outputs["more"][1][1][0].data_ptr() == y.data_ptr()
        assert outputs["more"][1][1][1].data_ptr() == outputs["again"].data_ptr()


def test_dead_code_stays_harmless() -> None:
    def f(x: Tensor) -> Tensor:
        x.exp().log()
        torch.rand_like(x)
        return chain(x)

    x = mib()
    for gm, example in both(f, x):
        rewritten, _ = tightest(gm, example)
        assert_same_runs(rewritten, gm, x)


def test_numbers_read_from_tensors() -> None:
    def f(x: Tensor) -> tuple[Tensor, float]:
        scale = x.sum().item()
        return chain(x * scale) + x.abs().max().item(), scale

    x = mib()
    rewritten, _ = tightest(symbolic_trace(f), [x])
    assert_same(rewritten(x), f(x))


def test_symbolic_sizes_hold_for_other_sizes() -> None:
    def f(x: Tensor) -> tuple[Tensor, int]:
        rows = x.shape[0]
        return chain(x.view(rows * 2, -1)) * rows, rows

    rewritten, _ = tightest(traced(f, mib(), mode="symbolic"))
    for rows in (512, 100):
        assert_same(rewritten(mib()[:rows]), f(mib()[:rows]))


def test_complex_integer_bool_and_empty_tensors() -> None:
    def f(x: Tensor) -> tuple[Any, ...]:
        spectrum = torch.fft.fft(x) * 2
        order = x.argsort()
        pairs = torch.view_as_real(spectrum)
        total = chain(pairs) + spectrum.abs().sum() + spectrum.real.sum() + (x > 0).sum()
        return total, order, x[:0], x[:0].sum(), spectrum.conj(), torch.view_as_complex(pairs), order < 3

    x = mib()
    for gm, example in both(f, x):
        rewritten, _ = tightest(gm, example)
        assert_same(rewritten(x), f(x))


def test_inputs_that_the_graph_changes() -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        a = x.sin()
        b = (a + y).cos()
        x.add_(1)
        y[0].zero_()
        return chain(b) + (a * x).sum() + y.sum(), x

    for gm, example in both(f, mib(0), mib(1)):
        rewritten, _ = tightest(gm, example)
        inputs, expected = [mib(0), mib(1)], [mib(0), mib(1)]
        outputs = rewritten(*inputs)
        assert_same(outputs, f(*expected))
        assert_same(inputs, expected)
        assert outputs[1] is inputs[0]


def test_inputs_that_share_memory() -> None:
    def f(x: Tensor, flat: Tensor) -> Tensor:
        a = x.sin()
        flat.mul_(2)
        return chain(a) + (a * x).sum()

    x, y = mib(), mib()
    rewritten, report = tightest(symbolic_trace(f), [x, x.view(-1)])
    assert report.constants == MiB
    assert torch.equal(rewritten(x, x.view(-1)), f(y, y.view(-1)))
    assert torch.equal(x, y)


def test_gradients_flow_through_a_rewritten_graph() -> None:
    """Recomputed dropout draws the first mask again, and autograd sees through it."""
    torch.manual_seed(0)
    gm = symbolic_trace(Net())
    x = torch.randn(128, WIDTH, requires_grad=True)
    _, tight = tightest(gm, [x])
    rewritten, report = dtr_fx.transform(
        gm,
        (tight.budget + tight.baseline_peak) // 2,
        planner="online",
        costs=lambda node: 1e-4 if "dropout" in node.name else 1.0,
        example_inputs=[x],
    )
    assert any("dropout" in event.origin for event in report.events if event.kind == "recompute")

    def gradients(gm: GraphModule) -> tuple[Tensor, list[Tensor]]:
        torch.manual_seed(1)
        y = copy.deepcopy(gm)(x)["y"]
        return y, list(torch.autograd.grad(y.square().sum(), [x]))

    (y, found), (expected_y, expected) = gradients(rewritten), gradients(gm)
    assert torch.equal(y, expected_y)
    # A value and its recomputation each pass on a part of the gradient: another order of additions.
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-7)


# --- the rewritten graph ------------------------------------------------------------------------------------


def test_recomputes_say_what_they_are() -> None:
    gm = traced(chain, mib())
    rewritten, report = tightest(gm)
    originals = {node.name: node for node in gm.graph.nodes}
    names = [node.name for node in rewritten.graph.nodes]
    assert len(set(names)) == len(names)
    assert len(roles(rewritten, "recompute")) == report.recomputes
    for node in roles(rewritten, "recompute"):
        origin = originals[node.meta["dtr"]["origin"]]
        assert re.fullmatch(rf"{origin.name}_recompute(_\d+)?", node.name)
        assert node.target == origin.target
        assert node.meta["dtr"]["reason"]
    for node in roles(rewritten, "drop"):
        assert node.name.startswith(f"drop_{node.meta['dtr']['origin']}")


def test_drop_nodes_survive_dead_code_elimination() -> None:
    x = mib()
    rewritten, report = tightest(traced(chain, x))
    assert len(roles(rewritten, "drop")) == report.drops
    rewritten.graph.eliminate_dead_code()
    rewritten.graph.lint()
    rewritten.recompile()
    assert len(roles(rewritten, "drop")) == report.drops
    assert torch.equal(rewritten(x), chain(x))
    assert peak_above_inputs(rewritten, x) == pytest.approx(report.planned_peak - MiB, abs=256)


def test_print_readable_shows_the_roles() -> None:
    rewritten, _ = tightest(traced(chain, mib()))
    text = rewritten.print_readable(print_output=False, additional_meta=["dtr"])
    recompute, drop = roles(rewritten, "recompute")[0], roles(rewritten, "drop")[0]
    for node, role in ((recompute, "recompute"), (drop, "drop")):
        line = next(line for line in text.splitlines() if re.search(rf"\b{node.name}\b.*=", line))
        above = text[: text.index(line)].splitlines()[-3:]
        assert any(role in shown and node.meta["dtr"]["origin"] in shown for shown in [*above, line])


def test_events_are_the_nodes_in_order() -> None:
    rewritten, report = tightest(traced(chain, mib()))
    nodes = [n for n in rewritten.graph.nodes if n.op.startswith("call") and not is_selection(n)]
    assert [event.name for event in report.events] == [node.name for node in nodes]
    kinds = [node.meta.get("dtr", {}).get("role", "compute") for node in nodes]
    assert [event.kind for event in report.events] == kinds
    live = {point.name: point.live for point in report.after}
    for event in report.events:
        assert event.live == live.get(event.name, event.live)
    assert max(live.values()) == report.planned_peak


def test_the_report_survives_json() -> None:
    _, report = tightest(traced(chain, mib()))
    assert Report.from_json(report.to_json()) == report


def test_a_rewritten_graph_can_be_rewritten_again() -> None:
    x = mib()
    once, first = dtr_fx.transform(traced(chain, x), 0.8)
    twice, second = tightest(once)
    assert second.baseline_peak == first.planned_peak
    assert second.planned_peak < first.planned_peak
    assert torch.equal(twice(x), chain(x))


def test_copies_of_a_rewritten_graph() -> None:
    x = mib()
    rewritten, report = tightest(traced(chain, x))
    copied = copy.deepcopy(rewritten)
    assert torch.equal(copied(x), chain(x))
    assert len(roles(copied, "drop")) == report.drops


def described(gm: GraphModule) -> Any:
    return (
        gm.code,
        [(node.op, node.name, node.target, sorted(node.meta)) for node in gm.graph.nodes],
        [id(node.meta.get("val")) for node in gm.graph.nodes],
        copy.deepcopy(gm.state_dict()),
        gm.training,
    )


def test_the_original_is_left_untouched() -> None:
    x = torch.randn(128, WIDTH)
    for kind, make in KINDS.items():
        gm = make(Net(), x)
        before, generator, kept = described(gm), torch.get_rng_state(), x.clone()
        tightest(gm, [x] if kind == "symbolic_trace" else None)  # fails once, then fits
        after = described(gm)
        assert after[:3] == before[:3]
        assert_same(after[3], before[3])
        assert torch.equal(torch.get_rng_state(), generator)
        assert torch.equal(x, kept)


_TWICE = """
import dataclasses, hashlib, torch, dtr_fx
from test_transform import WIDTH, Net, tightest, traced
torch.manual_seed(0)
gm = traced(Net(), torch.randn(128, WIDTH))
_, tight = tightest(gm)
for planner, heuristic in [("search", "next-use"), *(("online", name) for name in dtr_fx.HEURISTICS)]:
    options = {"planner": planner, "heuristic": heuristic, "plan_seconds": 0.05}
    rewritten, report = dtr_fx.transform(gm, (tight.budget + tight.baseline_peak) // 2, **options)
    text = rewritten.code + dataclasses.replace(report, seconds={}).to_json()
    print(planner, heuristic, report.recomputes, hashlib.sha256(text.encode()).hexdigest())
"""


@pytest.mark.slow
def test_the_same_plan_byte_for_byte() -> None:
    """In processes whose hashes, and so whose sets of strings, are ordered differently."""
    printed = []
    for seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.path.dirname(__file__)}
        done = subprocess.run(
            [sys.executable, "-c", _TWICE], env=environment, capture_output=True, text=True, check=True
        )
        printed.append(done.stdout)
    assert printed[0] == printed[1]
    assert len(printed[0].splitlines()) == 1 + len(dtr_fx.HEURISTICS)
    assert all(int(line.split()[2]) > 0 for line in printed[0].splitlines())


def test_the_same_plan_in_one_process() -> None:
    gm = traced(chain, mib())
    plans = [dtr_fx.transform(gm, 0.7) for _ in range(2)]
    assert plans[0][0].code == plans[1][0].code
    reports = [dataclasses.replace(report, seconds={}).to_json() for _, report in plans]
    assert reports[0] == reports[1]


# --- options and errors -------------------------------------------------------------------------------------


def test_costs_of_ones_own() -> None:
    gm = traced(lambda x: chain(x.view(-1)), mib())
    operators = [node for node in gm.graph.nodes if node.op == "call_function"]
    _, report = dtr_fx.transform(gm, 0.75, costs=lambda node: 1.0)
    assert report.base_cost == len(operators) - 1  # the view makes nothing, so it costs nothing
    assert report.total_cost == report.base_cost + report.recomputes
    assert report.overhead == report.recomputes / report.base_cost > 0


def test_costs_by_name_and_by_target() -> None:
    gm = traced(chain, mib())
    costs = {"sin": 100.0, torch.ops.aten.exp.default: 0.25}
    _, report = dtr_fx.transform(gm, 1.0, costs=costs)
    found = {event.origin: event.cost for event in report.events}
    assert found["sin"] == 100.0
    assert found["exp"] == found["exp_1"] == 0.25
    assert 0 < found["sin_1"] < 1


def test_an_expensive_operator_is_not_recomputed() -> None:
    gm = traced(chain, mib())
    _, cheap = dtr_fx.transform(gm, 0.75)
    recomputed = {event.origin for event in cheap.events if event.kind == "recompute"}
    assert recomputed
    _, dear = dtr_fx.transform(gm, 0.75, costs=dict.fromkeys(recomputed, 1000.0))
    assert not recomputed & {event.origin for event in dear.events if event.kind == "recompute"}


def test_a_graph_without_shapes_says_what_it_needs() -> None:
    with pytest.raises(GraphError, match=r"node sin has no shape: pass example_inputs") as caught:
        dtr_fx.transform(symbolic_trace(chain), 0.5)
    assert isinstance(caught.value, dtr_fx.DTRError)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ((torch.ones(4, 4), torch.ones(4, 4)), r"example_inputs is 2 values; give a tuple of 1: \(x_1\)"),
        ((), "example_inputs is 0 values"),
        (torch.ones(4, 4), "example_inputs is one tensor; give a tuple of 1"),
        ((torch.ones(5, 4),), r"x_1 has shape \(5, 4\), the graph was traced for \(4, 4\)"),
        ((torch.ones(4),), r"x_1 has shape \(4,\)"),
    ],
)
def test_example_inputs_of_another_number_or_shape(inputs: Any, message: str) -> None:
    gm = make_fx(lambda x: x.sin().cos(), tracing_mode="fake")(torch.ones(4, 4))
    with pytest.raises(GraphError, match=message):
        dtr_fx.transform(gm, example_inputs=inputs)


def test_a_module_is_told_what_to_do() -> None:
    with pytest.raises(GraphError, match="Linear is no FX graph: trace it with"):
        dtr_fx.transform(torch.nn.Linear(2, 2))


def test_example_inputs_that_do_not_fit_the_graph() -> None:
    gm = symbolic_trace(lambda x, y: x @ y)
    with pytest.raises(GraphError, match="does not run on the example inputs"):
        dtr_fx.transform(gm, 0.5, example_inputs=[mib(), torch.ones(3, 3)])
    with pytest.raises(GraphError, match="example_inputs is 1 value; give a tuple of 2"):
        dtr_fx.transform(gm, 0.5, example_inputs=[mib()])


def test_an_empty_graph() -> None:
    with pytest.raises(GraphError, match="no operators"):
        dtr_fx.transform(symbolic_trace(lambda x: x), 0.5, example_inputs=[mib()])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heuristic": "dtr-equ"}, "did you mean 'dtr-eq'"),
        ({"heuristic": 3}, "heuristic=3"),
        ({"costs": "rooflines"}, "write 'roofline'"),
        ({"budget": True}, "a bool is no budget"),
        ({"budget": 1.5}, "at most 1"),
        ({"budget": "8Gb"}, "8GiB"),
    ],
)
def test_options_that_cannot_be_understood(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        dtr_fx.transform(traced(chain, mib()), **{"budget": 0.5, **options})


def test_an_impossible_budget_says_what_works() -> None:
    gm = traced(lambda x, w: chain(x @ w), mib(0), mib(1))
    with pytest.raises(InfeasibleBudgetError) as caught:
        dtr_fx.transform(gm, "1MiB")
    error, text = caught.value, str(caught.value)
    assert (error.asked, error.baseline_peak) == (MiB, dtr_fx.transform(gm, 1.0)[1].baseline_peak)
    assert 4 * MiB <= error.lower_bound <= error.smallest < error.baseline_peak
    assert error.pinned["input"] == 2 * MiB
    for figure in (error.asked, error.smallest, error.lower_bound, error.baseline_peak):
        assert f"{figure} bytes" in text
    assert error.operator in {node.name for node in gm.graph.nodes}
    assert error.operator in text
    assert "input 2.00 MiB" in text


def test_the_advice_of_an_impossible_budget_works() -> None:
    gm = traced(chain, mib())
    with pytest.raises(InfeasibleBudgetError) as caught:
        dtr_fx.transform(gm, 0.1)
    size = re.search(r"budget=(\d+)", str(caught.value))
    percent = re.search(r'"(\d+\.\d%)"', str(caught.value))
    assert size is not None
    assert percent is not None
    for budget in (int(size[1]), percent[1]):
        _, report = dtr_fx.transform(gm, budget)
        assert report.planned_peak <= report.budget


def test_the_lower_bound_counts_what_waits_for_the_other_operand() -> None:
    """Whichever of two sums over eight copies comes last, the other sum is there meanwhile."""

    def branches(x: Tensor) -> Tensor:
        return x.sin().repeat(8, 1).sum(0) + x.cos().repeat(8, 1).sum(0)

    gm = make_fx(branches, tracing_mode="fake")(torch.ones(1024))
    _, report = dtr_fx.transform(gm, 1.0)
    nbytes = 4 * 1024
    assert (1 + 8 + 1 + 1) * nbytes <= report.lower_bound <= report.baseline_peak


def test_below_the_lower_bound_nothing_works() -> None:
    gm = traced(chain, mib())
    _, asis = dtr_fx.transform(gm, 1.0)
    with pytest.raises(InfeasibleBudgetError) as caught:
        dtr_fx.transform(gm, asis.lower_bound - 1)
    assert caught.value.lower_bound == asis.lower_bound
    share = asis.lower_bound / asis.baseline_peak / 2
    with pytest.raises(InfeasibleBudgetError) as caught:
        dtr_fx.transform(gm, share)
    assert f"{int(share * asis.baseline_peak)} bytes" in str(caught.value)
    assert f"{asis.lower_bound} bytes" in str(caught.value)
