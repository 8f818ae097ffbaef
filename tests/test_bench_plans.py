"""``dtr-fx bench plans``: every table on small cases, each part, and its goals."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from operator_logs import write_chain
from torch._subclasses.fake_tensor import FakeTensorMode

from dtr_fx.cli import main
from dtr_fx.cli.bench import baselines, logs, optimum, times
from dtr_fx.cli.bench.baselines import Baseline, ModelBaselines, OurPlan
from dtr_fx.cli.bench.goals import ONLINE, SEARCH, Goal, goal_table
from dtr_fx.cli.bench.logs import LogResult, Original, PlannedRatio
from dtr_fx.cli.targets import load_target
from dtr_fx.lab import networks
from dtr_fx.lab.baselines import trace
from dtr_fx.lab.log import read_log
from dtr_fx.lab.planners import Gap, Node, OperatorGraph, check, plan_dtr, training_chain
from dtr_fx.planning.judge import Judgement
from dtr_fx.planning.options import Options

pytest.importorskip("scipy")
pytest.importorskip("ortools")
pytestmark = pytest.mark.little_effort

FUTURES = ("bench", "plans", "--only", "logs", "--logs")
LOGS = Path(__file__).resolve().parents[2] / "shared" / "dtr_logs"
HEADS = (
    "factory: ",
    "checkpoint ",
    "smallest budget ",
    "network ",
    "above the optimum ",
    "chain: ",
    "lowest ratio ",
)


@pytest.mark.slow
def test_a_quick_run_prints_every_table_and_goal(
    model_file: Path, log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reference = write_reference(tmp_path, dtr={"0.5": 1.5})
    known = ["--logs", str(log), "--reference", str(reference)]
    assert main(["bench", "plans", f"{model_file}:factory", "--quick", *known]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert not any(line.startswith(("{", "[")) for line in lines)
    for head in (*HEADS, "lowest ratio ", "planning at "):
        assert sum(line.startswith(head) for line in lines) == 1
    [heading] = (number for number, line in enumerate(lines) if line.startswith("goal "))
    goals = {line.split("  ")[0]: "  yes  " in line for line in lines[heading + 2 :]}
    for subject in ("partitioner", "checkpoint", "smallest budget", "optimum", "logs", "GPTs"):
        assert any(goal.startswith(subject) for goal in goals)
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
    monkeypatch.chdir(tmp_path)
    for part in (baselines, optimum, times):
        goal = Goal(f"of {part.__name__.rpartition('.')[2]}", "", True)
        monkeypatch.setattr(part, "results", lambda *_: iter([]))
        monkeypatch.setattr(part, "summary", lambda *_: "")
        monkeypatch.setattr(part, "goals", lambda *_, goal=goal: [goal])
    monkeypatch.setattr(optimum, "small_programs", list)
    assert main(["bench", "plans", "--quick"]) == 0
    out = capsys.readouterr().out
    assert "operator logs are left out: ../shared/dtr_logs has none" in out
    goals = [line.split("  ")[0] for line in out.splitlines()[4:]]
    assert goals == ["of baselines", "of optimum", "of times"]


@pytest.mark.parametrize("name", ["steps", "plans", "costs", "device", "paper"])
def test_each_benchmark_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", name, "--help"])
    assert f"dtr-fx bench {name}" in capsys.readouterr().out


def test_a_folder_without_logs_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "plans", "--logs", str(tmp_path)]) == 2
    assert "there are no logs" in capsys.readouterr().err


def test_a_log_without_a_reference_is_an_error_before_anything_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logs, "results", None)
    (tmp_path / "some.log.gz").write_bytes(b"")
    (tmp_path / "simrd_slowdown.json").write_text('{"slowdown": {}}')
    assert main(["bench", "plans", "--logs", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("dtr-fx: error: ")
    assert not captured.out


# Baselines


EAGER = Judgement(peak=1100, constants=100, cost=1.0, operator="")
OURS = OurPlan(peak=600, overhead=0.05, seconds=0.5)
MET = ModelBaselines(
    target="zoo.py:model",
    nodes=2000,
    eager=EAGER,
    partitioner=(Baseline("1.0", 1100, 0.0, OurPlan(1100, 0.0, 0.1)), Baseline("0.5", 600, 0.1, OURS)),
    checkpoint=Baseline("checkpoint", 600, 0.3, OURS),
    lowest=OurPlan(peak=400, overhead=0.29, seconds=0.5),
    smallest=300,
    bound=290,
    smallest_seconds=0.5,
)


def test_goals_that_are_met() -> None:
    assert all(goal.met for goal in baselines.goals([MET]))


@pytest.mark.parametrize(
    ("missed", "fields"),
    [
        (0, {"partitioner": (Baseline("0.9", 1000, 0.01, OURS), Baseline("0.0", 1000, 0.3, OURS))}),
        (1, {"partitioner": (Baseline("0.5", 600, 0.06, OURS),)}),
        (2, {"checkpoint": Baseline("checkpoint", 600, 0.06, OURS)}),
        (3, {"lowest": OurPlan(peak=600, overhead=0.29, seconds=0.5)}),
        (3, {"lowest": None}),
        (4, {"smallest": 310}),
        (5, {"nodes": 20_000, "checkpoint": Baseline("checkpoint", 600, 0.3, replace(OURS, seconds=8.1))}),
    ],
)
def test_goals_that_are_missed(missed: int, fields: dict[str, Any]) -> None:
    found = baselines.goals([MET, replace(MET, **fields)])
    assert not found[missed].met
    assert all(goal.met for number, goal in enumerate(found) if number not in (missed, 1))


def test_a_point_without_a_plan_misses_its_goals() -> None:
    found = baselines.goals([replace(MET, partitioner=(Baseline("0.1", 150, 0.2, None),))])
    assert [goal.met for goal in found][:2] == [False, False]


MODEL = """
import torch
from torch import nn

