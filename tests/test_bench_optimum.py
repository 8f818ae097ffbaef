"""``dtr-fx bench optimum``: small cases of what the results page is made with."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest

from dtr_fx.cli import main
from dtr_fx.cli.bench.optimum import goals
from dtr_fx.lab import networks
from dtr_fx.lab.planners import Gap, Node, OperatorGraph, check, plan_dtr, training_chain

pytest.importorskip("scipy")
pytest.importorskip("ortools")


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
    command = ["bench", "optimum", "--shares", "0.56", "0.2", "--heuristic", "dtr", "--seconds", "0.01"]
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
        main(["bench", "optimum", option, value])
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
    [goal] = goals([replace(gap, dtr={"search": cost}) for cost in costs])
    assert goal.met is met


def test_nothing_that_is_proved_is_no_goal() -> None:
    gap = Gap("some", 9, 0.5, 50, 40, 80, 100, 90, False, "Checkmate", 0.1, {"search": 100})
    assert not goals([gap])
    assert not goals([replace(gap, optimal=True, dtr={"dtr": 100})])
