"""``dtr-fx simulate``: what it prints, writes and refuses."""

from __future__ import annotations

import csv
import json

import pytest

from dtr_fx.cli import main
from dtr_fx.simulate import read_log, replay
from dtr_fx.simulate.log import AliasLine, CallLine, ConstantLine, Line, MemoryLine, ReleaseLine, write_log

N = 12


@pytest.fixture
def log(tmp_path):
    """A chain of unit operators forward and backward."""
    lines: list[Line] = [ConstantLine("t0"), MemoryLine(100, "t0")]

    def call(name: str, args: tuple[str, ...], result: str) -> None:
        lines.extend([CallLine(args, name, (result,), 50), MemoryLine(100, result), AliasLine(-1, result)])

    for number in range(1, N + 1):
        call("f", (f"t{number - 1}",), f"t{number}")
    gradient = f"t{N}"
    for number in range(N - 1, -1, -1):
        call("f_backward", (f"t{number}", gradient), f"g{number}")
        lines += [ReleaseLine(gradient), *([ReleaseLine(f"t{number}")] if number else [])]
        gradient = f"g{number}"
    path = tmp_path / "chain.log.gz"
    write_log(path, lines)
    return path


def test_a_table_for_each_log(log, capsys):
    options = ["--heuristic", "dtr", "lru", "--budget", "60%", "1000B"]
    assert main(["simulate", str(log), str(log), *options]) == 0
    out = capsys.readouterr().out
    assert out.count("chain: 24 operators, peak 1.37 KiB, 100 B of it constants") == 2
    schedule = read_log(log)
    for heuristic in ("dtr", "lru"):
        slowdown = replay(schedule, int(0.6 * schedule.peak), heuristic).slowdown
        row = next(line for line in out.splitlines() if line.startswith(heuristic) and "60.0%" in line)
        assert f"× {slowdown:.3f}" in row


def test_results_as_files(log, tmp_path, capsys):
    files = [tmp_path / name for name in ("out.csv", "out.json", "out.png")]
    outputs = [part for file in files for part in ("-o", str(file))]
    command = ["simulate", str(log), "--budget", "70%", "20%", *outputs]
    assert main(command) == 0
    assert [line for line in capsys.readouterr().out.splitlines() if "Wrote" in line] == [
        f"Wrote {file}" for file in files
    ]
    rows = list(csv.DictReader(files[0].read_text().splitlines()))
    found = json.loads(files[1].read_text())
    assert [row["outcome"] for row in rows] == [item["outcome"] for item in found]
    assert files[2].read_bytes().startswith(b"\x89PNG")
    assert main(command) == 2
    assert "overwrite it with -f" in capsys.readouterr().err
    assert main([*command, "-f"]) == 0


def test_simrd_and_limits(log, capsys):
    assert main(["simulate", str(log), "--budget", "30%", "--max-slowdown", "1.05", "--simrd"]) == 0
    assert "thrash" in capsys.readouterr().out
    assert main(["simulate", str(log), "--simrd", "--deallocation", "ignore"]) == 2
    assert "--deallocation eager" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["none.log"], "cannot read none.log: No such file"),
        (["{log}", "-o", "out.txt"], "out.txt: name the file by what it is to be: .csv, .json, .png"),
        (["{log}", "-o", "no/folder/out.csv"], "there is no folder no/folder"),
    ],
)
def test_a_users_error_is_one_line(log, capsys, arguments, expected):
    assert main(["simulate", *(argument.format(log=log) for argument in arguments)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("dtr-fx: error: ")
    assert error.count("\n") == 1
    assert expected in error


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--budget", "auto", "a log runs on no device"),
        ("--budget", "120%", "at most 1"),
        ("--max-slowdown", "0.5", "a slowdown is at least 1"),
        ("--heuristic", "best", "invalid choice"),
    ],
)
def test_a_wrong_option_is_named(log, capsys, option, value, expected):
    with pytest.raises(SystemExit):
        main(["simulate", str(log), option, value])
    assert expected in capsys.readouterr().err