def factory():
    layers = [layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.GELU())]
    return nn.Sequential(*layers), torch.randn(512, 64)

def function():
    return torch.relu, torch.ones(2)
"""


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return path


def test_a_comparison_is_consistent(model_file: Path) -> None:
    result = baselines.compare(f"{model_file}:factory", Options(), budgets=(1.0, 0.5))
    assert [point.name for point in result.partitioner] == ["1.0", "0.5"]
    assert result.bound <= result.smallest <= result.eager.peak
    for point in (*result.partitioner, result.checkpoint):
        assert point.ours is None or point.ours.peak <= point.peak
    assert result.lowest is None or result.lowest.overhead <= result.checkpoint.overhead + 1e-9


def test_the_command_prints_every_table(model_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = f"{model_file}:factory"
    assert main(["bench", "plans", target, "--only", "baselines", "--shares", "1.0", "0.5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith(("1.0 ", "0.5 ", "sum ")) for line in lines) == 3
    for head in ("factory: ", "checkpoint ", "smallest budget ", "goal "):
        assert any(line.startswith(head) for line in lines)


def test_the_command_prints_json(model_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "plans", f"{model_file}:factory", "--only", "baselines", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (result,) = found["baselines"]
    assert len(result["partitioner"]) == 11
    assert {goal["met"] for goal in found["goals"]} <= {True, False}


def test_a_function_has_no_blocks(model_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "plans", f"{model_file}:function", "--only", "baselines"]) == 2
    assert "give a module" in capsys.readouterr().err


# The optimum


def test_optimum_prints_gaps(monkeypatch, capsys):
    graph = OperatorGraph.of(networks.residual(3))
    monkeypatch.setattr("dtr_fx.cli.bench.optimum.small_networks", lambda: [graph])
    command = [
        "bench",
        "plans",
        "--only",
        "optimum",
        "--shares",
        "70%",
        "20%",
        "--heuristic",
        "dtr",
        "--seconds",
        "20",
    ]
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
    assert main([*command[:5], "20%"]) == 0
    assert "alone exceeds these budgets" in capsys.readouterr().out


def test_proofs_and_failures_are_told_apart(monkeypatch, capsys):
    """A budget below what an operator needs is left out, one that no plan in stages fits is shown as such."""
    nodes = (
        Node("a", 1, 2),
        Node("b", 1, 2, (0,)),
        Node("c", 1, 2, (1,)),
        Node("wide", 1, 5),
        Node("last", 1, 1, (0, 2)),
    )
    graph = OperatorGraph("five", nodes)
    assert (graph.floor, graph.peak) == (5, 9)
    monkeypatch.setattr("dtr_fx.cli.bench.optimum.small_networks", lambda: [graph, training_chain(60)])
    command = [
        "bench",
        "plans",
        "--only",
        "optimum",
        "--shares",
        "0.56",
        "0.2",
        "--heuristic",
        "dtr",
        "--seconds",
        "0.01",
    ]
    assert main(command) == 0
    table = capsys.readouterr().out.splitlines()
    [proved] = (line for line in table if line.startswith("five"))
    assert re.fullmatch(r"five +5 +56.0% +none in stages +Checkmate +× 1.800", proved)
    failed = [line for line in table if line.startswith("chain of 60")]
    assert len(failed) == 2
    assert all("none found" in line and "not proved" in line for line in failed)


@pytest.mark.parametrize(
    ("option", "value", "expected"),
    [
        ("--shares", "1.5", "at most 100%"),
        ("--shares", "half", "half: a share of the peak is above 0"),
        ("--seconds", "-1", "-1 is not a positive number of seconds"),
        ("--seconds", "nan", "nan is not a positive number of seconds"),
        ("--seconds", "soon", "soon is not a positive number of seconds"),
    ],
)
def test_a_wrong_option_is_named(option, value, expected, capsys):
    with pytest.raises(SystemExit):
        main(["bench", "plans", "--only", "optimum", option, value])
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize(
    ("costs", "met"),
    [
        ([100, 102, 100], True),
        ([100, 104, 100], False),
        ([102, 102, 102], False),
        ([100, math.inf, 100], False),
    ],
)
def test_the_goal_is_about_the_average_the_worst_and_every_case(costs: list[float], met: bool) -> None:
    gap = Gap("some", 9, 0.5, 50, 40, 80, 100, 100, True, "Checkmate", 0.1, {})
    [goal] = optimum.goals([replace(gap, dtr={"search": cost}) for cost in costs])
    assert goal.met is met


def test_nothing_that_is_proved_is_no_goal() -> None:
    gap = Gap("some", 9, 0.5, 50, 40, 80, 100, 90, False, "Checkmate", 0.1, {"search": 100})
    assert not optimum.goals([gap])
    assert not optimum.goals([replace(gap, optimal=True, dtr={"dtr": 100})])


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


def test_logs_print_the_best_of_the_original_and_ours(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    reference = write_reference(
        tmp_path,
        dtr={"0.7": 1.9, "0.6": "thrash", "0.2": "OOM"},
        lru={"0.7": 1.95, "0.6": 1.8, "0.2": "thrash"},
    )
    assert main([*FUTURES, str(log), "--reference", str(reference)]) == 0
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


@pytest.mark.parametrize(("ratio", "slowdown", "expected"), [("0.5", 1.0001, "NO"), ("1.0", 1.0, "yes")])
def test_a_plan_that_recomputes_is_not_cheaper_than_one_that_hardly_does(
    log: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], ratio: str, slowdown: float, expected: str
) -> None:
    reference = write_reference(tmp_path, dtr={ratio: slowdown})
    assert main([*FUTURES, str(log), "--reference", str(reference)]) == 0
    assert verdicts(capsys.readouterr().out) == [expected]


def test_a_log_that_the_reference_does_not_know(
    tmp_path: Path, log: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = write_chain(tmp_path / "other.log")
    reference = write_reference(tmp_path, dtr={"0.5": 1.5})
    assert main([*FUTURES, str(log), str(other), "--reference", str(reference)]) == 2
    captured = capsys.readouterr()
    assert "knows no log named other" in captured.err
    assert not captured.out


REACHED = LogResult(
    log="one",
    operators=10,
    peak=1000,
    bound=150,
    original={0.5: Original(1.2, "dtr"), 0.3: Original(1.8, "dtr"), 0.2: None},
    ours=(
        PlannedRatio(0.5, 500, 1.1, 0.1),
        PlannedRatio(0.3, 300, 1.2, 0.1),
        PlannedRatio(0.25, 250, 1.9, 0.1),
    ),
)


@pytest.mark.parametrize(
    ("fields", "met"),
    [
        ({}, [True, True]),
        ({"ours": (*REACHED.ours[1:], PlannedRatio(0.5, 500, 1.2, 0.1))}, [False, True]),
        ({"ours": (*REACHED.ours[1:], PlannedRatio(0.5, 500, 1.19999, 0.1))}, [False, True]),
        ({"ours": (*REACHED.ours[:2], PlannedRatio(0.25, 250, 2.1, 0.1))}, [True, False]),
        ({"ours": (*REACHED.ours[:2], PlannedRatio(0.25, 250, float("inf"), 0.1))}, [True, False]),
        ({"ours": REACHED.ours[:2], "bound": 251}, [True, True]),
        ({"ours": (PlannedRatio(0.5, 500, float("inf"), 0.1), *REACHED.ours[1:])}, [False, True]),
    ],
)
def test_goals_of_logs(fields: dict[str, Any], met: list[bool]) -> None:
    assert [goal.met for goal in logs.goals([replace(REACHED, **fields)])] == met
    # One log that is as it should be does not hide another.
    assert [goal.met for goal in logs.goals([replace(REACHED, **fields), REACHED])] == met


@pytest.mark.skipif(
    not LOGS.is_dir(), reason="the logs of the original artifact are not in ../shared/dtr_logs"
)
def test_a_log_of_the_original(capsys: pytest.CaptureFixture[str]) -> None:
    """The reference's lowest of all heuristics is shown, and ours is below it where the goal says so."""
    reference = LOGS / "simrd_slowdown.json"
    command = [*FUTURES, str(LOGS / "resnet32.log.gz")]
    assert main([*command, "--shares", "50%"]) == 0
    out = capsys.readouterr().out
    known = [ratios["0.5"] for ratios in json.loads(reference.read_text())["slowdown"]["resnet32"].values()]
    cells = row(out, "50.0%")
    assert float(cells[2]) == min(value for value in known if not isinstance(value, str))
    if verdicts(out) == ["yes"]:
        assert 1 < float(cells[5]) < float(cells[2])


