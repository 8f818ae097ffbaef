"""``dtr-fx bench paper`` with logs: a small case of what the results page is made with."""

from __future__ import annotations

import json

import pytest

from dtr_fx.cli import main
from dtr_fx.lab import networks
from dtr_fx.lab.log import AliasLine, CallLine, Line, MemoryLine, ReleaseLine, read_log, write_log
from dtr_fx.lab.replay import replay
from dtr_fx.runtime.program import Call, Release


@pytest.fixture
def log(tmp_path):
    """The linear network of 16 operators as a log."""
    lines: list[Line] = []
    for step in networks.linear(16).instructions:
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
    assert main(["bench", "paper", str(log), "--heuristic", "dtr-eq", "lru", "--budget", "50%", "6"]) == 0
    found = [row for row in rows(capsys.readouterr().out) if row[0] == "sixteen"]
    program = read_log(log)
    expected = [
        f"{replay(program, budget, heuristic).slowdown:.4f}"
        for heuristic in ("dtr-eq", "lru")
        for budget in (8, 6)
    ]
    assert [row[4] for row in found] == expected
    assert all(float(row[5]) > 0 for row in found)


def test_logs_compares_with_a_reference(log, tmp_path, capsys):
    slowdown = replay(read_log(log, simrd=True), 8, "dtr").slowdown
    reference = tmp_path / "reference.json"
    known = {"dtr": {"0.5": slowdown + 0.25, "0.1": "oom"}, "msps": {"0.1": "thrash"}, "new": {"0.5": 1.0}}
    reference.write_text(json.dumps({"slowdown": {"sixteen": known, "other": {}}}))
    assert main(["bench", "paper", str(log), "--reference", str(reference)]) == 0
    exact, msps = (row for row in rows(capsys.readouterr().out) if row[0] == "sixteen")
    assert exact == ["sixteen", "dtr", "2", "0.2500", "none"]
    assert msps == ["sixteen", "msps", "1", "0.0000", "0.1:", "OOM,", "not", "thrash"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", "is no reference"),
        ("nonsense", "is no reference"),
        ('{"slowdown": {"other": {}}}', "has none of these logs"),
        ('{"slowdown": []}', "is no reference"),
        ('{"slowdown": {"sixteen": {"dtr": [1.0]}}}', "is no reference"),
        ('{"slowdown": {"sixteen": {"dtr": {"half": 1.0}}}}', "is no reference"),
        ('{"slowdown": {"sixteen": {"dtr": {"0.5": "slow"}}}}', 'is a number, "OOM" or "thrash"'),
        ('{"slowdown": {"sixteen": {"dtr": {"0.5": null}}}}', 'is a number, "OOM" or "thrash"'),
        (None, "cannot read"),
    ],
)
def test_a_reference_that_is_none(log, tmp_path, capsys, text, expected):
    reference = tmp_path / "reference.json"
    if text is not None:
        reference.write_text(text)
    assert main(["bench", "paper", str(log), "--reference", str(reference)]) == 2
    assert expected in capsys.readouterr().err


def test_a_reference_has_its_own_budgets(log, tmp_path, capsys):
    reference = tmp_path / "reference.json"
    reference.write_text(json.dumps({"slowdown": {"sixteen": {"dtr": {"0.5": 1.0}}}}))
    assert main(["bench", "paper", str(log), "--reference", str(reference), "--budget", "50%"]) == 2
    assert "with --reference the budgets are those that it has" in capsys.readouterr().err


def test_logs_and_parts_belong_together(log, capsys):
    assert main(["bench", "paper", str(log), "--only", "linear"]) == 2
    assert main(["bench", "paper", "--only", "logs"]) == 2
    assert capsys.readouterr().err.count("give LOGs for the part logs") == 2
