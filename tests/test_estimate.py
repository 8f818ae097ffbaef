"""Devices by name, and what ``dtr-fx estimate`` says of a step on one."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from llama import llama
from torch import Tensor, nn
from torch.nn import functional as F

import dtr_fx
from dtr_fx.cli import main
from dtr_fx.compiler.as_on_card import traced_for
from dtr_fx.compiler.joint import trace
from dtr_fx.costs.devices import CARDS, named_device
from dtr_fx.lab import baselines
from dtr_fx.passes.sizes import extrapolate, put_on
from dtr_fx.planning.judge import judge
from dtr_fx.planning.options import Options
from dtr_fx.planning.planning import Planning, copy_of
from dtr_fx.units import format_bytes

FACTORY = """
import torch
from torch import nn
from torch.nn.functional import cross_entropy

class Net(nn.Module):
    def __init__(self, layers):
        super().__init__()
        block = lambda: nn.Sequential(nn.Linear(256, 512), nn.Tanh(), nn.Dropout(0.1), nn.Linear(512, 256))
        self.blocks = nn.Sequential(*(block() for _ in range(layers)))
    def forward(self, x, y):
        return cross_entropy(self.blocks(x), y)

def make(batch=1000, layers=4):
    with torch.device("meta"):
        return Net(layers), (torch.zeros(batch, 256), torch.zeros(batch, dtype=torch.long))

def fixed():
    return make()

