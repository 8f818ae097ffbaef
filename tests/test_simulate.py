"""``dtr-fx simulate``: what it prints, writes and refuses."""

from __future__ import annotations

import csv
import gzip
import json
import sys

import pytest
from operator_logs import write_chain

from dtr_fx.cli import main
from dtr_fx.lab.log import read_log
from dtr_fx.lab.replay import replay


@pytest.fixture
def log(tmp_path):
    return write_chain(tmp_path / "chain.log.gz")


def test_a_table_for_each_log(log, capsys):
    options = ["--heuristic", "dtr", "lru", "--budget", "60%", "1000B"]
    assert main(["simulate", str(log), str(log), *options]) == 0
    out = capsys.readouterr().out
    assert out.count("chain: 24 operators, peak 1.37 KiB, 100 B of it constants") == 2
    program = read_log(log)
    for heuristic in ("dtr", "lru"):
        slowdown = replay(program, int(0.6 * program.peak), heuristic).slowdown
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


def test_results_as_data(log, tmp_path, capsys):
    assert main(["simulate", str(log), "--budget", "70%", "50%", "--jobs", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found) == 2
    path = tmp_path / "found.json"
    assert main(["simulate", str(log), "--budget", "70%", "50%", "--jobs", "1", "-o", str(path)]) == 0
    assert json.loads(path.read_text()) == found


def test_storages_can_be_moved_instead(log, tmp_path, capsys):
    slow = tmp_path / "slow.log"
    slow.write_text(gzip.decompress(log.read_bytes()).decode().replace('"TIME":"50"', '"TIME":"500000"'))
    arguments = ["simulate", str(slow), "--budget", "50%", "--jobs", "1"]
    path = tmp_path / "found.json"
    assert main([*arguments, "--offload", "5GB,4GB", "-o", str(path)]) == 0
    assert "brought back" in capsys.readouterr().out
    [moving] = json.loads(path.read_text())
    assert main([*arguments, "--json"]) == 0
    [alone] = json.loads(capsys.readouterr().out)
    assert moving["moved"] > alone["moved"] == 0
    assert moving["slowdown"] < alone["slowdown"]
    assert main([*arguments, "--offload", "500GB", "--simrd"]) == 2
    assert "the original simulator moves nothing" in capsys.readouterr().err


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
        (["{log}", "-o", "{folder}", "-f"], "picture.png: it is a folder"),
        (["{log}", "{log}", "-o", "out.png"], "several of the logs are named chain"),
    ],
)
def test_a_users_error_is_one_line(log, capsys, arguments, expected):
    folder = log.parent / "picture.png"
    folder.mkdir()
    assert main(["simulate", *(argument.format(log=log, folder=folder) for argument in arguments)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("dtr-fx: error: ")
    assert error.count("\n") == 1
    assert expected in error


def test_a_missing_library_is_told_before_anything_runs(log, tmp_path, capsys, monkeypatch):
    for module in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, module, None)
    files = [tmp_path / "out.csv", tmp_path / "out.png"]
    assert main(["simulate", str(log), "-o", str(files[0]), "-o", str(files[1])]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "pip install 'dtr_fx[plot]'" in shown.err
    assert not files[0].exists()


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--budget", "auto", "a log runs on no device"),
        ("--budget", "8 gigs", "--budget: 8 gigs: write a share of the log's peak"),
        ("--max-slowdown", "abc", "--max-slowdown: abc: a slowdown is at least 1"),
        ("--jobs", "0", "--jobs: 0 is not a positive number"),
        ("--jobs", "-3", "--jobs: -3 is not a positive number"),
        ("--budget", "120%", "at most 1"),
        ("--max-slowdown", "0.5", "a slowdown is at least 1"),
        ("--heuristic", "best", "invalid choice"),
        ("--offload", "fast", "--offload: 'fast': write bytes per second, as in 50GB"),
        ("--offload", "0", "--offload: '0': write bytes per second, as in 50GB"),
    ],
)
def test_a_wrong_option_is_named(log, capsys, option, value, expected):
    with pytest.raises(SystemExit):
        main(["simulate", str(log), option, value])
    assert expected in capsys.readouterr().err
