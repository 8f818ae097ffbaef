"""Training steps on a device that is no CPU, in software: ``tests/card.py``, in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

HERE = Path(__file__).parent

pytestmark = pytest.mark.skipif(
    not hasattr(torch._C, "_acc"), reason="this PyTorch knows no devices that are made in Python"
)


def run(script: str, *arguments: str) -> str:
    """What a script of the tests prints, in a process of its own."""
    done = subprocess.run(
        [sys.executable, str(HERE / script), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "OMP_NUM_THREADS": "1", "DTR_CACHE": "off"},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows(*arguments: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in run("card_steps.py", *arguments).splitlines()]


def check(row: dict[str, Any]) -> None:
    """As on the CPU, bit for bit; within the budget; and each byte of the allocator as it was planned."""
    assert row["device"] == "card:0"
    assert all(row["same"])
    assert row["drawn_alike"]
    assert row["measured"] == row["planned"]
    assert row["measured"][row["counts_reserved"]] <= row["budget"]


@pytest.mark.parametrize("model", ["gpt", "resnet", "lstm"])
def test_a_step_on_a_card_is_that_on_the_cpu_within_its_budget(model: str) -> None:
    [row] = rows(model, "allocated:40%")
    check(row)
    assert row["again"]
    if model == "gpt":
        assert "aten.native_dropout.default" in row["again"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "budgets"),
    [
        ("gpt", ["100%", "allocated:60%", "allocated:40%"]),
        ("wide_gpt", ["100%", "60%", "40%"]),
        ("resnet", ["100%", "allocated:60%", "allocated:40%"]),
        ("resnet50", ["100%", "60%", "allocated:60%", "allocated:40%"]),
        ("lstm", ["100%", "60%", "40%", "allocated:60%", "allocated:40%"]),
    ],
)
def test_steps_on_a_card_under_several_budgets(model: str, budgets: list[str]) -> None:
    found = rows(model, *budgets)
    assert len(found) == len(budgets)
    for row in found:
        check(row)
    assert [bool(row["again"]) for row in found] == [False] + [True] * (len(budgets) - 1)


def test_the_host_tier_moves_tensors_of_a_card() -> None:
    """Buffers of the host, and the order of the two queues; memory is not pinned, and all runs at once."""
    assert run("card_transfers.py").split() == ["same", "freed"]


def test_a_planned_step_moves_values_of_a_card_to_the_host() -> None:
    """Gradients as on the CPU, the allocator's peak within the budget, and nothing left outside."""
    row = json.loads(run("card_moves.py"))
    assert row["same"]
    assert row["moved"]
    assert row["peak"] <= row["budget"]
    assert row["outside"] == 0
