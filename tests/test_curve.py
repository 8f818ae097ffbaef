"""What a graph costs in how much memory: the curve, the smallest budget, and the command that shows both."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule

import dtr_fx
from dtr_fx import OptionError
from dtr_fx.cli import main
from dtr_fx.cli.targets import load_target
from dtr_fx.compiler.explain import plan_step
from dtr_fx.inspect.comparison import Comparison, Mark, render_curve
from dtr_fx.lab import baselines, zoo
from dtr_fx.planning.options import Options
from dtr_fx.report.curve import Curve, CurvePoint

pytestmark = pytest.mark.little_effort

QUICK = {"plan_seconds": 0.02}


def joint(model: nn.Module, inputs: tuple[Tensor, ...]) -> GraphModule:
    """The graph of a training step, in the order in which it runs."""
    return baselines.plan(baselines.trace(model, inputs), Options())[0]


def mlp() -> GraphModule:
    return joint(*zoo.mlp(layers=6, width=32, batch=512))


def gpt() -> GraphModule:
    return joint(*zoo.gpt(layers=2, width=32, batch=4, length=32, dropout=0.1))


class Normed(nn.Module):
    """Its first operator writes to a buffer that it reads: recomputing it takes a copy from before."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm1d(256) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        for norm in self.norms:
            x = norm(x).sigmoid().sin()
        return x.sum()


# The curve


def test_a_curve_reaches_from_the_graph_as_it_is_to_the_smallest_budget() -> None:
    graph = mlp()
    curve = dtr_fx.sweep(graph, ["70%"], options=QUICK)
    first, last = curve.points[0], curve.points[-1]
    assert all(0 <= point.least_overhead <= point.overhead for point in curve.points)
    assert first == CurvePoint(curve.baseline_peak, curve.baseline_peak, 0.0, 0.0)
    assert last.budget == dtr_fx.smallest_budget(graph, options=QUICK)
    assert curve.constants < curve.lower_bound <= last.peak < int(0.7 * curve.baseline_peak)


@pytest.mark.parametrize("make", [mlp, gpt, lambda: joint(Normed(), (torch.randn(512, 256),))])
def test_a_point_is_what_transform_does(make: Any) -> None:
    graph = make()
    as_it_was, points = dtr_fx.judge(graph), dtr_fx.sweep(graph, [0.75, 0.5], options=QUICK).points[1:]
    assert points[0].budget > points[-1].budget == dtr_fx.smallest_budget(graph, options=QUICK)
    for point in points:
        rewritten, report = dtr_fx.transform(graph, point.budget, **QUICK)
        assert point.budget == report.budget
        assert report.planned_peak == point.peak <= point.budget
        assert point.overhead == pytest.approx(report.overhead)
        # And what the one judge of all says of the graph that comes out.
        found = dtr_fx.judge(rewritten)
        assert found.overhead(as_it_was) == pytest.approx(point.overhead)
        assert found.peak <= point.peak


def test_budgets_without_a_plan_are_left_out() -> None:
    curve = dtr_fx.sweep(mlp(), [1, "2 KiB", 1.0, 10**12], options=QUICK)
    assert [point.budget for point in curve.points] == [
        curve.baseline_peak,
        dtr_fx.smallest_budget(mlp(), options=QUICK),
    ]


def test_no_larger_budget_costs_more() -> None:
    given = {"planner": "online", "heuristic": "lru"}  # whose passes may cost less in less memory
    graph, percents = gpt(), range(60, 100, 4)
    points = dtr_fx.sweep(graph, [f"{share}%" for share in percents], options=given).points
    overheads = [point.overhead for point in points]
    assert overheads == sorted(overheads)
    left_out = {int(share / 100 * points[0].budget) for share in percents} - {each.budget for each in points}
    assert left_out
    cheapest = {
        budget: min(each.overhead for each in points if each.budget <= budget)
        for budget in left_out
        if budget > points[-1].budget
    }
    assert cheapest
    for budget, least in cheapest.items():
        assert dtr_fx.transform(graph, budget, planner="online", heuristic="lru")[1].overhead > least


def test_a_graph_without_shapes_takes_example_inputs_and_stays_as_it_is() -> None:
    def f(x: Tensor) -> Tensor:
        a = (x @ x).sin()
        b = (a @ a).cos()
        return (b @ b).sum() + a.sum()

    gm = torch.fx.symbolic_trace(f)
    before = gm.code
    curve = dtr_fx.sweep(gm, ["80%"], options=QUICK, example_inputs=[torch.ones(64, 64)])
    assert gm.code == before
    assert curve.constants == 4 * 64 * 64


