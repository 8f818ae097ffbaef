"""``dtr-fx bench logs`` and ``dtr-fx bench optimum``: small cases of what the results page is made with."""

from __future__ import annotations

import json
import math

import pytest

from dtr_fx.cli import main
from dtr_fx.planners import OperatorGraph, check, plan_dtr
from dtr_fx.simulate import networks, read_log, replay
from dtr_fx.simulate.log import AliasLine, CallLine, Line, MemoryLine, ReleaseLine, write_log
from dtr_fx.simulate.schedule import Call, Release


@pytest.fixture
def log(tmp_path):
    """The linear network of 16 operators as a log."""
    lines: list[Line] = []
    for step in networks.linear(16).steps:
        match step:
            case Call(name, inputs, (output,), _):
                result = f"x{output.tensor}"
                lines.append(CallLine(tuple(f"x{number}" for number in inputs), name, (result,), 1))
                lines += [MemoryLine(output.size, result), AliasLine(-1, result)]
            case Release(tensor):
                lines.append(ReleaseLine(f"x{tensor}"))
    path = tmp_path / "sixteen.log"
    write_log(path, lines)
    return path


def rows(out: str) -> list[list[str]]:
    return [line.split() for line in out.splitlines()]


def test_logs_prints_slowdowns_and_times(log, capsys):
    assert main(["bench", "logs", str(log), "--heuristic", "dtr-eq", "lru", "--budget", "50%", "6"]) == 0
    found = [row for row in rows(capsys.readouterr().out) if row[0] == "sixteen"]
    schedule = read_log(log)
    expected = [
        f"{replay(schedule, budget, heuristic).slowdown:.4f}"
        for heuristic in ("dtr-eq", "lru")
        for budget in (8, 6)
    ]
    assert [row[4] for row in found] == expected
    assert all(float(row[5]) > 0 for row in found)


def test_logs_compares_with_a_reference(log, tmp_path, capsys):
    slowdown = replay(read_log(log), 8, "dtr", simrd=True).slowdown
    reference = tmp_path / "reference.json"
    known = {"dtr": {"0.5": slowdown + 0.25, "0.1": "OOM"}, "msps": {"0.1": "thrash"}, "new": {"0.5": 1.0}}
    reference.write_text(json.dumps({"slowdown": {"sixteen": known, "other": {}}}))
    assert main(["bench", "logs", str(log), "--reference", str(reference)]) == 0
    exact, msps = (row for row in rows(capsys.readouterr().out) if row[0] == "sixteen")
    assert exact == ["sixteen", "dtr", "2", "0.2500", "none"]
    assert msps == ["sixteen", "msps", "1", "0.0000", "0.1:", "OOM,", "not", "thrash"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", "is no reference"),
        ("nonsense", "is no reference"),
        ('{"slowdown": {"other": {}}}', "has none of these logs"),
        (None, "cannot read"),
    ],
)
def test_a_reference_that_is_none(log, tmp_path, capsys, text, expected):
    reference = tmp_path / "reference.json"
    if text is not None:
        reference.write_text(text)
    assert main(["bench", "logs", str(log), "--reference", str(reference)]) == 2
    assert expected in capsys.readouterr().err


def test_optimum_prints_gaps(monkeypatch, capsys):
    graph = OperatorGraph.of(networks.residual(3))
    monkeypatch.setattr("dtr_fx.cli.bench.optimum.small_networks", lambda: [graph])
    command = ["bench", "optimum", "--shares", "70%", "20%", "--heuristic", "dtr", "--seconds", "20"]
    assert main(command) == 0
    out = capsys.readouterr().out
    [proved] = (line for line in out.splitlines() if line.startswith("residual(3)"))
    budget = math.floor(0.7 * graph.peak)
    above = float(proved.split()[-1].removeprefix("+").removesuffix("%"))
    optimum = float(proved.split("×")[1].split()[0])
    assert check(graph, plan_dtr(graph, budget, "dtr")).total / graph.cost == pytest.approx(
        optimum * (1 + above / 100), abs=0.002
    )
    assert "1 of 1" in out
    assert main([*command[:3], "20%"]) == 0
    assert "alone exceeds these budgets" in capsys.readouterr().out


def test_optimum_rejects_a_share_above_one(capsys):
    with pytest.raises(SystemExit):
        main(["bench", "optimum", "--shares", "1.5"])
    assert "at most 100%" in capsys.readouterr().err
