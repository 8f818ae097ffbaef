"""Models without memory: on ``meta``, or made of fake tensors, planned as models on the CPU are."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import dtr_fx
from dtr_fx.cli import main
from dtr_fx.compiler.joint import trace
from dtr_fx.torch_private import FakeTensorMode

Made = tuple[Callable[..., Any], Any]


class Words(nn.Module):
    """Next words, by tied weights, dropout, and a buffer that the step reads."""

    def __init__(self, width: int = 32, layers: int = 2) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, width)
        parts = [
            part for _ in range(layers) for part in (nn.Linear(width, width), nn.GELU(), nn.Dropout(0.1))
        ]
        self.blocks = nn.Sequential(*parts)
        self.head = nn.Linear(width, 100, bias=False)
        self.head.weight = self.embed.weight
        self.register_buffer("scale", torch.ones(width))

    def forward(self, ids: Tensor) -> Tensor:
        return cross_entropy(
            self.head(self.blocks(self.embed(ids) * self.scale)).flatten(0, 1), ids.flatten()
        )


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.LSTM(8, 16, num_layers=2, dropout=0.1)

    def forward(self, x: Tensor) -> Tensor:
        return self.rnn(x)[0].square().mean()


def words() -> Made:
    return Words(), torch.zeros(8, 16, dtype=torch.long)


def recurrent() -> Made:
    return Recurrent(), torch.zeros(2, 3, 8)


def convolutions() -> Made:
    parts: list[nn.Module] = []
    for before, after in ((3, 8), (8, 16)):
        convolution = nn.Conv2d(before, after, 3, padding=1)
        parts += [convolution, nn.BatchNorm2d(after), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*parts, nn.Flatten(), nn.Linear(16 * 16, 10)), torch.zeros(4, 3, 16, 16)


def low_precision() -> Made:
    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)).bfloat16()
    return model, torch.zeros(64, 32, dtype=torch.bfloat16)


def gpt2() -> Made:
    transformers = pytest.importorskip("transformers")
    tokens = {"bos_token_id": 0, "eos_token_id": 0}
    config = transformers.GPT2Config(n_layer=1, n_embd=32, n_head=2, vocab_size=64, n_positions=16, **tokens)
    ids = torch.zeros(2, 16, dtype=torch.long)
    return transformers.GPT2LMHeadModel(config).train(), {"input_ids": ids, "labels": ids}


def llama() -> Made:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(num_hidden_layers=1, vocab_size=64, **sizes)
    ids = torch.zeros(2, 16, dtype=torch.long)
    return transformers.LlamaForCausalLM(config).train(), {"input_ids": ids, "labels": ids}


def closure() -> Made:
    model, x, y = nn.Linear(8, 16), torch.zeros(4, 8), torch.zeros(4, dtype=torch.long)
    return lambda x, y: cross_entropy(model(x), y), (x, y)


def peaks(made: Made, budget: str = "100%") -> list[tuple[int, int]]:
    reports = dtr_fx.explain(*made, budget, plan_seconds=0.02)
    assert reports
    return [(report.baseline_peak, report.planned_peak) for report in reports]


SLOW = [pytest.param(make, marks=pytest.mark.slow, id=make.__name__) for make in (gpt2, llama)]
MODELS = [pytest.param(make, id=make.__name__) for make in (words, convolutions, low_precision, closure)]


@pytest.mark.parametrize("make", [*MODELS, *SLOW])
def test_on_meta_the_peaks_are_those_on_the_cpu(make: Callable[[], Made]) -> None:
    expected = peaks(make())
    with torch.device("meta"):
        made = make()
    assert peaks(made) == expected
    if isinstance(made[0], nn.Module):
        state = [*made[0].parameters(), *made[0].buffers()]
        assert all(tensor.is_meta and tensor.grad is None for tensor in state)


@pytest.mark.slow
def test_a_recurrent_model_on_meta_as_one_graph() -> None:
    found = []
    for device in ("cpu", "meta"):
        with torch.device(device):
            joint = trace(*recurrent())
        found.append(dtr_fx.transform(joint.planned, "100%")[1].planned_peak)
    assert found[0] == found[1]


def test_of_fake_tensors_the_plan_is_that_on_the_cpu() -> None:
    with FakeTensorMode():
        made = words()
    assert peaks(made) == peaks(words())


def test_a_mode_that_is_still_on_is_none_of_the_plans() -> None:
    expected = peaks(words())
    with FakeTensorMode():
        model, ids = words()
        assert peaks((model, ids)) == expected
        optimizer = torch.optim.AdamW(model.parameters())
        step = dtr_fx.train_step(model, lambda model, ids: model(ids), optimizer)
        assert any("addcdiv" in node.name for node in step.graph(ids).graph.nodes)


def test_tied_weights_stay_tied() -> None:
    with torch.device("meta"):
        model, ids = words()
    dtr_fx.explain(model, ids)
    assert model.head.weight is model.embed.weight


def test_the_budget_of_gigabytes_is_planned_in_no_memory(caplog: pytest.LogCaptureFixture) -> None:
    """What is large is not run, and said to be left out."""
    with torch.device("meta"):
        layers = [layer for _ in range(2) for layer in (nn.Linear(2**14, 2**14), nn.ReLU())]
        model, x = nn.Sequential(*layers).bfloat16(), torch.zeros(2**16, 2**14, dtype=torch.bfloat16)
    with caplog.at_level(logging.WARNING, logger="dtr_fx"):
        [report] = dtr_fx.explain(model, x, "100%")
    assert report.baseline_peak > 2**32
    assert any("is not counted: aten.addmm" in record.getMessage() for record in caplog.records)


FACTORY = """
import torch
from torch import nn
from torch.nn.functional import cross_entropy

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [layer for _ in range(4) for layer in (nn.Linear(32, 32), nn.Tanh(), nn.Dropout(0.1))]
        self.layers = nn.Sequential(*layers)
    def forward(self, x, y):
        return cross_entropy(self.layers(x), y)