def test_a_watcher_hears_of_every_budget() -> None:
    heard: list[tuple[int, int]] = []
    dtr_fx.sweep(mlp(), [0.9, 0.8, 0.1], options=QUICK, watch=lambda *done: heard.append(done))
    assert heard == [(1, 4), (2, 4), (3, 4), (4, 4)]  # and the smallest


def test_the_least_memory_within_an_overhead() -> None:
    points = (CurvePoint(100, 100, 0.0), CurvePoint(80, 75, 0.1), CurvePoint(50, 50, 0.3))
    curve = Curve(points, baseline_peak=100, constants=10, lower_bound=40, base_cost=1.0)
    assert [curve.within(limit).peak for limit in (0.0, 0.1, 0.2, 0.3)] == [100, 75, 75, 50]
    with pytest.raises(OptionError, match="max_overhead"):
        curve.within(-0.1)


# The smallest budget


@pytest.mark.parametrize("make", [mlp, gpt])
def test_the_smallest_budget_works(make: Any) -> None:
    graph = make()
    budget = dtr_fx.smallest_budget(graph, options=QUICK)
    _, report = dtr_fx.transform(graph, budget, **QUICK)
    assert report.planned_peak <= budget < report.baseline_peak


@pytest.mark.parametrize("make", [mlp, gpt])
@pytest.mark.parametrize("limit", [0.1, "20%"])
def test_the_smallest_budget_keeps_the_overhead(make: Any, limit: float | str) -> None:
    graph = make()
    budget = dtr_fx.smallest_budget(graph, max_overhead=limit, options=QUICK)
    _, report = dtr_fx.transform(graph, budget, **QUICK)
    assert report.overhead <= (0.2 if limit == "20%" else limit)
    assert budget < report.baseline_peak


def test_no_overhead_takes_no_less_memory_than_the_graph_has_for_nothing() -> None:
    graph = mlp()
    budget = dtr_fx.smallest_budget(graph, max_overhead=0, options=QUICK)
    _, report = dtr_fx.transform(graph, budget, **QUICK)
    assert report.overhead == 0


# Bad input


@pytest.mark.parametrize("name", ["budget", "max_overhead", "on_report"])
def test_options_of_one_plan_are_refused(name: str) -> None:
    with pytest.raises(OptionError, match=name):
        dtr_fx.sweep(mlp(), options={name: 0.5})


def test_a_bad_budget_is_told_before_anything_runs() -> None:
    # Without shapes: an error as soon as the graph is looked at.
    gm = torch.fx.symbolic_trace(lambda x: x.sin())
    with pytest.raises(OptionError, match="8Gb"):
        dtr_fx.sweep(gm, ["50%", "8Gb"])


# Pictures


EXAMPLE = Comparison(
    name="a<b",
    operators=3,
    curve=Curve(
        (CurvePoint(1000, 1000, 0.0), CurvePoint(800, 790, 0.1), CurvePoint(300, 300, 4.0)),
        baseline_peak=1000,
        constants=10,
        lower_bound=200,
        base_cost=1.0,
    ),
    marks=(
        Mark("eager", "", 1000, 0.0),
        Mark("partitioner", "0.5", 600, 0.25),
        Mark("checkpoint", "", 500, 0.2),
    ),
    notes=("a note",),
)


def test_the_picture_has_every_mark_in_its_place() -> None:
    lines = render_curve(EXAMPLE, width=110).splitlines()
    assert all(len(line) <= 110 for line in lines)
    rows = [line.partition("┤")[2] for line in lines if "┤" in line]
    left, width = {}, len(rows[-1])
    for row, cells in enumerate(rows):
        left |= {letter: (row, cells.index(letter)) for letter in "ECP▲" if letter in cells}
    assert left["E"] == (len(rows) - 1, width - 1)
    assert left["P"][1] == int(0.6 * width)
    assert left["C"][1] == int(0.5 * width)
    assert left["P"][0] < left["C"][0]  # costs more
    assert left["▲"] == (0, int(0.3 * width))
    # Bars reach from the smallest budget to the graph's own peak.
    assert abs(rows[-1].index("█") - 0.3 * width) <= 1
    assert "30.0%" in lines[-2]


def test_colour_only_where_it_is_asked_for() -> None:
    assert "\033" not in render_curve(EXAMPLE)
    assert "\033[33mP" in render_curve(EXAMPLE, color=True)


