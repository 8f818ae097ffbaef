"""The paper's figures: what is written, that the numbers are those of replays, and what the pictures show."""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
import re
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
import torch
from operator_logs import write_chain
from torch import nn

from dtr_fx.cli import figures as command
from dtr_fx.cli import output
from dtr_fx.cli.output import progress, waiting
from dtr_fx.errors import CommandError, DTRError
from dtr_fx.lab import networks
from dtr_fx.lab.figures.drawing import FIGURES, REPLAYED, draw_comparison, draw_linear, draw_study
from dtr_fx.lab.figures.overheads import _LOOKS, COMPARED, LARGEST, PlannerComparison
from dtr_fx.lab.figures.residency import trace_linear
from dtr_fx.lab.figures.slowdowns import largest_operator, plot_slowdowns
from dtr_fx.lab.figures.study import Study
from dtr_fx.lab.log import read_log
from dtr_fx.lab.planners import OperatorGraph, training_chain
from dtr_fx.lab.replay import replay
from dtr_fx.lab.sweep import RATIOS, Sweep
from dtr_fx.runtime import parameterized, random

PNG = b"\x89PNG"


@pytest.fixture
def log(tmp_path):
    return write_chain(tmp_path / "chain.log.gz", 10)


@pytest.fixture(scope="module")
def study():
    """All replays of the figures on a chain and on a U-shaped network."""
    made = Study([networks.linear(30), networks.unet(2)], FIGURES)
    made.run(processes=1)
    return made


def run(*arguments):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    command.run(parser.parse_args([*map(str, arguments), "-j", "1"]))


def rows(text):
    return list(csv.DictReader(io.StringIO(text)))


# The command


