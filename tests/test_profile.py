"""Costs by profile: what is timed, what is not, what stays on disk, and what ``dtr-fx bench costs`` says."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node, symbolic_trace
from torch.fx.experimental.proxy_tensor import make_fx

import dtr_fx
from dtr_fx import OptionError
from dtr_fx.cli import main
from dtr_fx.cli.bench.costs import OperatorCost, fit
from dtr_fx.costs.measure import measure_peak
from dtr_fx.costs.profile import Profile
from dtr_fx.costs.roofline import resolve, roofline
from dtr_fx.costs.timings import Timings
from dtr_fx.inspect.diff import render_diff
from dtr_fx.passes.propagate import propagate
from dtr_fx.units import format_seconds

pytestmark = pytest.mark.little_effort

CPU = torch.device("cpu")
MODEL = """
import torch
from torch import nn

def factory():
    return nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.GELU()), torch.randn(32, 16)
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("DTR_CACHE", str(folder))
    return folder


runs = 0


@torch.library.custom_op("dtr_fx_test_profile::counted", mutates_args=())
def counted(x: Tensor) -> Tensor:
    """It says how often it really ran."""
    global runs
    runs += 1
    return x + 1


@torch.library.custom_op("dtr_fx_test_profile::picky", mutates_args=())
def picky(x: Tensor) -> Tensor:
    """It does not run on made-up values."""
    if not (x > 1).all():
        raise ValueError("too small")
    return x + 1


@torch.library.custom_op("dtr_fx_test_profile::accumulate", mutates_args={"total"})
def accumulate(total: Tensor, x: Tensor) -> Tensor:
    global runs
    runs += 1
    return total.add_(x).clone()


@torch.library.custom_op("dtr_fx_test_profile::noted", mutates_args=())
def noted(x: Tensor) -> None:
    """It returns nothing."""
    global runs
    runs += 1


counted.register_fake(torch.empty_like)
noted.register_fake(lambda x: None)
picky.register_fake(torch.empty_like)
accumulate.register_fake(lambda total, x: torch.empty_like(x))


def traced(function: Callable[..., object], *inputs: Tensor, mode: str = "fake") -> GraphModule:
    return make_fx(function, tracing_mode=mode)(*inputs)


def profile_of(gm: GraphModule) -> tuple[Profile, dict[str, float]]:
    profile = Profile(CPU, roofline(CPU))
    return profile, {node.name: profile(node) for node in calls(gm)}


def calls(gm: GraphModule) -> list[Node]:
    return [node for node in gm.graph.nodes if node.op.startswith("call")]


def step(x: Tensor, weight: Tensor) -> Tensor:
    return torch.native_dropout(F.gelu(x @ weight), 0.5, True)[0].t().sum(0)


def files(folder: Path) -> dict[str, tuple[int, bytes]]:
    return {file.name: (file.stat().st_mtime_ns, file.read_bytes()) for file in folder.iterdir()}


# What a profile says


def test_a_large_matmul_costs_much_more_than_a_small_one() -> None:
    def function(small: Tensor, large: Tensor) -> tuple[Tensor, Tensor]:
        return small @ small, large @ large

    _, costs = profile_of(traced(function, torch.ones(4, 4), torch.ones(768, 768)))
    assert costs["mm_1"] > 10 * costs["mm"] > 0


def test_operators_cost_time_and_views_none() -> None:
    def function(x: Tensor) -> Tensor:
        return x.exp().view(-1).relu().view(8, 8).t()

    _, costs = profile_of(traced(function, torch.ones(8, 8)))
    assert {name for name, cost in costs.items() if cost == 0} == {"view", "view_1", "t"}
    assert all(costs[name] > 0 for name in ("exp", "relu"))


def test_each_distinct_operator_is_timed_once() -> None:
    def function(x: Tensor, tall: Tensor) -> tuple[Tensor, ...]:
        # Twice the same; another layout; another number; another operand; another type.
        same = (x.exp(), x.exp())
        return (*same, x.t().exp(), tall.exp(), x + 1, x + 2, x * x, x * same[0], x.double().exp())

    profile, costs = profile_of(traced(function, torch.ones(4, 8), torch.ones(8, 8)))
    assert costs["exp"] == costs["exp_1"]
    # 4 × exp, add 1, add 2, x * x, x * y, conversion
    assert profile.tally.timed == 9
    assert profile.tally.known == 0


