"""The examples, as a user runs them but smaller, and what README says of them."""

from __future__ import annotations

import argparse
import io
import re
import sys

import custom_pass
import dynamic
import pytest
import torch
import train_gpt
from torch.fx.experimental.proxy_tensor import make_fx

pytestmark = pytest.mark.little_effort

SMALL = ["--layers", "2", "--width", "32", "--batch", "8", "--length", "32"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def rows_of(printed: str) -> list[list[str]]:
    """The cells of the table in what an example printed: one row per line below the dashes."""
    lines = iter(printed.splitlines())
    for line in lines:
        if line.startswith("---"):
            break
    rows = []
    for line in lines:
        if not line.strip():
            break
        rows.append(re.split(r"\s{2,}", line.strip()))
    return rows


# train_gpt.py


@pytest.fixture(scope="module")
def trainings() -> dict[str, train_gpt.Training]:
    ways = [
        train_gpt.Way("eager", train_gpt.eager),
        train_gpt.Way("checkpoint", train_gpt.checkpoint_per_block),
        train_gpt.dtr("100%"),
        train_gpt.dtr("60%"),
    ]
    settings = argparse.Namespace(layers=2, width=32, batch=8, length=32, steps=8)
    trained = train_gpt.train(ways, train_gpt.Text(train_gpt.make_text(200)), settings)
    return {training.name: training for training in trained}


@pytest.mark.slow
def test_every_way_sees_the_same_losses(trainings: dict[str, train_gpt.Training]) -> None:
    losses = trainings["dtr 100%"].losses
    assert len(losses) == 8
    assert trainings["dtr 60%"].losses == losses  # the same graph, rewritten: bit for bit
    for training in trainings.values():
        assert training.losses == pytest.approx(losses, rel=1e-4)


def test_loss_falls(trainings: dict[str, train_gpt.Training]) -> None:
    for training in trainings.values():
        assert training.losses[-1] < 0.8 * training.losses[0]


def test_measured_peaks(trainings: dict[str, train_gpt.Training]) -> None:
    peak = {name: training.peak for name, training in trainings.items()}
    (report,) = trainings["dtr 60%"].reports
    assert peak["dtr 60%"] <= report.budget <= 0.6 * peak["dtr 100%"] * 1.03
    assert peak["dtr 60%"] == pytest.approx(report.planned_peak, rel=0.03)
    assert peak["checkpoint"] < peak["eager"]


@pytest.mark.slow
def test_compare_prints_a_row_for_each_way(capsys: pytest.CaptureFixture[str]) -> None:
    train_gpt.main([*SMALL, "--steps", "2", "--compare", "--budget", "70%"])
    printed, errors = capsys.readouterr()
    names = ["eager", "checkpoint per block", "dtr 100%", "dtr 70%"]
    assert [row[0] for row in rows_of(printed)] == names
    assert errors == ""  # no bar where stderr is no terminal


def test_progress_bar_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    train_gpt.main([*SMALL, "--steps", "3"])
    assert re.findall(r"step (\d)/3", terminal.getvalue()) == ["1", "2", "3"]
    assert [row[0] for row in rows_of(capsys.readouterr().out)] == ["dtr 50%"]


def test_budget_that_does_not_fit_is_explained() -> None:
    with pytest.raises(SystemExit) as stop:
        train_gpt.main([*SMALL, "--steps", "2", "--budget", "1%"])
    assert re.match(r"train_gpt.py: no plan fits this graph into \d+ bytes", str(stop.value))


def test_budget_with_a_mistyped_unit(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        train_gpt.main(["--budget", "8Gb"])
    assert "did you mean '8GiB' (binary) or '8GB' (decimal)" in capsys.readouterr().err


def test_text_is_split_into_windows_and_their_targets() -> None:
    text = train_gpt.Text("abcdefgh")
    ((tokens, targets),) = text.batches(1, size=20, length=3)
    assert tokens.shape == targets.shape == (20, 3)
    for window, target in zip(tokens.tolist(), targets.tolist()):
        assert text.decode([*window, target[-1]]) in "abcdefgh"
        assert window[1:] == target[:-1]


# custom_pass.py


@pytest.mark.slow
def test_custom_pass_keeps_outputs_and_budgets(capsys: pytest.CaptureFixture[str]) -> None:
    custom_pass.main(["--budget", "50%"])
    printed = capsys.readouterr().out
    traced, prepared, *rewritten = rows_of(printed)
    assert int(prepared[1]) < int(traced[1])  # the passes before take nodes out
    assert [row[0] for row in rewritten] == ["50% next-use", "50% dtr-eq", "50% large_first"]
    for row in (traced, prepared, *rewritten):
        assert row[-1] == "identical"
    for _, _, budget, planned, measured, *_ in rewritten:
        assert mebibytes(measured) <= mebibytes(budget) < 0.51 * mebibytes(prepared[2])
        assert mebibytes(measured) == pytest.approx(mebibytes(planned), rel=0.03)
    assert re.search(r"drop_\w+ = .*\n.*'role': 'recompute'", printed)


def mebibytes(cell: str) -> float:
    number, unit = cell.split()
    assert unit == "MiB"
    return float(number)


def test_remove_identities() -> None:
    x = torch.arange(6.0).view(2, 3)
    gm = make_fx(lambda x: x.view(2, 3).expand(2, 3).sin().view(6))(x)
    before = [node.name for node in gm.graph.nodes]
    result = custom_pass.remove_identities(gm)
    assert result.modified
    assert [node.name for node in result.graph_module.graph.nodes] == [
        name for name in before if name not in ("view", "expand")
    ]
    assert torch.equal(result.graph_module(x), x.sin().view(6))
    assert not custom_pass.remove_identities(gm).modified


# dynamic.py


SLOW = ("treelstm", "lengths", "gan")


@pytest.mark.parametrize(
    "task", [pytest.param(task, marks=[pytest.mark.slow] * (task in SLOW)) for task in dynamic.TASKS]
)
def test_a_dynamic_model_trains_inside_its_budget(task: str) -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    rows = dynamic.train(dynamic.TASKS[task](2))
    assert all(row.peak <= row.budget for row in rows)
    assert rows[0].plans > 0
    assert all(0 < row.loss < 10 for row in rows)


def test_dynamic_prints_a_row_for_each_step(capsys: pytest.CaptureFixture[str]) -> None:
    dynamic.main(["supernet", "--steps", "2"])
    assert [row[0].split()[0] for row in rows_of(capsys.readouterr().out)] == ["path", "path"]