@pytest.mark.slow
def test_every_figure_is_written(log, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(command, "networks", lambda: [OperatorGraph.of(networks.linear(3))])
    folder = tmp_path / "new" / "figures"
    run("--logs", log, "-o", folder)
    files = [folder / f"figure{number}.{suffix}" for number in FIGURES for suffix in ("png", "csv")]
    assert capsys.readouterr().out.splitlines() == [f"Wrote {file}" for file in files]
    assert sorted(folder.iterdir()) == sorted(files)
    for picture, numbers in zip(files[::2], files[1::2]):
        assert picture.read_bytes().startswith(PNG)
        assert rows(numbers.read_text())


def test_files_hold_what_replays_give(log, tmp_path):
    run(2, 12, "--logs", log, "-o", tmp_path)
    program = read_log(log)
    for number in (2, 12):
        found = [
            row for row in rows((tmp_path / f"figure{number}.csv").read_text()) if row["heuristic"] != "rand"
        ]
        assert len(found) == (6 if number == 2 else 3) * len(RATIOS)
        for row in found:
            budget = int(row["budget"])
            expected = replay(program, budget, row["heuristic"], max_slowdown=2.0)
            assert float(row["ratio"]) == budget / program.peak
            assert (row["program"], row["outcome"]) == ("chain", expected.outcome)
            assert (int(row["scored"]), int(row["maintained"])) == (expected.scored, expected.maintained)
            assert row["slowdown"] == (str(expected.slowdown) if expected.outcome == "ok" else "")


@pytest.mark.parametrize(("suffix", "start"), [("svg", b"<?xml"), ("pdf", b"%PDF")])
def test_formats(tmp_path, suffix, start):
    run(5, "-o", tmp_path, "--format", suffix)
    assert (tmp_path / f"figure5.{suffix}").read_bytes().startswith(start)


def test_the_numbers_as_json(tmp_path):
    run(5, "-o", tmp_path, "--json")
    rows = json.loads((tmp_path / "figure5.json").read_text())
    with (tmp_path / "figure5.csv").open() as lines:
        expected = list(csv.DictReader(lines))
    assert [{name: str(value) for name, value in row.items()} for row in rows] == expected


def test_no_log_is_needed_for_the_linear_network(tmp_path):
    run(5, "-o", tmp_path)
    assert not (tmp_path / "logs").exists()


def test_files_are_overwritten_when_told_to_only(log, tmp_path):
    numbers = tmp_path / "figure2.csv"
    numbers.write_text("mine")
    with pytest.raises(CommandError, match=r"figure2\.csv exists: overwrite it with -f"):
        run(2, "--logs", log, "-o", tmp_path)
    assert numbers.read_text() == "mine"
    assert not (tmp_path / "figure2.png").exists()
    run(2, "--logs", log, "-o", tmp_path, "-f")
    assert len(rows(numbers.read_text())) == 11 * len(RATIOS)


def test_unknown_figures_are_refused(log, tmp_path):
    with pytest.raises(CommandError, match="figure 4 is none that is drawn here: choose among 2, 3, 5, 7, 8"):
        run(2, 4, "--logs", log, "-o", tmp_path / "none")
    assert not (tmp_path / "none").exists()


def test_logs_must_be_readable_and_named_apart(log, tmp_path):
    with pytest.raises(CommandError, match=r"cannot read .*missing\.log: No such file"):
        run(2, "--logs", tmp_path / "missing.log", "-o", tmp_path)
    (tmp_path / "other").mkdir()
    with pytest.raises(CommandError, match="several of the logs are named chain"):
        run(2, "--logs", log, write_chain(tmp_path / "other" / "chain.log"), "-o", tmp_path)


def test_a_folder_that_cannot_be_made(log):
    with pytest.raises(CommandError, match=r"cannot write into .*: File exists"):
        run(5, "-o", log)


def test_without_matplotlib(log, tmp_path, monkeypatch):
    for module in ("matplotlib", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(DTRError, match=re.escape("pip install 'dtr_fx[plot]'")):
        run(2, "--logs", log, "-o", tmp_path)
    results = Sweep([read_log(log)], ["lru"], [0.5]).run(processes=1)
    with pytest.raises(DTRError, match=re.escape("pip install 'dtr_fx[plot]'")):
        plot_slowdowns(results, "")


def test_without_a_solver(tmp_path, monkeypatch):
    monkeypatch.setattr(command.importlib.util, "find_spec", lambda name: None if name == "ortools" else name)
    with pytest.raises(CommandError, match=re.escape("needs ortools: pip install 'dtr_fx[optimal]'")):
        run(3, "-o", tmp_path)


def test_models_are_recorded_once(tmp_path, capsys, monkeypatch):
    recorded = []

    def tiny():
        recorded.append(1)
        return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1)), (torch.ones(2, 4),)

    monkeypatch.setattr("dtr_fx.lab.zoo.ZOO", {"tiny": tiny})
    monkeypatch.setattr(command, "networks", list)
    run(3, "-o", tmp_path)
    run(12, "-o", tmp_path)
    assert {row["graph"] for row in rows((tmp_path / "figure3.csv").read_text())} == {"tiny"}
    wrote = capsys.readouterr().out.splitlines()
    log = tmp_path / "logs" / "tiny.log.gz"
    assert len(recorded) == wrote.count(f"Wrote {log}") == 1
    found = rows((tmp_path / "figure12.csv").read_text())
    assert {(row["program"], int(row["whole"])) for row in found} == {("tiny", read_log(log).peak)}


# The replays


def test_a_study_runs_each_replay_once():
    shared = Study([networks.linear(30)], [2, 7, 8, 9, 10, 12])
    # Eight named ones, the random one five times, and 16 ablations less the six that are named ones.
    assert len(shared) == (8 + 5 + 16 - 6) * len(RATIOS)
    assert len(Study([networks.linear(30)], [3, 5])) == 0
    seen = []
    shared.run(processes=1, advance=seen.append)
    assert seen == list(range(1, len(shared) + 1))


BESIDE = ("coop", "mge")  # Coop's and MegEngine's heuristics, drawn where the paper's count the same cost


def test_ablations_are_the_family_of_the_appendix(study):
    for number, cost in ((7, "exact"), (8, "eq"), (9, "local"), (10, "no")):
        found = [result for result in study.replays(number) if result.heuristic not in BESIDE]
        assert len(found) == 4 * len(study.replays(number)) // (4 + len(BESIDE) * (number == 8))
        names = [
            f"h'({'s' if staleness else '-'}, {'m' if size else '-'}, {cost})"
            for staleness in (True, False)
            for size in (True, False)
        ]
        assert list(dict.fromkeys(result.heuristic for result in found)) == names
        for result in found:
            staleness, size = "(s" in result.heuristic, " m" in result.heuristic
            if (staleness, size, cost) == (False, False, "no"):
                continue
            program = next(other for other in study.programs if other.name == result.program)
            heuristic = parameterized(staleness=staleness, size=size, cost=cost)
            assert replay(program, result.budget, heuristic, max_slowdown=2.0) == result