def make(device="meta"):
    with torch.device(device):
        return Net(), (torch.zeros(64, 32), torch.zeros(64, dtype=torch.long))
"""


@pytest.mark.parametrize(
    "verb",
    [
        "smallest",
        *(
            pytest.param(verb, marks=pytest.mark.slow)
            for verb in (
                "diff --budget 80%",
                "show --budget 80%",
                "timeline --budget 80%",
                "sweep --budgets 80%",
            )
        ),
    ],
)
def test_every_verb_takes_a_model_on_meta(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "net.py").write_text(FACTORY)
    name, *options = verb.split()
    found = []
    for device in ("cpu", "meta"):
        target = [f"{tmp_path}/net.py:make", "--arg", f"device={device}", "--plan-seconds", "0.02"]
        assert main([name, *target, *options, "--json"]) == 0
        found.append(_without_times(json.loads(capsys.readouterr().out)))
    assert found[0] == found[1]


def _without_times(data: Any) -> Any:
    """The data without how long planning took, and where in memory."""
    if isinstance(data, dict):
        return {name: _without_times(value) for name, value in data.items() if name not in ("seconds",)}
    return list(map(_without_times, data)) if isinstance(data, list) else data


LARGE = """
import torch
from torch.nn import functional as F


class Attention(torch.nn.Linear):
    def forward(self, x):
        q, k, v = super().forward(x).unflatten(-1, (3, 4, 64)).permute(2, 0, 3, 1, 4)
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).square().mean()


def make():
    return Attention(256, 768), torch.randn(16, 512, 256)
"""


@pytest.mark.slow
def test_a_sweep_runs_what_diff_runs_of_a_model_that_is_here(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "large.py").write_text(LARGE)
    target = f"{tmp_path / 'large.py'}:make"
    assert main(["diff", target, "--budget", "100%", "--json"]) == 0
    [report] = json.loads(capsys.readouterr().out)
    assert (
        main(["sweep", target, "--budgets", "100%", "--no-rivals", "--plan-seconds", "0.01", "--json"]) == 0
    )
    curve = json.loads(capsys.readouterr().out)["curve"]
    assert curve["baseline_peak"] == report["baseline_peak"]
    assert "not counted" not in caplog.text


def test_a_loss_of_which_torch_traces_no_backward_pass_on_meta_is_an_error() -> None:
    with torch.device("meta"):
        model, x, y = nn.Linear(8, 16), torch.randn(4, 8), torch.zeros(4, dtype=torch.long)

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(model(x), y)

    torch.compiler.reset()
    with pytest.raises(dtr_fx.GraphError, match=r"no backward pass.*dtr_fx\.explain"):
        torch.compile(loss, backend="dtr")(x, y)
