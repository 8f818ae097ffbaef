"""``dtr-fx bench dynamic``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dtr_fx.cli import main

MODEL = """
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


def test_batches_of_three_sizes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    command = ["bench", "dynamic", f"{path}:batches", "--shares", "70%", "--planner", "online", "--json"]
    assert main(command) == 0
    found = json.loads(capsys.readouterr().out)
    [row] = found["targets"][f"{path}:batches"]
    assert row["compilations"] == 2
    assert row["identical"] == row["batches"] == 3
    assert 0.9 < row["over"] <= 1
    assert row["overhead"] > 0
    assert found["look_up_us"] < 50


def test_a_model_without_a_list_of_batches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    assert main(["bench", "dynamic", f"{path}:one"]) == 2
    assert "give a module and a list of batches, each a tuple of arguments" in capsys.readouterr().err