def test_random_choice_runs_with_several_seeds(study):
    program = study.programs[0]
    by_budget = {}
    for result in study.replays(2):
        if (result.program, result.heuristic) == (program.name, "rand"):
            by_budget.setdefault(result.budget, []).append(result)
    assert len(by_budget) == len(RATIOS)
    for budget, results in by_budget.items():
        expected = [replay(program, budget, random(seed), max_slowdown=2.0) for seed in range(5)]
        assert results == expected


def test_deallocation_policies(study):
    program = study.programs[1]
    found = [result for result in study.replays(11) if result.program == program.name]
    assert [result.deallocation for result in found[:: len(RATIOS)]] == ["ignore", "eager", "banish"]
    for result in found:
        again = replay(program, result.budget, "dtr", deallocation=result.deallocation, max_slowdown=2.0)
        assert again == result


# The pictures


def lines(axes, color):
    return [line for line in axes.lines if line.get_color() == color]


def labels(figure):
    [legend] = figure.legends
    return [text.get_text() for text in legend.get_texts()]


@pytest.mark.parametrize("number", REPLAYED)
def test_curves_have_the_points_of_their_replays(study, number):
    drawing = draw_study(study, number)
    assert drawing.picture.get_suptitle().startswith(f"Figure {number}. ")
    assert len(drawing.picture.axes) == len(study.programs)
    for program, axes in zip(study.programs, drawing.picture.axes):
        assert axes.get_title().startswith(program.name)
        named = [line for line in axes.lines if not line.get_label().startswith("_")]
        kinds: dict[tuple[str, str], dict[float, list[float]]] = {}
        for result in study.replays(number):
            if result.program == program.name:
                value = result.scored + result.maintained if number == 12 else result.slowdown
                curve = kinds.setdefault((result.heuristic, result.deallocation), {})
                value = value if result.outcome == "ok" else math.nan
                curve.setdefault(result.budget / program.peak, []).append(value)
        assert len(named) == len(kinds)
        for line, curve in zip(named, kinds.values()):
            np.testing.assert_allclose(line.get_xdata(), list(curve))
            means = [np.mean(values) for values in curve.values()]
            np.testing.assert_allclose(np.asarray(line.get_ydata(), float), means)


def test_a_heuristic_looks_the_same_in_every_figure(study):
    def looks(number, name):
        axes = draw_study(study, number).picture.axes[0]
        [line] = [line for line in axes.lines if line.get_label() == name]
        return line.get_color(), line.get_marker()

    name = r"$h_\mathrm{DTR}^\mathrm{local}$"
    assert looks(2, name) == looks(12, name)
    axes = draw_study(study, 2).picture.axes[0]
    named = [line for line in axes.lines if not line.get_label().startswith("_")]
    assert len({line.get_color() for line in named}) == len({line.get_marker() for line in named}) == 7


def results_of(slowdowns, **changes):
    """Replays of one curve from slowdowns by budget; a word stands for another outcome."""
    base = replay(networks.linear(10), 10)
    return [
        replace(base, budget=budget, base=1.0, outcome="ok", recompute=value - 1, **changes)
        if isinstance(value, float)
        else replace(base, budget=budget, outcome=value, **changes)
        for budget, value in slowdowns.items()
    ]


@pytest.mark.parametrize(("outcome", "marker"), [("out of memory", "x"), ("thrash", "^")])
def test_a_curve_ends_with_a_marker_that_tells_why(outcome, marker):
    results = results_of({8: 1.25, 6: 1.5, 4: outcome, 2: outcome})
    figure = plot_slowdowns(results, "one")
    [axes] = figure.axes
    curve, leaving, end = lines(axes, axes.lines[0].get_color())
    np.testing.assert_allclose(curve.get_ydata(), [1.25, 1.5, math.nan, math.nan])
    height = axes.get_ylim()[1] if outcome == "thrash" else 1.5
    np.testing.assert_allclose(leaving.get_xydata(), [[0.6, 1.5], [0.4, height]])
    np.testing.assert_allclose(end.get_xydata(), [[0.4, height]])
    assert end.get_marker() == marker
    assert labels(figure)[-1] == {"out of memory": "out of memory", "thrash": "thrashes"}[outcome]