# The command


MODEL = """
import torch
from torch import nn

def factory(blocks=3):
    layers = [layer for _ in range(blocks) for layer in (nn.Linear(64, 64), nn.GELU())]
    return nn.Sequential(*layers), torch.randn(512, 64)

def deep():
    return factory(40)

def function():
    weight = torch.ones(64, 64, requires_grad=True)
    return lambda x: (x @ weight).sin().cos().sum(), torch.ones(512, 64)
"""


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return path


def sweep(*arguments: object) -> int:
    return main(["sweep", *map(str, arguments), "--plan-seconds", "0.02"])


def test_the_command_prints_curve_picture_and_rivals(
    model_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sweep(f"{model_file}:factory", "--budgets", "90%", "0.8", "--optimum", "5") == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert lines[0].startswith("factory: ")
    for share in ("100.0%", "90.0%", "80.0%"):
        assert any(line.split()[2:3] == [share] for line in lines)
    assert sum(line.startswith("partitioner ") for line in lines) == 11
    assert any(line.startswith("checkpoint ") for line in lines)
    assert "└" in out


def test_the_optimum_is_no_more_than_plans_in_order(
    model_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--budgets", "90%", "80%", "--no-rivals", "--optimum", "5", "--json")
    assert sweep(f"{model_file}:factory", *options) == 0
    found = json.loads(capsys.readouterr().out)
    optimum = [mark for mark in found["marks"] if mark["kind"] == "optimum"]
    ours = {point["budget"]: point["overhead"] for point in found["curve"]["points"]}
    assert len({mark["peak"] for mark in optimum} & ours.keys()) >= 2
    model, inputs = load_target(f"{model_file}:factory")
    for mark in sorted(optimum, key=lambda mark: mark["peak"])[-2:]:
        [report] = plan_step(model, inputs, Options(budget=mark["peak"], planner="online"))
        assert 0 <= mark["overhead"] <= report.overhead + 1e-6


def test_we_plan_for_the_peaks_of_the_rivals(model_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep(f"{model_file}:factory", "--budgets", "90%", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    budgets = {point["budget"] for point in found["curve"]["points"]}
    smallest = min(budgets)
    peaks = {mark["peak"] for mark in found["marks"]}
    assert {peak for peak in peaks if smallest <= peak <= max(budgets)} <= budgets


def test_the_command_writes_every_kind_of_file(
    model_file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = [tmp_path / f"curve{suffix}" for suffix in (".csv", ".json", ".html")]
    outputs = [text for path in files for text in ("-o", path)]
    assert sweep(f"{model_file}:factory", "--budgets", "85%", *outputs) == 0
    assert capsys.readouterr().out.count("Wrote ") == 3
    rows = list(csv.DictReader(files[0].open()))
    found = json.loads(files[1].read_text())
    assert len(rows) == len(found["curve"]["points"]) + len(found["marks"])
    assert [float(row["overhead"]) for row in rows if row["kind"] == "dtr"] == [
        point["overhead"] for point in found["curve"]["points"]
    ]
    assert files[2].read_text().count("<tr><td>") == len(rows)


def test_what_cannot_be_shown_is_said(model_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sweep(f"{model_file}:function", "--budgets", "90%") == 0
    assert "a function has no blocks" in capsys.readouterr().out
    assert sweep(f"{model_file}:deep", "--budgets", "60%", "--no-rivals", "--optimum", "1") == 0
    assert "too many to solve for" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--budgets", "8Gb"], "8Gb"),
        (["--budgets", "150%"], "at most 1"),
        (["-o", "curve.txt"], "name the file by what it is to be"),
        (["-o", "missing/curve.csv"], "there is no folder"),
        (["-o", "model.py.csv"], "exists"),
        (["--json", "-o", "curve.json"], "not both"),
    ],
)
def test_a_bad_command_line_is_one_line(
    arguments: list[str],
    error: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.py.csv").write_text("")
    assert sweep("there_is_no_such_module:factory", *arguments) == 2
    told = capsys.readouterr().err
    assert error in told
    assert told.count("\n") == 1


def test_a_graph_of_a_few_bytes_has_a_smallest_budget() -> None:
    """Less than one byte is a hundredth of its peak."""
    gm = torch.fx.symbolic_trace(lambda x: x.sin().cos().exp().sum() + x.sin().sum())
    options = {"options": QUICK, "example_inputs": [torch.ones(())]}
    assert 0 < dtr_fx.smallest_budget(gm, max_overhead="10%", **options) < 100
