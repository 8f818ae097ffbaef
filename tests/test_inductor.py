"""Inductor as the executor: the peak that is measured is within the budget, and results are Inductor's own.

The chains are such that Inductor's fusion and its inlining of cheap values would undo a plan, if they were
left alone.
"""

from __future__ import annotations

import copy
import functools
import json
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from functorch.compile import aot_module, nop
from torch import Tensor, nn
from torch._inductor.utils import fresh_cache
from torch.utils.checkpoint import checkpoint

import dtr_fx
from dtr_fx import InfeasibleBudgetError, OptionError, Report, measure_peak
from dtr_fx.cli import main
from dtr_fx.compiler import backend
from dtr_fx.compiler.inductor.partition import Planned
from dtr_fx.planning.options import Options

pytestmark = pytest.mark.little_effort

WIDTH = 256


class Residual(nn.Module):
    """x + inner(x), some times."""

    def __init__(self, make: Callable[[], nn.Module], count: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(make() for _ in range(count))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x.square().mean()


class Attention(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.inward, self.outward = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.inward(self.norm(x)).view(8, -1, 3, 4, WIDTH // 4).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(-1, WIDTH)
        return F.dropout(self.outward(mixed), self.dropout, self.training)


class Gates(nn.Module):
    """Those of an LSTM: going back, one kernel makes the gradient of all four and reads each gate's value."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(WIDTH, 4 * WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        a, b, c, d = self.linear(x).chunk(4, 1)
        return a.sigmoid() * b.tanh() + c.sigmoid() * d.tanh()


def norm_and_matmul() -> nn.Module:
    return nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH))


def gelu_mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))


def attention_and_dropout() -> nn.Module:
    return Attention(dropout=0.2)


def step_of(model: nn.Module, forward: Callable[[Tensor], Tensor], x: Tensor) -> list[Tensor]:
    """Loss and gradients."""
    model.zero_grad(set_to_none=True)
    torch.manual_seed(0)
    loss = forward(x)
    loss.backward()
    found = [loss.detach(), *(parameter.grad for parameter in model.parameters())]
    model.zero_grad(set_to_none=True)
    return found


def fresh(make: Callable[[], nn.Module]) -> tuple[nn.Module, Tensor]:
    """A model and its input, always the same."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    return Residual(make), torch.randn(2048, WIDTH)


@functools.cache
def reference(make: Callable[[], nn.Module]) -> list[Tensor]:
    """What plain Inductor makes of a step."""
    model, x = fresh(make)
    return step_of(model, torch.compile(model), x)


def made(make: Callable[[], nn.Module]) -> tuple[nn.Module, Tensor, list[Tensor]]:
    expected = reference(make)
    return *fresh(make), expected


def bytes_measured(model: nn.Module, forward: Callable[[Tensor], Tensor], x: Tensor) -> int:
    held = x.nbytes + sum(parameter.nbytes for parameter in model.parameters())
    return held + measure_peak(step_of, model, forward, x)


def test_the_measured_peak_is_within_the_budget():
    model, x, expected = made(attention_and_dropout)
    reports: list[Report] = []
    options = {"budget": "65%", "executor": "inductor", "on_report": reports.append}
    forward = torch.compile(model, backend="dtr", options=options)
    torch.testing.assert_close(step_of(model, forward, x), expected)
    [report] = reports
    assert report.recomputes
    assert bytes_measured(model, forward, x) <= report.budget == int(0.65 * report.baseline_peak)


class Words(nn.Module):
    """A loss over many more words than it is wide."""

    def __init__(self, words: int = 8192) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(32, 32), nn.Linear(32, words, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return F.cross_entropy(self.head(x + F.gelu(self.body(x))), x.argmax(1))


def gpt2() -> tuple[nn.Module, Tensor]:
    """That of transformers with its loss, in one graph: without a ``loss_type`` it logs, which breaks it."""
    transformers = pytest.importorskip("transformers")

    class LanguageModel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            sizes = {"vocab_size": 8192, "n_embd": 64, "n_layer": 2, "n_head": 2}
            options = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
            given = transformers.GPT2Config(**sizes, **options, use_cache=False)
            self.inner = transformers.GPT2LMHeadModel(given)
            self.inner.loss_type = "ForCausalLM"

        def forward(self, tokens: Tensor) -> Tensor:
            return self.inner(tokens, labels=tokens).loss

    return LanguageModel(), torch.randint(8192, (2, 256))


@pytest.mark.parametrize(
    ("make", "slices"),
    [
        (lambda: (Words(), torch.randn(512, 32)), "summed"),
        pytest.param(lambda: (Words(), torch.randn(512, 32)), "exact", marks=pytest.mark.slow),
        pytest.param(gpt2, "summed", marks=pytest.mark.slow),
    ],
)
def test_slices_hold_a_budget_below_what_one_operator_needs(make, slices):
    torch.manual_seed(0)
    torch._dynamo.reset()
    model, x = make()
    whole = {"budget": "1%", "executor": "inductor", "slices": "off"}
    with pytest.raises(InfeasibleBudgetError) as off:
        torch.compile(model, backend="dtr", options=whole)(x)
    torch._dynamo.reset()
    expected = step_of(model, model, x)
    reports: list[Report] = []
    options = {"budget": off.value.sliced[slices], "executor": "inductor", "slices": slices}
    forward = torch.compile(model, backend="dtr", options={**options, "on_report": reports.append})
    torch.testing.assert_close(step_of(model, forward, x), expected)
    assert reports[0].slices
    assert all(region.exact for region in reports[0].slices) == (slices == "exact")
    assert bytes_measured(model, forward, x) <= reports[0].budget < off.value.lower_bound


class Skips(nn.Module):
    """What comes down is concatenated with what comes up again, as in a U-Net."""

    def __init__(self, depth: int = 4) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(depth))
        self.up = nn.ModuleList(nn.Linear(2 * WIDTH, WIDTH) for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        skips = []
        for layer in self.down:
            x = layer(x).relu()
            skips.append(x)
        for layer, skip in zip(self.up, reversed(skips)):
            x = layer(torch.cat((skip, x.relu()), 1))
        return x


@pytest.mark.parametrize(("make", "count", "budget"), [(Skips, 1, "65%"), (Gates, 3, "65%")])
def test_a_concatenation_takes_what_is_planned(make, count, budget):
    torch.manual_seed(0)
    torch._dynamo.reset()
    model, x = Residual(make, count), torch.randn(2048, WIDTH)
    reports: list[Report] = []
    options = {"budget": budget, "executor": "inductor", "on_report": reports.append}
    forward = torch.compile(model, backend="dtr", options=options)
    step_of(model, forward, x)
    [report] = reports
    assert report.recomputes
    assert bytes_measured(model, forward, x) <= report.budget


def test_a_view_runs_nothing_so_it_needs_no_extra_workspace():
    model, x = Residual(gelu_mlp), torch.randn(8, 256, WIDTH)
    extra_workspace = {f"view_{number}": 2**40 for number in range(99)}
    partition = Planned(Options(budget="60%", executor="inductor"), extra_workspace)
    aot_module(model, fw_compiler=nop, bw_compiler=nop, partition_fn=partition)(x).backward()
    assert partition.report is not None
    assert partition.report.recomputes


@pytest.mark.parametrize("partition", [dtr_fx.Partitioner("90%"), dtr_fx.partition_fn("90%")])
def test_compilers_that_undo_the_plan_are_told_of_once(partition, caplog):
    model, x = nn.Sequential(*(nn.Linear(8, 8) for _ in range(4))), torch.randn(64, 8)
    step = aot_module(model, fw_compiler=nop, bw_compiler=nop, partition_fn=partition)
    for _ in range(2):
        step(x).sum().backward()
    [warning] = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert "the budget (90%) is not in force" in warning
    assert "dtr_fx.boxed_compiler" in warning


def test_a_share_is_of_the_peak_with_checkpoints():
    class Checkpointed(nn.Module):
        def __init__(self, is_marked):
            super().__init__()
            self.blocks = nn.ModuleList(gelu_mlp() for _ in range(2))
            self.is_marked = is_marked

        def forward(self, x):
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False) if self.is_marked else block(x)
            return x.sum()

    x, budgets = torch.randn(8, 64, WIDTH), {}
    for is_marked in (False, True):
        torch._dynamo.reset()
        reports: list[Report] = []
        options = {"budget": "95%", "executor": "inductor", "on_report": reports.append}
        model = Checkpointed(is_marked)
        step_of(model, torch.compile(model, backend="dtr", options=options), x)
        budgets[is_marked] = reports[-1].budget
    assert budgets[True] < budgets[False]


def convolutions() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(16, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        nn.Conv2d(16, 16, 1),
    )


@pytest.mark.slow
def test_every_gradient_of_convolutions_and_pooling():
    torch.manual_seed(0)
    torch._dynamo.reset()
    stem = nn.Sequential(
        nn.Conv2d(3, 16, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2, padding=1),
    )
    model, x = nn.Sequential(stem, Residual(convolutions, 10)), torch.randn(16, 3, 64, 64)
    exact = copy.deepcopy(model).double()
    expected = step_of(exact, exact, x.double())
    reports: list[Report] = []
    options = {"budget": "50%", "executor": "inductor", "on_report": reports.append}
    forward = torch.compile(model, backend="dtr", options=options)
    for ours, theirs in zip(step_of(model, forward, x), expected):
        # A maximum or a sign may flip by rounding; before batch norms a bias has no gradient at all.
        assert (ours - theirs).norm() <= 0.01 * max(theirs.norm(), 0.01)
    [report] = reports
    assert report.recomputes
    assert bytes_measured(model, forward, x) <= report.budget


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("make", [norm_and_matmul, gelu_mlp, attention_and_dropout])
def test_the_measured_peak_is_within_the_budget_on_a_gpu(make):
    torch.manual_seed(0)
    torch._dynamo.reset()
    model, x = Residual(make, 6).cuda(), torch.randn(8192, WIDTH, device="cuda")
    expected = step_of(model, torch.compile(model), x)
    torch._dynamo.reset()
    reports: list[Report] = []
    options = {"budget": "50%", "executor": "inductor", "on_report": reports.append}
    forward = torch.compile(model, backend="dtr", options=options)
    torch.testing.assert_close(step_of(model, forward, x), expected, rtol=1e-3, atol=1e-3)
    assert reports[0].recomputes
    assert bytes_measured(model, forward, x) <= reports[0].budget


def test_at_its_own_peak_a_step_is_plain_inductors():
    model, x, expected = made(norm_and_matmul)
    reports: list[Report] = []
    options = {"executor": "inductor", "on_report": reports.append}
    found = step_of(model, torch.compile(model, backend="dtr", options=options), x)
    assert all(map(torch.equal, found, expected))
    assert not reports[0].recomputes


def test_what_does_not_fit_is_an_error_and_leaves_no_setting_behind():
    model, x = fresh(norm_and_matmul)
    before = torch._inductor.config.get_config_copy()
    with pytest.raises(InfeasibleBudgetError):
        step_of(model, torch.compile(model, backend="dtr", options={"budget": 1, "executor": "inductor"}), x)
    assert torch._inductor.config.get_config_copy() == before


def test_by_default_inductor_compiles_where_it_can_and_its_kernels_fit(monkeypatch, caplog):
    monkeypatch.setattr(backend, "_default_executor", lambda *_: "inductor if it fits")
    model, x, expected = made(norm_and_matmul)
    found = step_of(model, torch.compile(model, backend="dtr", options={"budget": "80%"}), x)
    torch.testing.assert_close(found, expected)
    assert "runs eagerly" not in caplog.text
    torch._dynamo.reset()
    smallest = dtr_fx.explain(model, (x,), budget="80%")[0].lower_bound
    with pytest.raises(InfeasibleBudgetError):
        step_of(model, torch.compile(model, backend="dtr", options={"budget": smallest // 2}), x)
    assert "runs eagerly" in caplog.text


def test_on_a_cpu_a_step_runs_eagerly():
    gm = torch.fx.symbolic_trace(lambda x: x.sin())
    assert backend._default_executor(gm, [torch.ones(2)], Options()) == "eager"


def test_a_partitioner_for_the_stock_backend():
    model, x, expected = made(gelu_mlp)
    plain = bytes_measured(model, torch.compile(model), x)
    torch._dynamo.reset()
    reports: list[Report] = []
    partitioner = dtr_fx.Partitioner(budget="60%", on_report=reports.append)
    forward = torch.compile(model, options={"custom_partitioner_fn": partitioner})
    with fresh_cache():
        torch.testing.assert_close(step_of(model, forward, x), expected)
    assert reports == [partitioner.report]
    assert reports[0].recomputes
    assert bytes_measured(model, forward, x) < 0.75 * plain


def test_what_a_partitioner_is_cached_by():
    assert dtr_fx.Partitioner("60%").uuid() == dtr_fx.Partitioner("60%").uuid() is not None
    assert dtr_fx.Partitioner("60%").uuid() != dtr_fx.Partitioner("50%").uuid()
    assert dtr_fx.Partitioner("60%", costs=lambda node: 1.0).uuid() is None
    with pytest.raises(OptionError, match="unknown option 'bugdet'"):
        dtr_fx.Partitioner(bugdet="60%")
    with pytest.raises(OptionError, match="leave executor out"):
        dtr_fx.Partitioner(executor="eager")


def test_the_least_memory_for_an_overhead():
    model, x, expected = made(norm_and_matmul)
    reports: list[Report] = []
    options = {"max_overhead": "10%", "executor": "inductor", "on_report": reports.append}
    found = step_of(model, torch.compile(model, backend="dtr", options=options), x)
    torch.testing.assert_close(found, expected)
    assert 0 < reports[0].overhead <= 0.1
    assert reports[0].planned_peak < reports[0].baseline_peak


def test_a_second_compilation_is_read_from_the_cache():
    with fresh_cache():
        for expected_hits in (0, 2):
            torch._dynamo.reset()
            torch._dynamo.utils.counters.clear()
            torch.manual_seed(0)
            model, x, reports = Residual(gelu_mlp, 2), torch.randn(1024, WIDTH), []
            options = {"budget": "80%", "executor": "inductor", "on_report": reports.append}
            step_of(model, torch.compile(model, backend="dtr", options=options), x)
            assert reports[0].recomputes
            assert torch._dynamo.utils.counters["inductor"]["fxgraph_cache_hit"] == expected_hits


def test_inference_runs_as_plain_inductor_has_it():
    model, x = fresh(norm_and_matmul)
    with torch.no_grad():
        expected = torch.compile(model)(x)
        torch._dynamo.reset()
        options = {"budget": "60%", "executor": "inductor"}
        assert torch.equal(torch.compile(model, backend="dtr", options=options)(x), expected)


def test_a_mode_is_an_error():
    with pytest.raises(OptionError, match="leave the mode out"):
        torch.compile(nn.Linear(2, 2), backend="dtr", mode="reduce-overhead")(torch.ones(2, 2))


@pytest.fixture
def target(tmp_path):
    path = tmp_path / "model.py"
    path.write_text(
        "import torch\n"
        "from torch import nn\n"
        "def factory(layers):\n"
        "    layers = [layer for _ in range(layers) for layer in (nn.Linear(64, 64), nn.GELU())]\n"
        "    return nn.Sequential(*layers), torch.randn(1024, 64)\n"
    )
    return f"{path}:factory"


@pytest.mark.slow
def test_the_benchmark_beside_plain_inductor(target, capsys):
    command = ["bench", "steps", target, "--executor", "inductor", "--arg", "layers=6", "--budgets", "60%"]
    assert main([*command, "--pairs", "1", "--json"]) == 0
    [whole, part] = json.loads(capsys.readouterr().out)[0]["rows"]
    assert whole["measured"] == whole["plain"]
    assert part["measured"] <= part["allowed"] < whole["measured"]
    assert part["overhead"] > 0
    assert part["difference"] < 1e-5


@pytest.mark.slow
def test_the_benchmark_of_what_plans_expect(target, capsys):
    command = ["bench", "costs", target, "--fusion", "--arg", "layers=6", "--budgets", "60%", "--pairs", "1"]
    assert main([*command, "--json"]) == 0
    plans = json.loads(capsys.readouterr().out)[0]["rows"]
    assert [plan["made_by"] for plan in plans] == ["kernels", "operators", "count"]
    assert all(plan["by_kernels"] > 0 and plan["by_operators"] > 0 for plan in plans)
    assert plans[0]["by_kernels"] != plans[0]["by_operators"]


def test_sizes_that_vary():
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Residual(gelu_mlp)
    reports: list[Report] = []
    options = {"budget": "80%", "executor": "inductor", "on_report": reports.append}
    step = torch.compile(model, backend="dtr", options=options, dynamic=True)
    for rows in (1024, 768):
        x = torch.randn(rows, WIDTH)
        torch.testing.assert_close(step_of(model, step, x), step_of(model, model, x))
    assert [report.recomputes > 0 for report in reports] == [True, True]


class Counting(nn.Module):
    """Scales by a buffer, which it then changes."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(64, 64), nn.GELU()) for _ in range(4)))
        self.scale: Tensor
        self.register_buffer("scale", torch.ones(64))

    def forward(self, x: Tensor) -> Tensor:
        scaled = (x * self.scale.cos()).sin()
        with torch.no_grad():
            self.scale.mul_(3)
        return self.layers(scaled).square().mean()


def test_a_buffer_that_the_step_changes_is_read_as_it_was():
    torch.manual_seed(0)
    torch._dynamo.reset()
    model, x = Counting(), torch.randn(512, 64, requires_grad=True)
    expected = torch.autograd.grad(copy.deepcopy(model)(x), x)
    step = torch.compile(model, backend="dtr", options={"budget": "70%", "executor": "inductor"})
    torch.testing.assert_close(torch.autograd.grad(step(x), x), expected)


@torch._functorch.config.patch(donated_buffer=False)
def test_two_backward_passes_through_one_graph():
    model, x, expected = made(gelu_mlp)
    model.zero_grad()
    loss = torch.compile(model, backend="dtr", options={"budget": "60%", "executor": "inductor"})(x)
    loss.backward(retain_graph=True)
    loss.backward()
    torch.testing.assert_close([parameter.grad / 2 for parameter in model.parameters()], expected[1:])


class Halves(nn.Module):
    """Two graphs, as there is a break between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Sequential(*(gelu_mlp() for _ in range(2))) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).sin()
        torch._dynamo.graph_break()
        return self.second(x).square().mean()


def test_the_graphs_of_a_step_share_a_budget() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    model, x = Halves(), torch.randn(1024, WIDTH)
    expected = step_of(model, model, x)
    budget = int(0.7 * bytes_measured(model, model, x))
    reports: list[Report] = []
    options = {"budget": budget, "executor": "inductor", "plan_seconds": 0.02, "on_report": reports.append}
    forward = torch.compile(model, backend="dtr", options=options)
    for _ in range(3):
        torch.testing.assert_close(step_of(model, forward, x), expected)
    planned = len(reports)
    assert bytes_measured(model, forward, x) <= budget
    assert len(reports) == planned
    assert max(report.recomputes for report in reports[-2:]) > 0