def test_the_legend_says_what_a_mark_on_the_edge_is():
    figure = plot_slowdowns(
        [*results_of({8: 1.25}), *results_of({6: "out of memory"}, heuristic="lru")], "one"
    )
    assert figure.axes[0].lines[-1].get_ydata()[0] == figure.axes[0].get_ylim()[0]
    assert labels(figure)[-1] == "out of memory (on the lower edge: at all budgets)"


def test_a_curve_that_does_all_budgets_has_no_end():
    figure = plot_slowdowns(results_of({8: 1.25, 6: 1.5}), "one")
    assert len(figure.axes[0].lines) == 1
    assert labels(figure) == [r"$h_\mathrm{DTR}^\mathrm{eq}$"]


def test_seeds_are_shown_as_mean_and_range():
    results = [*results_of({8: 1.25, 6: 1.5}), *results_of({8: 1.75, 6: "thrash"})]
    [axes] = plot_slowdowns(results, "two").axes
    np.testing.assert_allclose(axes.lines[0].get_ydata(), [1.5, math.nan])
    [band] = axes.collections
    heights = {y for x, y in band.get_paths()[0].vertices if x == 0.8}
    assert {1.25, 1.75} <= heights


def test_policies_are_told_apart():
    program = networks.linear(20)
    results = Sweep([program], ["dtr", "lru"], [0.8], ["eager", "banish"]).run(processes=1)
    figure = plot_slowdowns(results, "both")
    curves = figure.axes[0].lines
    assert len({(line.get_color(), line.get_linestyle()) for line in curves}) == 4
    assert labels(figure) == [r"$h_\mathrm{DTR}$", r"$h_\mathrm{LRU}$", "eager eviction", "banish"]


def test_floors_of_memory():
    program = networks.unet(2)
    # The last operator's gradient operator: it reads two tensors of 4 bytes, and writes a gradient of each.
    assert largest_operator(program) == 16
    results = Sweep([program], ["dtr"], [0.9]).run(processes=1)
    [axes] = plot_slowdowns(results, "floors", [program]).axes
    edges = [patch.get_x() + patch.get_width() for patch in axes.patches]
    np.testing.assert_allclose(edges, [0, 16 / program.peak])


def test_replays_without_a_budget_have_no_place():
    program = networks.linear(10)
    with pytest.raises(ValueError, match="no replay has a budget"):
        plot_slowdowns([replay(program)], "none")


# Figure 5


def test_the_linear_network_over_time():
    n = 100
    trace = trace_linear(n, "dtr-eq")
    states = trace.states()
    # The paper's own simulator needs 1.400 × 2N operators for N = 100 and B = 2⌈√N⌉.
    assert (trace.budget, trace.steps, states.shape) == (20, 280, (n, 280))
    assert trace.steps == 2 * n + replay(networks.linear(n), 20, "dtr-eq").rematerialized
    assert trace.backward == n
    for step in range(n):
        assert states[step, step] == 1
        assert (states[step + 1 :, step] == 0).all()
    resident = np.zeros(trace.steps, int)
    for interval in trace.intervals:
        resident[interval.start : interval.end] += 1
    assert resident.max() == trace.budget
    # Gradients t̂_N … t̂_1 come one after the other, and each is there once.
    first = [int(np.argmax(states[row] == 2)) for row in range(n)]
    assert first == sorted(first, reverse=True)
    assert first[0] == trace.steps - 1
    assert (states[:, : trace.backward] != 2).all()


def test_a_loose_budget_keeps_all():
    trace = trace_linear(30, "dtr", budget=60)
    assert trace.steps == 60
    assert len(trace.intervals) == 60


def test_picture_of_the_linear_network():
    trace = trace_linear(50)
    drawing = draw_linear(trace)
    [axes] = drawing.picture.axes
    [image] = axes.images
    np.testing.assert_array_equal(image.get_array(), trace.states())
    assert axes.lines[0].get_xdata()[0] == trace.backward
    assert f"N = 50, B = {trace.budget}" in drawing.picture.get_suptitle()
    assert rows(drawing.csv()) == [
        {"storage": str(interval.storage), "start": str(interval.start), "end": str(interval.end)}
        for interval in trace.intervals
    ]


# Figure 3


@pytest.fixture(scope="module")
def comparison():
    made = PlannerComparison(
        [OperatorGraph.of(networks.linear(6)), OperatorGraph.of(networks.random_dag(8, 1))]
    )
    made.run(processes=1)
    return made