def test_indices_and_masks_are_valid() -> None:
    def function(table: Tensor, rows: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        read = F.embedding(rows, table)
        return read, table[rows], table.gather(0, rows[:, None]), torch.where(mask, read, 0.0)

    inputs = (torch.ones(5, 3), torch.tensor([4, 2]), torch.tensor([[True], [False]]))
    gm = traced(function, *inputs)
    profile, costs = profile_of(gm)
    assert {"embedding", "index", "gather", "where"} <= {name for name, cost in costs.items() if cost > 0}
    assert profile.tally.timed == sum(cost > 0 for cost in costs.values())


def test_modules_are_timed_on_parameters_of_their_own() -> None:
    model = nn.Sequential(nn.Linear(256, 256), nn.BatchNorm1d(256), nn.Dropout(), nn.Linear(256, 2))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    gm = symbolic_trace(model)
    propagate(gm, [torch.ones(512, 256)])
    generator = torch.get_rng_state()
    profile, costs = profile_of(gm)
    assert profile.tally.timed == 3  # batch norm writes its statistics, and is not run
    assert all(cost > 0 for cost in costs.values())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), generator)


def test_modules_that_differ_in_a_number_are_not_the_same() -> None:
    class Attending(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.few, self.many = (nn.MultiheadAttention(16, heads) for heads in (2, 8))

        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            return self.few(x, x, x)[0], self.many(x, x, x)[0]

    gm = symbolic_trace(Attending())
    propagate(gm, [torch.ones(4, 2, 16)])
    profile, _ = profile_of(gm)
    assert profile.tally.timed == 2


def test_functions_and_methods_are_timed() -> None:
    def function(x: Tensor) -> Tensor:
        return F.dropout(torch.add(x.exp(), 1).softmax(dim=-1) * 2, 0.5).permute(1, 0)

    gm = symbolic_trace(function)
    propagate(gm, [torch.ones(16, 16)])
    profile, costs = profile_of(gm)
    assert profile.tally.timed == 5
    assert [name for name, cost in costs.items() if cost == 0] == ["permute"]


def test_a_copy_of_an_input_costs_what_a_clone_does() -> None:
    gm = traced(lambda x: x.clone(), torch.ones(8, 8))
    profile, costs = profile_of(gm)
    (given,) = gm.graph.find_nodes(op="placeholder")
    assert profile(given) == costs["clone"]


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(OptionError, match="'roofline'"):
        resolve("profile", torch.device("meta"))


# What it leaves alone


def test_generators_stay_as_they_were() -> None:
    own = torch.Generator().manual_seed(1)

    module = nn.Module()
    module.own = own
    graph = Graph()
    x = graph.placeholder("x")
    drawn = [graph.call_function(function, (x,)) for function in (torch.bernoulli, torch.rand_like)]
    chosen = graph.call_function(torch.bernoulli, (x,), {"generator": graph.get_attr("own")})
    graph.output((*drawn, chosen))
    gm = GraphModule(module, graph)
    propagate(gm, [torch.full((8, 8), 0.5)])
    states = torch.get_rng_state(), own.get_state()
    profile, costs = profile_of(gm)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert torch.equal(own.get_state(), states[1])
    assert profile.tally.timed == 2  # the operator with the user's generator is not run
    assert all(cost > 0 for cost in costs.values())


def test_operators_run_while_tracing_on_real_tensors() -> None:
    gm = traced(step, torch.ones(64, 64), torch.ones(64, 64))
    with FakeTensorMode():
        profile, costs = profile_of(gm)
        assert torch.is_grad_enabled()
        assert type(torch.ones(1)) is not Tensor  # the mode is on again
    assert profile.tally.timed == 4
    assert costs["mm"] > 0


def test_dynamic_sizes_stand_for_those_at_hand() -> None:
    inputs = torch.ones(64, 32), torch.ones(32, 16)
    _, costs = profile_of(traced(step, *inputs))
    profile, again = profile_of(traced(step, *inputs, mode="symbolic"))
    assert profile.tally.timed == 0
    assert [cost for cost in again.values() if cost] == [cost for cost in costs.values() if cost]


# What cannot be run alone


def test_what_fails_is_estimated_in_proportion(caplog: pytest.LogCaptureFixture) -> None:
    def function(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        return picky(x), picky(y), x.exp(), y.exp()

    gm = traced(function, torch.full((64, 64), 2.0), torch.full((512, 512), 2.0))
    with caplog.at_level(logging.DEBUG, "dtr_fx"):
        profile, costs = profile_of(gm)
    assert profile.tally.timed == 2
    assert "too small" in caplog.text
    estimate = {node.name: roofline(CPU)(node) for node in calls(gm)}
    assert costs["picky_1"] / costs["picky"] == pytest.approx(estimate["picky_1"] / estimate["picky"])
    measured = costs["exp"] + costs["exp_1"]
    assert costs["picky"] / measured == pytest.approx(
        estimate["picky"] / (estimate["exp"] + estimate["exp_1"])
    )


def test_what_writes_is_not_run() -> None:
    global runs
    gm = traced(lambda total, x: accumulate(total, x.exp()), torch.ones(4), torch.ones(4), mode="real")
    runs = 0
    profile, costs = profile_of(gm)
    assert runs == 0
    assert profile.tally.timed == 1
    assert costs["accumulate"] > 0


def test_what_is_too_large_is_not_made() -> None:
    with FakeTensorMode() as mode:
        x = torch.empty(1 << 45)
    gm = make_fx(lambda x: (x.exp(), x[:4].exp()))
    with mode:
        traced_gm = gm(x)
    profile, costs = profile_of(traced_gm)
    assert profile.tally.timed == 1
    assert costs["exp"] > costs["exp_1"] > 0


# What stays on disk


def test_what_was_timed_before_is_not_run_again(cache: Path) -> None:
    global runs
    gm = traced(lambda x: counted(x.exp()), torch.ones(4), mode="real")
    runs = 0
    first, costs = profile_of(gm)
    assert runs > 0
    written = files(cache)
    runs = 0
    second, again = profile_of(gm)
    assert runs == 0
    assert files(cache) == written
    assert (first.tally.timed, second.tally.timed) == (2, 0)
    assert (first.tally.known, second.tally.known) == (0, 2)
    assert again == costs


def test_the_number_of_threads_counts() -> None:
    gm = traced(step, torch.ones(8, 8), torch.ones(8, 8))
    profile_of(gm)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        profile, _ = profile_of(gm)
    finally:
        torch.set_num_threads(threads)
    assert profile.tally.known == 0
    assert profile_of(gm)[0].tally.timed == 0


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe", b"[]", b"{}", b'{"seconds": 1}', b'{"seconds": {"a": -1.0}}',
     b'{"seconds": {"a": "b"}}', b'{"seconds": {"a": NaN}}', b'{"seconds": {"a": null}}'],
)  # fmt: skip
def test_a_damaged_file_is_replaced(cache: Path, content: bytes) -> None:
    gm = traced(step, torch.ones(8, 8), torch.ones(8, 8))
    profile_of(gm)
    (file,) = cache.iterdir()
    file.write_bytes(content)
    with pytest.warns(UserWarning, match="is ignored"):
        profile, costs = profile_of(gm)
    assert profile.tally.timed == 4
    assert profile_of(gm)[1] == costs  # without a warning, which would be an error here
    assert list(cache.iterdir()) == [file]


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("DTR_CACHE", str(tmp_path / "file" / "folder"))
    gm = traced(step, torch.ones(8, 8), torch.ones(8, 8))
    with pytest.warns(UserWarning, match="DTR_CACHE"):
        _, costs = profile_of(gm)
    assert costs["mm"] > 0


