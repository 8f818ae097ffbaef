"""``dtr-fx bench futures`` and ``dtr-fx bench times``: small cases of what the results page is made with."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from operator_logs import write_chain
from torch._subclasses.fake_tensor import FakeTensorMode

from dtr_fx.cli import main
from dtr_fx.cli.bench import futures, times
from dtr_fx.cli.bench.futures import Best, Trial
from dtr_fx.cli.bench.goals import ONLINE, SEARCH, goal_table
from dtr_fx.cli.bench.times import Seconds
from dtr_fx.lab import baselines as rivals
from dtr_fx.lab.log import read_log

LOGS = Path(__file__).resolve().parents[2] / "shared" / "dtr_logs"


# Operator logs with their future known


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write_chain(tmp_path / "chain.log")


def write_reference(folder: Path, **slowdowns: dict[str, float | str]) -> Path:
    path = folder / "reference.json"
    path.write_text(json.dumps({"slowdown": {"chain": slowdowns}}))
    return path


def row(out: str, start: str) -> list[str]:
    [found] = (line for line in out.splitlines() if line.startswith(start))
    return found.split()


def verdicts(out: str) -> list[str]:
    return [
        line.split(" at every ratio ")[-1].split()[0] for line in out.splitlines() if " at every " in line
    ]


def test_futures_prints_the_best_of_the_original_and_ours(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reference = write_reference(
        tmp_path,
        dtr={"0.7": 1.9, "0.6": "thrash", "0.2": "OOM"},
        lru={"0.7": 1.95, "0.6": 1.8, "0.2": "thrash"},
    )
    assert main(["bench", "futures", str(log), "--reference", str(reference)]) == 0
    out = capsys.readouterr().out
    assert row(out, "70.0%")[1:4] == ["×", "1.9000", "dtr"]
    assert row(out, "60.0%")[1:4] == ["×", "1.8000", "lru"]
    # One operator and its gradient are 100 of 2400 ns: recomputed operators cost a multiple of 50.
    for ratio in ("70.0%", "60.0%", "55.0%"):
        ours = float(row(out, ratio)[row(out, ratio).index("×", 2 if ratio == "55.0%" else 4) + 1])
        assert ours > 1
        assert (ours - 1) * 24 == pytest.approx(round((ours - 1) * 24), abs=0.01)
    # The constant, two values that a gradient is made from, and the gradient: 400 bytes.
    peak = read_log(log).peak
    assert 0.2 * peak < 400
    assert "none works" in out
    assert "below the bound" in out
    assert row(out, "chain   ")[-1] == f"{100 * 400 / peak:.1f}%"
    assert row(out, "chain   ")[1:3] == ["60.0%", "55.0%"]
    assert verdicts(out) == ["yes"]


@pytest.mark.parametrize(
    ("ratio", "slowdown", "expected"), [("0.5", 1.0001, "NO"), ("0.5", 1.0, "NO"), ("1.0", 1.0, "yes")]
)
def test_a_plan_that_recomputes_is_not_cheaper_than_one_that_hardly_does(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], ratio: str, slowdown: float, expected: str
) -> None:
    reference = write_reference(tmp_path, dtr={ratio: slowdown})
    assert main(["bench", "futures", str(log), "--reference", str(reference)]) == 0
    assert verdicts(capsys.readouterr().out) == [expected]


def test_a_log_that_the_reference_does_not_know(
    tmp_path: Path, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_chain(tmp_path / "other.log")
    reference = write_reference(tmp_path, dtr={"0.5": 1.5})
    assert main(["bench", "futures", str(log), str(other), "--reference", str(reference)]) == 2
    captured = capsys.readouterr()
    assert "knows no log named other" in captured.err
    assert not captured.out


REACHED = futures.Result(
    log="one",
    operators=10,
    peak=1000,
    bound=150,
    original={0.5: Best(1.2, "dtr"), 0.3: Best(1.8, "dtr"), 0.2: None},
    trials=(Trial(0.5, 500, 1.1, 0.1), Trial(0.3, 300, 1.2, 0.1), Trial(0.25, 250, 1.9, 0.1)),
)


@pytest.mark.parametrize(
    ("fields", "met"),
    [
        ({}, [True, True]),
        ({"trials": (*REACHED.trials[1:], Trial(0.5, 500, 1.2, 0.1))}, [False, True]),
        ({"trials": (*REACHED.trials[1:], Trial(0.5, 500, 1.19999, 0.1))}, [False, True]),
        ({"trials": (*REACHED.trials[:2], Trial(0.25, 250, 2.1, 0.1))}, [True, False]),
        ({"trials": (*REACHED.trials[:2], Trial(0.25, 250, float("inf"), 0.1))}, [True, False]),
        ({"trials": REACHED.trials[:2], "bound": 251}, [True, True]),
        ({"trials": (Trial(0.5, 500, float("inf"), 0.1), *REACHED.trials[1:])}, [False, True]),
    ],
)
def test_goals_of_logs(fields: dict[str, Any], met: list[bool]) -> None:
    assert [goal.met for goal in futures.goals([replace(REACHED, **fields)])] == met
    # One log that is as it should be does not hide another.
    assert [goal.met for goal in futures.goals([replace(REACHED, **fields), REACHED])] == met


@pytest.mark.skipif(
    not LOGS.is_dir(), reason="the logs of the original artifact are not in ../shared/dtr_logs"
)
def test_a_log_of_the_original(capsys: pytest.CaptureFixture[str]) -> None:
    """The reference's lowest of all heuristics is shown, and ours is below it where the goal says so."""
    reference = LOGS / "simrd_slowdown.json"
    command = ["bench", "futures", str(LOGS / "resnet32.log.gz"), "--reference", str(reference)]
    assert main([*command, "--ratios", "50%"]) == 0
    out = capsys.readouterr().out
    known = [ratios["0.5"] for ratios in json.loads(reference.read_text())["slowdown"]["resnet32"].values()]
    cells = row(out, "50.0%")
    assert float(cells[2]) == min(value for value in known if not isinstance(value, str))
    if verdicts(out) == ["yes"]:
        assert 1 < float(cells[5]) < float(cells[2])