def test_plans_are_judged_alike(comparison):
    assert len(comparison.results) == len(comparison)
    program = networks.linear(6)
    optimal = {}
    for result in comparison.results:
        if result.outcome == "no plan":
            assert result.overhead is None
            assert result.reason
            continue
        assert result.overhead >= 1
        assert result.peak <= result.budget
        if result.planner == "Checkmate":
            assert result.outcome == "optimal"
            optimal[result.graph, result.budget] = result.overhead
        if result.graph == program.name and result.planner in ("dtr", "lru"):
            assert result.overhead == replay(program, result.budget, result.planner).slowdown
    for result in comparison.results:
        if result.planner.startswith("Chen") and result.overhead is not None:
            assert result.overhead >= optimal[result.graph, result.budget]
    assert {result.planner for result in comparison.results} == set(COMPARED)


def test_picture_of_the_planners(comparison):
    drawing = draw_comparison(comparison)
    for graph, axes in zip(comparison.graphs, drawing.picture.axes):
        assert axes.get_title() == f"{graph.name} ({len(graph)} operators)"
        for planner in COMPARED:
            own = [
                (result.ratio, result.overhead)
                for result in comparison.results
                if (result.graph, result.planner) == (graph.name, planner) and result.overhead is not None
            ]
            drawn = [line.get_xydata().tolist() for line in axes.lines]
            assert [list(point) for point in own] in drawn
        for planner in COMPARED:
            own = [
                result
                for result in comparison.results
                if (result.graph, result.planner) == (graph.name, planner)
            ]
            marks = [
                line.get_xydata().tolist()
                for line in lines(axes, _LOOKS[planner].color)
                if line.get_marker() == "x"
            ]
            planned = [result for result in own if result.overhead is not None]
            smaller = [result for result in own if planned and result.ratio < planned[-1].ratio]
            assert marks == [[[result.ratio, planned[-1].overhead]] for result in smaller[:1]]
    found = rows(drawing.csv())
    assert [row["planner"] for row in found] == [result.planner for result in comparison.results]


def test_planners_are_tried_on_what_they_can_do(monkeypatch):
    """Every log has its panel; what was not tried on it is in the numbers, with the reason."""
    for planner, most in LARGEST.items():
        monkeypatch.setitem(LARGEST, planner, most // 20)  # 3 and 30
    middle, large = (OperatorGraph.of(networks.linear(n)) for n in (8, 16))
    made = PlannerComparison([middle, large])
    made.run(processes=1)
    assert len(draw_comparison(made).picture.axes) == 2
    tried = {
        graph.name: {
            result.planner
            for result in made.results
            if result.graph == graph.name and result.outcome != "not tried"
        }
        for graph in (middle, large)
    }
    assert tried[middle.name] == set(COMPARED) - {"Checkmate", "MOCCASIN"}
    assert tried[large.name] == {"dtr", "dtr-eq", "lru", "Chen √N"}
    reasons = {result.reason for result in made.results if result.outcome == "not tried"}
    assert reasons == {"not tried on more than 3 operators", "not tried on more than 30 operators"}


def test_a_log_without_times_has_no_overhead():
    still = OperatorGraph("still", tuple(node._replace(cost=0) for node in training_chain(3).nodes), 3)
    made = PlannerComparison([still])
    made.run(processes=1)
    assert {result.overhead for result in made.results} <= {1.0, None}


# Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_on_a_terminal(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with progress("replays", 8) as watch:
        shown = terminal.getvalue()
        watch(8)
    assert "replays" in shown
    assert "0/8" in shown
    assert terminal.getvalue().endswith("\r\033[K")


def test_waiting_on_a_terminal(monkeypatch):
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with waiting("planning"):
        time.sleep(0.3)
    assert "planning … 0:00" in terminal.getvalue()
    assert terminal.getvalue().endswith("\r\033[K")


def test_no_progress_elsewhere_of_what_is_soon_done(capsys):
    with progress("replays", 8) as watch:
        watch(8)
    assert capsys.readouterr().err == ""


def test_elsewhere_a_line_now_and_then(capsys, monkeypatch):
    assert output._LINES == 10
    monkeypatch.setattr(output, "_LINES", 0.1)
    with progress("replays", 8) as watch:
        watch(3)
        time.sleep(0.35)
    with waiting("planning"):
        time.sleep(0.15)
    *replays, planning = capsys.readouterr().err.splitlines()
    assert len(replays) in (2, 3)
    assert set(replays) == {"replays 3/8, 0:00"}
    assert planning == "planning, 0:00"
