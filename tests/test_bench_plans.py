"""``dtr-fx bench plans``: one run that prints every table, on the smallest cases."""

from __future__ import annotations

from pathlib import Path

import pytest

from dtr_fx.cli import main
from dtr_fx.cli.bench import futures, optimum, plans, rivals, times
from dtr_fx.cli.bench.goals import Goal

pytest.importorskip("scipy")
pytest.importorskip("ortools")

LOGS = Path(__file__).resolve().parents[2] / "shared" / "dtr_logs"
HEADS = ("mlp_full: ", "checkpoint ", "smallest budget ", "network ", "above the optimum ", "planning at ")
LOG_HEADS = ("unet: ", "lowest ratio ")


def test_a_quick_run_prints_every_table_and_goal(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "plans", "--quick"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert not any(line.startswith(("{", "[")) for line in lines)
    for head in (*HEADS, *(LOG_HEADS if LOGS.is_dir() else ("operator logs are left out",))):
        assert sum(line.startswith(head) for line in lines) == 1
    [heading] = (number for number, line in enumerate(lines) if line.startswith("goal "))
    goals = {line.split("  ")[0]: "  yes  " in line for line in lines[heading + 2 :]}
    for subject in ("partitioner", "checkpoint", "smallest budget", "optimum", "GPTs"):
        assert any(goal.startswith(subject) for goal in goals)
    assert any(goal.startswith("logs") for goal in goals) == LOGS.is_dir()
    # A goal that is said to be met is met by the numbers in the tables above it.
    if goals["partitioner: at each of its peaks, no more extra compute"]:
        for line in lines:
            if line.startswith(("1.0 ", "0.5 ")):
                theirs, ours = (float(cell.strip("<%")) for cell in line.split()[2:4])
                assert ours <= theirs
    [search] = (line.split() for line in lines if line.startswith("search  "))
    if next(met for goal, met in goals.items() if goal.startswith("optimum")):
        assert float(search[2].strip("+<%")) <= 3
        assert search[3] == search[5]


def test_plans_without_logs_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(plans, "_LOGS", tmp_path / "none")
    for module in (rivals, optimum, times):
        name = module.__name__.rpartition(".")[2]
        monkeypatch.setattr(module, "show", lambda *_, name=name: [Goal(f"of {name}", "", True)])
    assert main(["bench", "plans", "--quick"]) == 0
    out = capsys.readouterr().out
    assert f"operator logs are left out: {tmp_path / 'none'} has none" in out
    goals = [line.split("  ")[0] for line in out.splitlines()[4:]]
    assert goals == ["of rivals", "of optimum", "of times"]


@pytest.mark.parametrize("name", ["plans", "futures", "times", "optimum", "rivals"])
def test_each_part_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", name, "--help"])
    assert f"dtr-fx bench {name}" in capsys.readouterr().out


def test_a_folder_without_logs_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "plans", "--logs", str(tmp_path)]) == 2
    assert "there are no logs" in capsys.readouterr().err


def test_a_log_without_a_reference_is_an_error_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(futures, "show", None)
    (tmp_path / "some.log.gz").write_bytes(b"")
    (tmp_path / "simrd_slowdown.json").write_text('{"slowdown": {}}')
    assert main(["bench", "plans", "--logs", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("dtr-fx: error: ")
    assert not captured.out