class Pairs(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(64, 8), nn.Linear(64, 8)
    def forward(self, x):
        scores = (self.one(x) @ self.other(x).T).flatten().sigmoid()
        return scores.log().sum()

def pairs(batch=64):
    with torch.device("meta"):
        return Pairs(), torch.zeros(batch, 64)

class Routed(nn.Module):
    def __init__(self):
        super().__init__()
        self.router, self.expert = nn.Linear(64, 2), nn.Linear(64, 64)
    def forward(self, x):
        chosen = self.router(x).softmax(-1)[:, 0].gt(0.5).nonzero().squeeze(-1)
        return x.index_add(0, chosen, self.expert(x[chosen])).tanh().sum()

def routed(batch=64):
    with torch.device("meta"):
        return Routed(), torch.zeros(batch, 64)
"""
CARD = """
memory = 30e6
bandwidth = 1e12
flops = {float32 = 1e13, bfloat16 = 1e14}
"""


@pytest.fixture
def target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "net.py").write_text(FACTORY)
    (tmp_path / "card.toml").write_text(CARD)
    monkeypatch.chdir(tmp_path)
    return "net.py:make"


def estimate(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["estimate", *words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def small_llama(batch: int) -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    sizes = {"width": 64, "layers": 1, "heads": 4, "groups": 2, "hidden": 128}
    return llama(batch, 32, **sizes)


def test_a_step_that_does_not_fit_as_it_is(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = estimate(capsys, target, "--device", "card.toml", "--optimizer", "adamw")
    weights = 4 * 4 * (256 * 512 + 512 + 512 * 256 + 256)
    assert found["bytes"]["parameters"] == found["bytes"]["gradients"] == weights
    assert found["bytes"]["optimizer"] == 2 * weights + 4 * 4 * 4  # two moments, and a count for each tensor
    as_it_is, planned = found["ways"]["as it is"], found["ways"]["dtr_fx"]
    assert as_it_is["asked"]["peak"] > 30e6 >= planned["asked"]["peak"]
    assert 0 < planned["asked"]["overhead"] <= 1 / 3
    assert as_it_is["largest"]["batch"] < 1000 <= planned["largest"]["batch"]
    for way in found["ways"].values():
        assert way["largest"] is None or way["largest"]["peak"] <= 30e6


def test_the_peak_is_that_of_the_batch_when_it_is_traced(
    target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """For a CPU, which counts what operators take for themselves."""
    found = estimate(capsys, target, "--device", "cpu", "--arg", "batch=48", "--arg", "layers=2")
    assert main(["smallest", target, "--arg", "batch=48", "--arg", "layers=2", "--json"]) == 0
    assert found["ways"]["as it is"]["asked"]["peak"] == json.loads(capsys.readouterr().out)["baseline_peak"]


def test_what_is_printed(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", "net.py:fixed", "--device", "t4"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("net.py:fixed on t4: a step fits as it is\n")
    assert "data sheet of NVIDIA T4" in text
    assert "Left out: " in text
    assert 'no argument "batch"' in text


def test_the_page_has_the_tables_and_the_plans(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = [target, "--device", "card.toml", "--optimizer", "adamw", "--html", "page.html"]
    found = estimate(capsys, *words)
    page = Path("page.html").read_text(encoding="utf-8")
    for way, each in found["ways"].items():
        assert f"<td>{html.escape(way)}</td><td>{format_bytes(each['asked']['peak'])}</td>" in page
    batch = found["ways"]["dtr_fx"]["largest"]["batch"]
    for number, why in enumerate(("batch 1000", f"batch {batch}"), 1):
        assert f"graph {number}</button></td><td>{why}</td>" in page
    assert main(["estimate", *words]) == 2
    assert "page.html exists" in capsys.readouterr().err


def test_the_page_of_what_does_not_fit(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("card.toml").write_text(CARD.replace("30e6", "10e6"))
    estimate(capsys, "net.py:fixed", "--device", "card.toml", "--optimizer", "adamw", "--html", "page.html")
    page = Path("page.html").read_text(encoding="utf-8")
    assert "a step does not fit" in page
    assert page.count('id="plan-') == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("estimate net.py:make", "a device is missing: write --device h100"),
        ("estimate net.py:make --device h10", "no device 'h10': write one of cpu, h200, h100"),
        ("estimate net.py:make --device none.toml", "none.toml cannot be read"),
        ("estimate net.py:make --device net.toml", "net.toml: write memory (bytes), bandwidth"),
        ("estimate net.py:make --device h100 --optimizer adm", "torch.optim has no 'adm'"),
        ("estimate net.py:make --device h100 --optimizer optimizer", "torch.optim has no 'optimizer'"),
        ("estimate net.py:make --device h100 --optimizer lbfgs", "what state it has is not known"),
        ("estimate net.py:make --device h100 --optimizer=", "torch.optim has no ''"),
        ("estimate net.py:make --device h100 --arg batch=0", "batch=0 is no number of samples, 1 or more"),
        ("estimate net.py:make --device h100 --arg batch=many", "batch='many' is no number of samples"),
        ("estimate plan.json --device h100", "plan.json is no model"),
        ("diff net.py:make --device h100 --budget 60% --costs profile", "--costs profile times"),
        ("diff plan.json --device h100", "leave --device out"),
        ("diff net.py:make --device h100 --budget 60% --slices summed", "there are no slices for cards"),
        ("show net.py:make --device h100 --budget 5%", "smallest budget that works"),
        ("smallest net.py:make --device flops.toml", "flops.toml: write memory (bytes), bandwidth"),
    ],
)
def test_errors(words: str, said: str, target: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("net.toml").write_text("memory = 1")
    Path("flops.toml").write_text("memory = 1e9\nbandwidth = inf\nflops = 3")
    assert main(words.split()) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("optimizer", "copies"),
    [("sgd", 0), ("sgd momentum=0.9", 1), ("adagrad", 1), ("adam amsgrad=True", 3)],
)
def test_the_state_of_an_optimizer(
    optimizer: str, copies: int, target: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = estimate(capsys, "net.py:fixed", "--device", "h100", "--optimizer", optimizer)["bytes"]
    counts = 4 * 4 * 4 if copies and "sgd" not in optimizer else 0  # of steps, one for each tensor
    assert found["optimizer"] == copies * found["parameters"] + counts


def test_a_setting_that_an_optimizer_refuses(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["estimate", target, "--device", "h100", "--optimizer", "adamw lr=-1"]) == 2
    assert "--optimizer adamw lr=-1: ValueError: Invalid learning rate" in capsys.readouterr().err


def test_what_grows_with_the_square_of_the_batch(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    def asked(batch: int) -> dict[str, Any]:
        found = estimate(capsys, "net.py:pairs", "--device", "card.toml", "--arg", f"batch={batch}")
        ways: dict[str, Any] = found["ways"]["as it is"]
        return ways

    largest = asked(64)["largest"]
    assert asked(largest["batch"])["asked"] == largest
    assert 2 * 4 * largest["batch"] ** 2 < largest["peak"] <= 30e6


def test_what_the_data_tell_is_counted_at_its_most(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["estimate", "net.py:routed", "--device", "card.toml", "--arg", "batch=1000"]
    found = estimate(capsys, *words[1:])
    # Saved are the rows that the expert reads, the results of tanh, and where which row goes.
    assert found["bytes"]["activations"] >= 2 * 4 * 64 * 1000 + 8 * 1000
    assert main(words) == 0
    text = capsys.readouterr().out
    assert "Sizes that only the data tell are counted at the most" in text
    assert "Attention" not in text


def test_another_verb_plans_for_a_device(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["diff", target, "--device", "card.toml", "--budget", "auto", "--json"]) == 0
    [report] = json.loads(capsys.readouterr().out)
    assert report["budget"] == 30_000_000
    assert report["planned_peak"] <= 30_000_000 < report["baseline_peak"]
    assert report["device"] == "cuda (card.toml, which is not here)"


@pytest.mark.parametrize("more", [[], ["--optimizer", "sgd"]], ids=["passes", "whole step"])
def test_the_report_says_what_was_assumed(more: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    file = Path(__file__).parent.parent / "examples/llama.py"
    sizes = "batch=2 length=32 width=64 layers=1 heads=4 groups=2 hidden=128".split()
    words = [word for size in sizes for word in ("--arg", size)]
    assert main(["diff", f"{file}:llama", *words, "--device", "a100-40", "--budget", "100%", *more]) == 0
    told = "on cuda (a100-40, which is not here, flash attention, fused RMS norms);"
    assert told in " ".join(capsys.readouterr().out.split())


def test_every_device_says_where_its_figures_are_from() -> None:
    for name, card in CARDS.items():
        assert card.source, name
        assert named_device(name) == card
        assert card.flops[2] > card.flops[4] > card.flops[8] > 0
        assert card.transfer is not None
        assert card.bandwidth > card.transfer.out > 0


def test_the_documents_table_has_these_figures() -> None:
    page = (Path(__file__).parent.parent / "docs/estimate.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `([\w-]+)` \| (\d.*) \|$", page, re.MULTILINE)
    told = {name: [float(cell.split()[0]) for cell in cells.split(" | ")] for name, cells in rows}
    assert told.keys() == CARDS.keys()
    for name, card in CARDS.items():
        speeds = [card.flops[width] / 1e12 for width in (2, 4, 8)]
        assert told[name] == pytest.approx([card.memory / 2**30, card.bandwidth / 1e12, *speeds])


def test_sizes_of_a_batch_are_those_that_are_traced() -> None:
    graphs = [trace(*small_llama(batch)).planned for batch in (2, 4, 5)]
    guess = copy_of(graphs[0])
    extrapolate([guess, graphs[1]], 2, 5)
    first, second = (Planning(graph, Options()) for graph in (guess, graphs[2]))
    assert first.before == second.before
    assert first.base_cost == second.base_cost


def test_graphs_that_differ_in_more_than_sizes_are_refused() -> None:
    with torch.device("meta"):
        x = torch.zeros(2, 4)
        graphs = [trace(nn.Sequential(*(nn.Linear(4, 4) for _ in range(n))), x).planned for n in (1, 2)]
    with pytest.raises(dtr_fx.GraphError, match="operators differ"):
        extrapolate(graphs, 2, 4)


def test_on_a_card_tensors_take_whole_blocks_and_attention_takes_time() -> None:
    graph = trace(*small_llama(2)).planned
    on_cpu = Planning(graph, Options())
    put_on(graph, torch.device("cuda"))
    planning = Planning(graph, Options())
    assert all(value.nbytes % 512 == 0 for value in planning.graph.values if value.kind != "temporary")
    assert planning.baseline_peak > on_cpu.baseline_peak - sum(on_cpu.workspace_of.values())
    [first, *_] = [call for call in planning.graph.calls if "flash_attention" in call.node.name]
    assert first.cost > 0


H100, T4 = CARDS["h100"], CARDS["t4"]
FLASH, EFFICIENT, COMPOSED = (
    "aten._scaled_dot_product_flash_attention.default",
    "aten._scaled_dot_product_efficient_attention.default",
    "aten._safe_softmax.default",
)


def attending(
    dtype: torch.dtype, card: Any, *, size: int = 64, groups: int = 4, mask: str = "", **settings: Any
) -> set[str]:
    """The operators that attention over heads of a size is traced as for a card."""

    class Attend(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gain = nn.Parameter(torch.ones((), dtype=dtype))

        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            seen = {"bool": torch.ones(32, 32, dtype=torch.bool), "float": torch.zeros(32, 32, dtype=dtype)}
            return F.scaled_dot_product_attention(self.gain * q, k, v, seen.get(mask), **settings).sum()

    with torch.device("meta"):
        q, k, v = (torch.zeros(2, heads, 32, size, dtype=dtype) for heads in (4, groups, groups))
        model = Attend()
    with traced_for(card):
        joint = trace(model, (q, k, v))
    return {str(node.target) for node in joint.planned.graph.nodes}


@pytest.mark.parametrize(
    ("expected", "dtype", "card", "more"),
    [
        (FLASH, torch.bfloat16, H100, {"is_causal": True}),
        (FLASH, torch.float16, H100, {"dropout_p": 0.1, "size": 60}),
        (FLASH, torch.bfloat16, H100, {"groups": 2, "enable_gqa": True}),
        (EFFICIENT, torch.float32, H100, {}),
        (EFFICIENT, torch.bfloat16, H100, {"mask": "bool"}),
        (EFFICIENT, torch.float16, H100, {"size": 264}),
        (EFFICIENT, torch.float16, T4, {"dropout_p": 0.1}),
        (EFFICIENT, torch.float32, T4, {"size": 33, "mask": "float"}),
        (COMPOSED, torch.bfloat16, T4, {}),
        (COMPOSED, torch.float32, H100, {"size": 33}),
        (COMPOSED, torch.float32, H100, {"groups": 2, "enable_gqa": True}),
        (COMPOSED, torch.float64, H100, {}),
    ],
)
def test_attention_is_what_a_card_would_run(
    expected: str, dtype: torch.dtype, card: Any, more: dict[str, Any]
) -> None:
    found = attending(dtype, card, **more)
    assert found & {FLASH, EFFICIENT, COMPOSED} == {expected}


def test_what_is_traced_for_a_card_changes_nothing_for_a_cpu() -> None:
    def targets(card: Any) -> set[str]:
        with traced_for(card):
            return {str(node.target) for node in trace(*small_llama(2)).planned.graph.nodes}

    before, on_card = targets(None), targets(H100)
    norm = "aten._fused_rms_norm.default"
    assert norm in on_card
    assert norm not in before
    assert targets(None) == before
    x, weight = torch.randn(3, 8, requires_grad=True), torch.ones(8)
    torch.rms_norm(x, (8,), weight).sum().backward()  # by the kernels that there are


class Layer(nn.Module):
    """A layer of Megatron's GPT, its attention materialized."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        normed = self.before(x)
        q, k, v = (linear(normed).unflatten(-1, (self.heads, -1)).transpose(1, 2) for linear in self.qkv)
        scores = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
        mixed = F.dropout(scores.softmax(-1), 0.1) @ v
        x = x + F.dropout(self.out(mixed.transpose(1, 2).flatten(-2)), 0.1)
        return x + F.dropout(self.down(F.gelu(self.up(self.between(x)))), 0.1)


def test_activations_of_a_layer_are_those_of_the_published_formula() -> None:
    """s·b·h·(34 + 5·a·s/h) bytes (Korthikanti et al., 2022, Equation 1)."""
    s, b, h, a = 512, 2, 256, 4
    saved = []
    for layers in (1, 2):
        with torch.device("meta"):
            model = nn.Sequential(*(Layer(h, a) for _ in range(layers))).bfloat16()
            x = torch.zeros(b, s, h, dtype=torch.bfloat16)
        saved.append(Planning(trace(model, x).planned, Options()).saved)
    assert saved[1] - saved[0] == pytest.approx(s * b * h * (34 + 5 * a * s / h), rel=0.02)


@pytest.mark.slow
def test_checkpointing_is_that_of_torch(target: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = estimate(capsys, target, "--device", "cpu", "--arg", "batch=2", "--arg", "layers=3")
    model, inputs = _made(target, batch=2, layers=3)
    eager, checkpointed = (
        judge(*baselines.eager(trace(model, inputs))),
        judge(*baselines.checkpointed(model, inputs)),
    )
    asked = found["ways"]["checkpoint every block"]["asked"]
    assert asked["peak"] == pytest.approx(checkpointed.peak, rel=0.02)
    assert asked["overhead"] == pytest.approx(checkpointed.overhead(eager), rel=0.02)


def _made(target: str, **settings: int) -> tuple[Any, Any]:
    from dtr_fx.cli.targets import load_target

    return load_target(target, **settings)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [("llama_1b", 1_235_814_400), ("llama_8b", 8_030_261_248), ("llama_70b", 70_553_706_496)],
)
def test_llamas_have_the_published_sizes(name: str, parameters: int) -> None:
    import llama as example

    model, _ = getattr(example, name)()
    assert sum(parameter.numel() for parameter in model.parameters()) == parameters


@pytest.mark.slow
def test_a_llama_of_eight_billion(capsys: pytest.CaptureFixture[str]) -> None:
    file = Path(__file__).parent.parent / "examples/llama.py"
    found = estimate(
        capsys, f"{file}:llama_8b", "--device", "h100", "--optimizer", "adamw", "--arg", "batch=2"
    )
    assert found["bytes"]["parameters"] == found["bytes"]["gradients"] == 2 * 8_030_261_248
    assert found["bytes"]["optimizer"] == pytest.approx(4 * 8_030_261_248, rel=1e-6)
    memory = CARDS["h100"].memory
    assert found["ways"]["as it is"]["asked"]["peak"] > memory >= found["ways"]["dtr_fx"]["asked"]["peak"]
