"""``dtr-fx bench steps``, and what it judges a step by."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import nn

from dtr_fx.cli import main
from dtr_fx.cli.targets import load_trainee
from dtr_fx.errors import GraphError
from dtr_fx.lab.trainee import Trainee, differing, measure, same_bits, smallest_budget
from dtr_fx.planning.options import Options

pytestmark = pytest.mark.little_effort

MODEL = """
import torch
from torch import nn

def factory():
    layers = [layer for _ in range(5) for layer in (nn.Linear(64, 64), nn.GELU())]
    return nn.Sequential(*layers), torch.randn(512, 64)

def function():
    return torch.relu, torch.ones(2)
"""


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return path


@pytest.fixture
def dropout_file(tmp_path: Path) -> Path:
    path = tmp_path / "dropout.py"
    path.write_text(MODEL.replace("nn.GELU())", "nn.GELU(), nn.Dropout(0.1))"))
    return path


@pytest.fixture
def trainee() -> Trainee:
    torch.manual_seed(0)
    layers = [layer for _ in range(5) for layer in (nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1))]
    return Trainee(nn.Sequential(*layers), (torch.randn(512, 64),))


# What counts as the same


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (torch.tensor([1.0, float("nan")]), torch.tensor([1.0, float("nan")]), True),
        (torch.tensor([0.0]), torch.tensor([-0.0]), False),
        (torch.tensor([1.0]), torch.tensor([1.0 + 2**-23]), False),
        (torch.tensor([1]), torch.tensor([1.0]), False),
        (torch.ones(2, 3), torch.ones(3, 2), False),
        (torch.arange(6).view(2, 3).t(), torch.tensor([[0, 3], [1, 4], [2, 5]]), True),
        (torch.tensor(True), torch.tensor(True), True),
        (torch.empty(0), torch.empty(0), True),
    ],
)
def test_the_same_bits(a: torch.Tensor, b: torch.Tensor, same: bool) -> None:
    assert same_bits(a, b) is same


def test_what_differs_is_named() -> None:
    expected = {"loss": torch.ones(1), "gradient": torch.ones(2)}
    assert differing([expected, expected], [expected, expected]) == ()
    ours = {"loss": torch.ones(1), "gradient": torch.tensor([1.0, 2.0]), "more": torch.ones(1)}
    assert differing([ours], [expected]) == ("gradient", "more")
    assert differing([{"loss": torch.ones(1)}], [expected]) == ("gradient",)


def test_a_start_puts_back_weights_buffers_gradients_and_generator() -> None:
    trainee = Trainee(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout()), (torch.randn(8, 4),))
    trainee.restart()
    start = trainee.results([])
    trainee.step(trainee.model)
    with torch.no_grad():
        trainee.model[0].weight.add_(1.0)
    assert {"0.weight", "1.running_mean", "generator", "gradient of 0.bias"} <= set(
        differing([trainee.results([])], [start])
    )
    trainee.restart()
    assert differing([trainee.results([])], [start]) == ()


@pytest.mark.slow
def test_a_mistake_in_a_plan_would_be_seen(trainee: Trainee, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropout that draws a fresh mask when it is recomputed: the fault that nothing else would show."""
    from dtr_fx.passes import rng

    expected = measure(trainee, Options())
    smallest = smallest_budget(trainee, Options()).smallest
    right = measure(trainee, Options(budget=smallest))
    assert differing(right.results, expected.results) == ()

    def draw_anew(state, device, target, *args, **kwargs):
        return target(*args, **kwargs)

    monkeypatch.setattr(rng, "replay", draw_anew)
    wrong = measure(trainee, Options(budget=smallest))
    assert "gradient of 0.weight" in differing(wrong.results, expected.results)