# Times of planning


def test_times_counts_what_the_graph_has(model_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = model_file
    assert main(["bench", "plans", f"{path}:factory", "--only", "times", "--shares", "80%"]) == 0
    out = capsys.readouterr().out
    with FakeTensorMode(allow_non_fake_inputs=True):
        graph = trace(*load_target(f"{path}:factory")).graph.graph
    operators = [node for node in graph.nodes if node.op == "call_function"]
    assert row(out, "factory")[1:3] == [str(len(operators)), str(len(graph.nodes))]
    assert out.startswith("planning at 80.0% of the peak")
    assert "µs per node" in out
    assert len([line for line in out.splitlines() if line.startswith("GPTs")]) == 3


def test_each_layer_of_a_deeper_gpt_is_of_one_size() -> None:
    with FakeTensorMode(allow_non_fake_inputs=True):
        gpts = [load_target("zoo:gpt_full", layers=layers) for layers in (1, 2, 5)]
        counts = [len(trace(*gpt).graph.graph.nodes) for gpt in gpts]
    layer = counts[1] - counts[0]
    assert layer > 50
    assert counts[2] == counts[0] + 4 * layer


def test_a_target_has_no_layers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "plans", "some.py:model", "--layers", "2"]) == 2
    assert "give TARGETs, or --layers" in capsys.readouterr().err