def test_two_writers_keep_what_both_found() -> None:
    first, second = Timings(CPU), Timings(CPU)
    first.add({"a": 1.0, "both": 2.0})
    second.add({"b": 3.0, "both": 4.0})
    # Both go on with the time that was there first, as everybody after them will.
    assert second.seconds == Timings(CPU).seconds == {"a": 1.0, "b": 3.0, "both": 2.0}


def test_writers_at_once_lose_nothing_and_readers_never_see_half_a_file(cache: Path) -> None:
    def write(number: int) -> None:
        Timings(CPU).add({f"{number}-{entry}": 1.0 for entry in range(100)})

    with ThreadPoolExecutor(8) as threads:
        # A file that cannot be read is a warning, and so an error here.
        list(threads.map(write, range(64)))
    seconds = Timings(CPU).seconds
    assert len(seconds) == 6400
    assert len(list(cache.iterdir())) == 1


# As users ask for it


class Trained(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers = [layer for _ in range(6) for layer in (nn.Linear(32, 32), nn.GELU(), nn.Dropout(0.2))]
        self.layers = nn.Sequential(nn.Embedding(16, 32), *layers)

    def forward(self, rows: Tensor) -> Tensor:
        return self.layers(rows).square().mean()


def gradients(model: nn.Module, forward: Callable[[Tensor], Tensor]) -> list[Tensor]:
    model.zero_grad()
    torch.manual_seed(1)
    forward(torch.arange(512) % 16).backward()
    return [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_compiled_step_has_the_same_gradients(dynamic: bool) -> None:
    torch.manual_seed(0)
    model = Trained()
    expected = gradients(model, torch.compile(model, backend="aot_eager", dynamic=dynamic))
    torch._dynamo.reset()
    reports: list[dtr_fx.Report] = []
    options = {"costs": "profile", "budget": "70%", "on_report": reports.append}
    found = gradients(model, torch.compile(model, backend="dtr", dynamic=dynamic, options=options))
    assert len(found) == len(expected) == 13
    assert all(torch.equal(a, b) for a, b in zip(found, expected))
    assert sum(report.recomputes for report in reports) > 0


def test_a_transformed_graph_has_the_same_gradients() -> None:
    def gradients_of(x: Tensor, weight: Tensor) -> tuple[Tensor, ...]:
        values = [x]
        for _ in range(6):
            values.append(torch.tanh(values[-1] @ weight))
        return torch.autograd.grad(sum(value.exp().sum() for value in reversed(values)), (x, weight))

    inputs = [torch.randn(64, 16, requires_grad=True), torch.randn(16, 16, requires_grad=True)]
    gm = traced(gradients_of, *inputs)
    rewritten, report = dtr_fx.transform(gm, 0.7, costs="profile")
    assert report.recomputes > 0
    assert all(torch.equal(a, b) for a, b in zip(rewritten(*inputs), gm(*inputs)))


def test_the_same_times_give_the_same_plan() -> None:
    def function(x: Tensor) -> Tensor:
        values = [x]
        for layer in range(8):
            values.append(torch.tanh(values[-1]) if layer % 2 else values[-1].exp())
        return sum(values[::-1])

    gm = traced(function, torch.ones(64, 64))
    first, report = dtr_fx.transform(gm, 0.6, costs="profile")
    second, again = dtr_fx.transform(gm, 0.6, costs="profile")
    assert report.recomputes > 0
    assert first.code == second.code
    assert report.overhead == again.overhead


def layers_of(x: Tensor, weight: Tensor) -> Tensor:
    values = [x]
    for _ in range(8):
        values.append(torch.tanh(values[-1] @ weight))
    return sum(value.exp().sum() for value in reversed(values))


def test_small_steps_are_timed_by_default(cache: Path) -> None:
    gm = traced(layers_of, torch.ones(64, 64), torch.ones(64, 64))
    first, report = dtr_fx.transform(gm, 0.6)
    assert report.costs == "profile"
    assert report.base_cost < report.step_before < report.step_after
    second, again = dtr_fx.transform(gm, 0.6)
    assert first.code == second.code
    assert again.step_after == report.step_after
    step = f"step {format_seconds(report.step_before)} → {format_seconds(report.step_after)}, by profile"
    assert step in render_diff(report, width=200)


@pytest.mark.parametrize("switch", ["environment", "option"])
def test_without_kept_times_they_are_estimated(switch: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options: dict[str, object] = {"budget": "60%", "cache": False}
    if switch == "environment":
        monkeypatch.setenv("DTR_CACHE", "off")
        del options["cache"]
    reports: list[dtr_fx.Report] = []
    model = torch.compile(layers_of, backend="dtr", options={**options, "on_report": reports.append})
    model(torch.ones(64, 64), torch.ones(64, 64, requires_grad=True)).backward()
    assert [(report.costs, report.step_before, report.step_after) for report in reports] == [
        ("roofline", None, None)
    ]


class Layers(nn.Module):
    """Linear layers whose inputs are large beside their weights, with a loss."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.Tanh())])

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).square().mean()


class Attention(nn.Module):
    """Transformer layers with dropout, and a loss."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(64, 4, 128, 0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 3, enable_nested_tensor=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).square().mean()


@pytest.mark.parametrize(
    ("model", "shape", "options"),
    [
        (Layers, (4096, 64), {"budget": "100%"}),
        (Layers, (4096, 64), {"budget": "60%"}),
        (Layers, (4096, 64), {"max_overhead": "20%", "slices": "off"}),
        (Attention, (16, 64, 64), {"budget": "45%"}),
    ],
)
def test_the_first_step_keeps_the_budget(
    model: Callable[[], nn.Module], shape: Sequence[int], options: dict[str, object]
) -> None:
    """Timing takes what the budget leaves beside inputs and parameters, which are there before."""
    reports: list[dtr_fx.Report] = []
    options = {**options, "on_report": reports.append}
    forward = torch.compile(model(), backend="dtr", options=options)
    x = torch.randn(shape)
    peak = measure_peak(lambda: forward(x).backward())
    [report] = reports
    assert report.costs == "profile"
    assert report.verdict == "fits"
    assert peak <= report.budget - report.constants


def test_equal_layers_are_timed_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many there are decides neither what is timed nor for how long."""

    def layers(count: int) -> Callable[..., Tensor]:
        def function(x: Tensor, weight: Tensor) -> Tensor:
            for _ in range(count):
                x = torch.tanh(x @ weight)
            return x

        return function

    times = []
    for count in (6, 60):
        monkeypatch.setenv("DTR_CACHE", "off")
        profile, _ = profile_of(traced(layers(count), torch.ones(256, 256), torch.ones(256, 256)))
        assert profile.tally.timed == 2
        times.append(profile.tally.seconds)
    assert times[1] < 5 * times[0]


def test_what_needs_more_than_there_is_room_for_is_estimated() -> None:
    def function(x: Tensor) -> Tensor:
        return x.exp()[:8].exp()

    gm = traced(function, torch.ones(1024, 64))  # 256 KiB
    wide, narrow = (node for node in calls(gm) if node.name.startswith("exp"))
    large, small = (Profile(CPU, roofline(CPU), False, room) for room in (2**20, 2**18))
    assert large.measured(wide)
    assert small.measured(wide) is None
    assert small(wide) / small(narrow) == pytest.approx(roofline(CPU)(wide) / roofline(CPU)(narrow))
    assert small.measured(narrow)


def test_custom_operators_are_timed_only_where_the_user_asks() -> None:
    global runs

    def function(x: Tensor) -> Tensor:
        y = x.exp()
        noted(y)
        return x.sin() * counted(y)

    gm = traced(function, torch.ones(256, 256), mode="real")
    ran = {}
    for costs in ("roofline", "auto", "profile"):
        runs = 0
        report = dtr_fx.transform(gm, costs=costs)[1]
        assert report.costs == ("roofline" if costs == "roofline" else "profile")
        ran[costs] = runs
    assert ran["auto"] == 0
    assert ran["profile"] > 0


def test_verbs_plan_by_the_same_times(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DTR_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "model.py"
    deep = "*[layer for _ in range(6) for layer in (nn.Linear(16, 16), nn.GELU())]), torch.randn(1024, 16)"
    path.write_text(f"{MODEL.partition('nn.Linear')[0]}{deep}")

    def told(*command: str) -> Any:
        assert main([*command, f"{path}:factory", "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    [first], curve, [again] = (
        told("diff", "--budget", "70%"),
        told("sweep", "--budgets", "70%", "--no-rivals"),
        told("diff", "--budget", "70%"),
    )

    def carried_out(report: Any) -> list[Any]:
        # By operators: Dynamo may number a graph's inputs otherwise where it has traced before.
        return [[event[name] for name in ("kind", "name", "cost", "live")] for event in report["events"]]

    assert first["costs"] == "profile"
    assert carried_out(again) == carried_out(first)
    [point] = (point for point in curve["curve"]["points"] if point["budget"] == first["budget"])
    assert point["overhead"] == pytest.approx(first["total_cost"] / first["base_cost"] - 1)


def test_large_steps_are_estimated_by_default() -> None:
    def function(x: Tensor) -> Tensor:
        for _ in range(40):
            x = x @ x
        return x

    gm = traced(function, torch.ones(2048, 2048))  # 3.4 seconds by the roofline
    assert dtr_fx.transform(gm)[1].costs == "roofline"


def test_in_a_graph_writes_in_place_are_timed() -> None:
    def function(x: Tensor, weight: Tensor) -> Tensor:
        product = x @ weight
        torch.ops.aten.copy_.default(x, product)
        return product.exp()

    before = torch.ones(64, 64)
    gm = traced(function, before.clone(), torch.ones(64, 64))
    profile, costs = profile_of(gm)
    [write] = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.copy_.default)
    assert profile.measured(write) == costs[write.name] > 0
    assert profile.tally.timed == 3


def test_in_a_graph_what_communicates_does_not_run() -> None:
    """Nothing is sent while a plan is made: there is no process group here."""
    gm = traced(lambda x: x.exp(), torch.ones(4, 4))
    [exp] = calls(gm)
    with gm.graph.inserting_after(exp):
        sent = gm.graph.call_function(torch.ops._c10d_functional.all_reduce.default, (exp, "sum", "0"))
    sent.meta["val"] = torch.empty_like(exp.meta["val"])
    profile, costs = profile_of(gm)
    assert profile.measured(exp)
    assert profile.measured(sent) is None
    assert costs[sent.name] > 0


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_cuda() -> None:
    device = torch.device("cuda", torch.cuda.current_device())

    def function(x: Tensor, large: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return torch.native_dropout(x, 0.5, True)[0], x @ x, large @ large

    gm = traced(function, torch.ones(8, 8, device=device), torch.ones(4096, 4096, device=device))
    state, reserved = torch.cuda.get_rng_state(device), torch.cuda.memory_reserved(device)
    profile = Profile(device, roofline(device))
    costs = {node.name: profile(node) for node in calls(gm)}
    assert profile.tally.timed == 3
    assert costs["mm_1"] > 10 * costs["mm"] > 0
    assert torch.equal(torch.cuda.get_rng_state(device), state)
    assert torch.cuda.memory_reserved(device) <= reserved
    again = Profile(device, roofline(device))
    assert {node.name: again(node) for node in calls(gm)} == costs
    assert again.tally.timed == 0


# The command


def operators(rooflines: Sequence[float], profiles: Sequence[float]) -> list[OperatorCost]:
    return [OperatorCost("", 1, a, b) for a, b in zip(rooflines, profiles)]


def test_a_roofline_that_is_off_by_one_factor_is_not_off() -> None:
    found = fit(operators([1e-6, 2e-6, 5e-3], [3e-6, 6e-6, 15e-3]))
    assert found.factor == pytest.approx(3)
    assert found.median == pytest.approx(0)
    assert found.ninetieth == pytest.approx(0, abs=1e-9)
    assert found.correlation == pytest.approx(1)


def test_the_error_is_weighted_by_time() -> None:
    """Against each operator repeated as often as it has milliseconds."""
    rooflines, profiles = [1e-3, 4e-3, 2e-3, 9e-3], [2e-3, 3e-3, 5e-3, 1e-3]
    repeated = [(a, b) for a, b in zip(rooflines, profiles) for _ in range(round(1e3 * b))]
    ratios = np.array([math.log(b / a) for a, b in repeated])
    factor = np.quantile(ratios, 0.5, method="inverted_cdf")
    off = np.abs(ratios - factor)
    found = fit(operators(rooflines, profiles))
    assert math.log(found.factor) == pytest.approx(factor)
    assert math.log1p(found.median) == pytest.approx(np.quantile(off, 0.5, method="inverted_cdf"))
    assert math.log1p(found.ninetieth) == pytest.approx(np.quantile(off, 0.9, method="inverted_cdf"))
    assert found.correlation == pytest.approx(np.corrcoef(np.log(repeated).T)[0, 1])


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    target = f"{path}:factory"
    assert main(["bench", "costs", target]) == 0
    times, fitted, worst = capsys.readouterr().out.strip().split("\n\n")
    assert all(table.splitlines()[2].startswith(target) for table in (times, fitted))
    assert worst.startswith(f"worst in {target}")
    assert main(["bench", "costs", target, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["tally"]["timed"] == 0
    assert row["tally"]["known"] == len(row["operators"]) > 4
    assert row["profile"] == pytest.approx(sum(o["runs"] * o["profile"] for o in row["operators"]))
    assert min(row["profile"], row["roofline"], row["graph"], row["eager"]) > 0


def test_the_command_for_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.py"
    path.write_text(MODEL.replace("randn(32, 16)", "randn(1024, 16)"))
    target = f"{path}:factory"
    command = ["bench", "costs", "--steps", target, "--budgets", "100%", "1GiB", "1%", "--pairs", "3"]
    assert main(command) == 0
    head, _, *rows, last = capsys.readouterr().out.strip().splitlines()
    assert head.split("  ")[0] == target
    assert [row.split()[0] for row in rows] == ["100%", "1GiB"]
    assert last.startswith("off by ")
    assert last.endswith("at most")
    assert main([*command, "--json"]) == 0
    [found] = json.loads(capsys.readouterr().out)
    assert all(min(row["told"], row["measured"], row["time_ratio"]) > 0 for row in found["rows"])


def test_a_function_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.py"
    path.write_text("import torch\ndef factory():\n    return torch.relu, torch.ones(2)\n")
    assert main(["bench", "costs", f"{path}:factory"]) == 2
    assert "give a module" in capsys.readouterr().err