@pytest.mark.slow
def test_what_does_not_work_is_left_out(dropout_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = f"{dropout_file}:factory"
    budgets = ["80%", "1%", "1GiB", "smallest"]
    assert main(["bench", "steps", target, "--budgets", *budgets, "--pairs", "1", "--json"]) == 0
    [found] = json.loads(capsys.readouterr().out)
    assert [row["asked"] for row in found["rows"]] == ["80%", "1GiB", "smallest"]
    most, unlimited, least = found["rows"]
    assert least["budget"] == smallest_budget(load_trainee(target), Options()).smallest
    assert least["measured"] < most["measured"] < unlimited["measured"]
    assert unlimited["overhead"] == 0 < most["overhead"] < least["overhead"]
    assert all(row["identical"] and row["time_ratio"] > 0 for row in found["rows"])


def test_a_step_of_several_graphs_is_refused() -> None:
    class Broken(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x):
            x = self.layer(x)
            torch._dynamo.graph_break()
            return self.layer(x)

    with pytest.raises(GraphError, match="2 graphs"):
        measure(Trainee(Broken(), (torch.ones(2, 4),)), Options())


# The command


@pytest.mark.slow
def test_the_table(model_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "steps", f"{model_file}:factory", "--budgets", "80%", "smallest"]) == 0
    captured = capsys.readouterr()
    title, header, _, first, last = captured.out.strip().splitlines()
    assert title.startswith(f"{model_file}:factory: peak ")
    assert [
        word for word in ("planned", "measured", "identical", "planning", "verify") if word not in header
    ] == []
    assert first.startswith("80%")
    assert last.startswith("smallest")
    assert " yes " in first
    assert " yes " in last
    assert captured.err == ""  # no progress line: this is no terminal


def test_the_same_as_json(model_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = f"{model_file}:factory"
    assert main(["bench", "steps", target, "--budgets", "70%", "--pairs", "1", "--json"]) == 0
    [found] = json.loads(capsys.readouterr().out)
    assert found["target"] == target
    (row,) = found["rows"]
    assert row["measured"] <= row["allowed"] == row["budget"] - row["constants"]
    assert row["budget"] == row["baseline_peak"] * 7 // 10
    assert row["identical"] is True
    assert 0 < row["verify_share"] < 1


@pytest.mark.slow
def test_a_second_run_finds_the_same(model_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = f"{model_file}:factory"
    assert main(["bench", "steps", target, target, "--budgets", "70%", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert first["target"] == second["target"]
    (row,), (again,) = first["rows"], second["rows"]
    varying = {"time_ratio", "planning", "verify_share"}
    assert {key: row[key] for key in row if key not in varying} == {
        key: again[key] for key in again if key not in varying
    }


def test_progress_on_a_terminal(
    model_file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert main(["bench", "steps", f"{model_file}:factory", "--budgets", "80%"]) == 0
    captured = capsys.readouterr()
    assert f"{model_file}:factory " in captured.err
    assert " 1/1 " in captured.err
    assert captured.err.endswith("\r\033[K")
    assert "\033" not in captured.out


@pytest.mark.parametrize(
    ("arguments", "facts"),
    [
        (["{file}:function"], ["function", "give a module"]),
        (["{file}:factory", "--budgets", "8 gigs"], ["'8GiB'"]),
        (["{file}:factry"], ["did you mean 'factory'"]),
    ],
)
def test_every_mistake_is_one_line(
    model_file: Path, arguments: list[str], facts: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "steps", *(argument.format(file=model_file) for argument in arguments)]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("dtr-fx: error: ")
    assert captured.err.count("\n") == 1
    for fact in facts:
        assert fact in captured.err


def test_a_budget_that_does_not_work_is_said(model_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "steps", f"{model_file}:factory", "--budgets", "1%"]) == 0
    assert "none of these budgets works" in capsys.readouterr().out


# Batches of many shapes

BATCHES = """
import torch
from torch import nn

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(8))
    def forward(self, x):
        for layer in self.layers:
            x = nn.functional.gelu(layer(x)).sin()
        return x.square().mean()

def batches():
    return Model(), [(torch.randn(rows, 32),) for rows in (256, 100, 180)]

def one():
    return Model(), torch.randn(8, 32)
"""


@pytest.mark.slow
def test_batches_of_three_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.py"
    path.write_text(BATCHES)
    command = ["bench", "steps", f"{path}:batches", "--dynamic", "--budgets", "70%", "--planner", "online"]
    assert main([*command, "--json"]) == 0
    [found] = json.loads(capsys.readouterr().out)
    assert found["target"] == f"{path}:batches"
    [row] = found["rows"]
    assert row["compilations"] == 2
    assert row["identical"] == row["batches"] == 3
    assert 0.9 < row["over"] <= 1
    assert row["overhead"] > 0
    assert row["look_up_us"] > 0


def test_a_model_without_a_list_of_batches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.py"
    path.write_text(BATCHES)
    assert main(["bench", "steps", f"{path}:one", "--dynamic"]) == 2
    assert "give a module and a list of batches, each a tuple of arguments" in capsys.readouterr().err