def test_the_allowance_is_a_straight_line() -> None:
    for allowed in (SEARCH, ONLINE):
        assert allowed(10) == allowed(2_000) == allowed.least
        assert allowed(20_000) == pytest.approx(allowed.most)
        assert allowed(11_000) == pytest.approx((allowed.least + allowed.most) / 2)


def seconds(whole: float, plan: float) -> dict[str, float]:
    return {"whole": whole, "plan": plan}


QUICK = {"name": "small", "nodes": 2_000, "online": seconds(0.2, 0.04), "search": seconds(0.9, 0.7)}
DEEP = {"name": "deep", "nodes": 20_000, "online": seconds(2.0, 0.7), "search": seconds(7.9, 7.0)}


@pytest.mark.parametrize(
    ("fields", "missed"),
    [
        ({}, []),
        ({"search": seconds(8.1, 7.0)}, [0]),
        ({"online": seconds(2.0, 0.81)}, [1, 2]),
        ({"online": seconds(4.1, 0.7)}, [2]),
    ],
)
def test_goals_of_times(fields: dict[str, Any], missed: list[int]) -> None:
    found = times.goals([QUICK, {**DEEP, **fields}])
    assert [number for number, goal in enumerate(found) if not goal.met] == missed
    assert goal_table(found).count(" NO ") == len(missed)