# Times of planning

MODEL = """
import torch
from torch import nn

def factory():
    layers = [layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.GELU())]
    return nn.Sequential(*layers), torch.randn(512, 64)
"""


def test_times_counts_what_the_graph_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    assert main(["bench", "times", f"{path}:factory", "--budget", "80%"]) == 0
    out = capsys.readouterr().out
    subject = times.Subject("again", lambda: times.load_target(f"{path}:factory"))
    with FakeTensorMode(allow_non_fake_inputs=True):
        graph = rivals.trace(*subject.make()).graph.graph
    operators = [node for node in graph.nodes if node.op == "call_function"]
    assert row(out, "factory")[1:3] == [str(len(operators)), str(len(graph.nodes))]
    assert out.startswith("planning at 80.0% of the peak")
    assert "µs per node" in out
    assert len([line for line in out.splitlines() if line.startswith("GPTs")]) == 3


def test_each_layer_of_a_deeper_gpt_is_of_one_size() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        counts = [len(rivals.trace(*gpt.make()).graph.graph.nodes) for gpt in times.gpts((1, 2, 13))]
    layer = counts[1] - counts[0]
    assert layer > 50
    assert counts[2] == counts[0] + 12 * layer


def test_a_target_has_no_layers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "times", "some.py:model", "--layers", "2"]) == 2
    assert "give TARGETs, or --layers" in capsys.readouterr().err


def test_the_allowance_is_a_straight_line() -> None:
    for allowed in (SEARCH, ONLINE):
        assert allowed(10) == allowed(2_000) == allowed.least
        assert allowed(20_000) == pytest.approx(allowed.most)
        assert allowed(11_000) == pytest.approx((allowed.least + allowed.most) / 2)


QUICK = times.Result("small", 2_000, 1_800, online=Seconds(0.2, 0.04), search=Seconds(0.9, 0.7))
DEEP = times.Result("deep", 20_000, 18_000, online=Seconds(2.0, 0.7), search=Seconds(7.9, 7.0))


@pytest.mark.parametrize(
    ("fields", "missed"),
    [
        ({}, []),
        ({"search": Seconds(8.1, 7.0)}, [0]),
        ({"online": Seconds(2.0, 0.81)}, [1, 2]),
        ({"online": Seconds(4.1, 0.7)}, [2]),
    ],
)
def test_goals_of_times(fields: dict[str, Any], missed: list[int]) -> None:
    found = times.goals([QUICK, replace(DEEP, **fields)])
    assert [number for number, goal in enumerate(found) if not goal.met] == missed
    assert goal_table(found).count(" NO ") == len(missed)
