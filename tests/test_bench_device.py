"""The benchmark for small cards: what trains under a cap, and a run that goes on where another ended."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from dtr_fx.cli import main
from dtr_fx.lab import methods
from dtr_fx.lab.zoo.sized import Subject

pytestmark = pytest.mark.little_effort

CPU, CAP = torch.device("cpu"), 1 << 19


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Sequential(nn.Linear(32, 32), nn.GELU()) for _ in range(4)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x).square().mean()


CHAIN = Subject("chain", "batch", 16, lambda batch: (Chain(), (torch.randn(batch, 32),)))


@pytest.fixture(scope="module")
def trials():
    names = (methods.EAGER, methods.CHECKPOINT, methods.DTR)
    return {name: methods.largest(methods.METHODS[name], CHAIN, CPU, CAP) for name in names}


def test_the_largest_batch_uses_most_of_the_cap(trials):
    assert all(0.85 * CAP < trial.peak <= CAP for trial in trials.values())
    assert (
        methods.attempt(
            methods.METHODS[methods.EAGER], CHAIN, int(1.2 * trials[methods.EAGER].size), CPU, CAP
        )
        is None
    )


def test_checkpointing_and_dtr_train_larger_batches(trials):
    assert trials[methods.EAGER].size < trials[methods.CHECKPOINT].size < trials[methods.DTR].size


@pytest.mark.slow
def test_a_second_run_goes_on_where_the_first_ended(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(
        methods, "METHODS", {name: methods.METHODS[name] for name in (methods.EAGER, methods.DTR)}
    )
    monkeypatch.setattr("dtr_fx.lab.zoo.sized.SMALL", (CHAIN,))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    path = tmp_path / "device.json"
    command = ["bench", "device", "--cap", "512KiB", "-o", str(path)]
    assert main([*command, "--minutes", "0"]) == 0
    assert "0 of 4 cells" in capsys.readouterr().out
    assert main(command) == 0
    table = capsys.readouterr().out
    assert "chain, size = batch" in table
    assert "not yet" not in table
    cells = json.loads(path.read_text())["cells"]
    assert [(cell["method"], cell["kind"]) for cell in cells] == [
        ("eager", "largest"),
        ("dtr", "largest"),
        ("eager", "alike"),
        ("dtr", "alike"),
    ]
    assert main([*command, "--minutes", "0"]) == 0
    assert capsys.readouterr().out == table


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["resnet51"], "did you mean 'resnet50'"),
        (["--cap", "8Gb"], "--cap 8Gb"),
        (["-o", "{file}"], "go on from"),
    ],
)
def test_bad_arguments(arguments, message, tmp_path, capsys):
    file = tmp_path / "other.json"
    file.write_text("{}")
    assert main(["bench", "device", *(argument.format(file=file) for argument in arguments)]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.slow
def test_a_network_that_fails_does_not_end_the_others(capsys, monkeypatch):
    broken = Subject("broken", "batch", 1, lambda batch: (nn.Linear(2, 2), (torch.ones(batch, 3),)))
    monkeypatch.setattr(methods, "METHODS", {methods.EAGER: methods.METHODS[methods.EAGER]})
    monkeypatch.setattr("dtr_fx.lab.zoo.sized.SMALL", (broken, CHAIN))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["bench", "device", "--cap", "512KiB"]) == 0
    assert "RuntimeError" in capsys.readouterr().out
