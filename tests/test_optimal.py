"""The exact planners: known optima, agreement with each other and with trying everything, their limits."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_graphs import cheapest, graphs

from dtr_fx.lab.planners import (
    CannotPlan,
    Node,
    OperatorGraph,
    check,
    find_gap,
    plan_dtr,
    solve_checkmate,
    solve_moccasin,
    training_chain,
)

pytest.importorskip("scipy")
pytest.importorskip("ortools")

SOLVERS = [solve_checkmate, solve_moccasin]


# Total over base cost at budgets given as bytes: 40 / 35 and 45 / 35.
@pytest.mark.parametrize("solve", SOLVERS)
@pytest.mark.parametrize(
    ("budget", "slowdown"), [(9, 1.143), pytest.param(6.5, 1.286, marks=pytest.mark.slow)]
)
def test_known_optima_of_a_chain_of_24_operators(solve, budget, slowdown):
    graph = training_chain(12)
    assert (len(graph), graph.peak) == (24, 14)
    solution = solve(graph, budget)
    assert solution.optimal
    assert solution.cost / graph.cost == pytest.approx(slowdown, abs=0.0005)
    assert check(graph, solution.require(), budget).total == solution.cost == solution.bound


# Likewise, of 47 and a peak of 18: 54 / 47 and 59 / 47.  Checkmate finds both, in some seconds.
@pytest.mark.parametrize(("budget", "slowdown"), [(11, 1.149), (7.5, 1.255)])
def test_known_optima_of_a_chain_of_32_operators(budget, slowdown):
    graph = training_chain(16)
    assert (len(graph), graph.peak) == (32, 18)
    solution = solve_moccasin(graph, budget)
    assert solution.optimal
    assert solution.cost / graph.cost == pytest.approx(slowdown, abs=0.0005)
    assert check(graph, solution.require(), budget).total == solution.cost


def outcome(solve: Any, graph: OperatorGraph, budget: float, **options: Any) -> float:
    """The optimum, infinite where nothing fits."""
    try:
        solution = solve(graph, budget, **options)
    except CannotPlan:
        return math.inf
    assert solution.optimal
    assert check(graph, solution.require(), budget).total == solution.cost
    return solution.cost


@pytest.mark.slow
@settings(max_examples=40)
@given(graphs(), st.floats(0, 1))
def test_both_find_the_cheapest_plan_in_stages(graph, share):
    """With as many intervals as there are stages MOCCASIN's plans are Checkmate's."""
    budget = round(graph.floor + share * (graph.peak - graph.floor))
    staged = cheapest(graph, budget, staged=True)
    assert outcome(solve_checkmate, graph, budget) == staged
    assert outcome(solve_moccasin, graph, budget, intervals=len(graph)) == staged
    assert staged >= cheapest(graph, budget)


@settings(max_examples=20)
@given(graphs(), st.floats(0, 1))
def test_fewer_intervals_allow_fewer_plans(graph, share):
    budget = round(graph.floor + share * (graph.peak - graph.floor))
    optimum = outcome(solve_checkmate, graph, budget)
    costs = [outcome(solve_moccasin, graph, budget, intervals=intervals) for intervals in (1, 2, 3)]
    assert costs[0] >= costs[1] >= costs[2] >= optimum
    assert costs[0] == (graph.cost if budget >= graph.peak else math.inf)


NO_STAGE = OperatorGraph(
    "no stage",
    (
        Node("a", 1, 2),
        Node("b", 1, 2, (0,)),
        Node("c", 1, 2, (1,)),
        Node("wide", 1, 5),
        Node("last", 1, 1, (0, 2)),
    ),
)


def test_plans_that_fit_into_no_stage():
    """Where Checkmate's definition and the cheapest plan differ.

    The last operator reads a and c.  ``a`` has to be freed before c can be made of b, and everything for the
    wide operator before it: so a runs twice between that one and the last, in one stage.
    """
    graph = NO_STAGE
    for solve in SOLVERS:
        with pytest.raises(CannotPlan, match=r"no stage: no plan of .* fits 5 bytes"):
            solve(graph, 5)
    assert check(graph, plan_dtr(graph, 5), 5).total == cheapest(graph, 5) == 9
    assert outcome(solve_checkmate, graph, 6) == outcome(solve_moccasin, graph, 6) == 8


@pytest.mark.parametrize("solve", SOLVERS)
def test_a_budget_that_no_plan_fits(solve):
    with pytest.raises(CannotPlan, match="every plan needs 4"):
        solve(training_chain(6), 3)


@pytest.mark.parametrize("solve", SOLVERS)
def test_what_no_program_is_written_for(solve):
    with pytest.raises(CannotPlan, match="empty: there are no operators to plan"):
        solve(OperatorGraph("empty", ()), 10)
    for budget, seconds in ((math.nan, 1), (10, math.nan), (10, 0), (10, -1)):
        with pytest.raises(ValueError, match="needs a budget and some seconds"):
            solve(training_chain(4), budget, seconds)


@pytest.mark.parametrize("solve", SOLVERS)
def test_what_fits_is_not_recomputed(solve):
    graph = training_chain(4)
    assert solve(graph, math.inf).cost == solve(graph, graph.peak).cost == graph.cost


@pytest.mark.parametrize("solve", SOLVERS)
def test_an_unsolved_program_is_reported_as_such(solve):
    graph = training_chain(40)
    solution = solve(graph, 12, seconds=0.5)
    assert not solution.optimal
    assert graph.cost <= solution.bound <= solution.cost
    if solution.plan is None:
        with pytest.raises(CannotPlan, match=f"{solution.planner}: no plan found"):
            solution.require()
    else:
        check(graph, solution.plan, 12)


def test_a_program_too_large_to_write_down():
    with pytest.raises(CannotPlan, match="500 operators; Checkmate's is for 400 at most"):
        solve_checkmate(training_chain(250), 100)


@pytest.mark.parametrize("solve", SOLVERS)
def test_large_bytes_and_small_costs(solve):
    """Bytes of gigabytes, and seconds of microseconds, come to the same plan costs as units do."""
    unit = training_chain(6)
    nodes = [
        Node(node.name, node.cost * 3.7e-6, node.size * 1_500_000_001, node.inputs) for node in unit.nodes
    ]
    graph = OperatorGraph("in bytes", tuple(nodes), 6, unit.results)
    for budget in (5, 6):
        expected = solve(unit, budget).cost
        found = solve(graph, budget * 1_500_000_001)
        assert found.optimal
        assert found.cost == pytest.approx(expected * 3.7e-6, rel=1e-5)
        check(graph, found.require(), budget * 1_500_000_001)


@pytest.mark.parametrize("solve", SOLVERS)
def test_bytes_without_a_common_divisor(solve):
    """Whatever sizes are rounded to, the plan fits into the bytes that were asked for."""
    chain = training_chain(5)
    nodes = [
        Node(node.name, node.cost, 2**30 + 7919 * number**3, node.inputs)
        for number, node in enumerate(chain.nodes)
    ]
    graph = OperatorGraph("odd bytes", tuple(nodes), 5, chain.results)
    for budget in (graph.floor * 5 // 4, (graph.floor + graph.peak) // 2, graph.peak - 1):
        solution = solve(graph, budget)
        assert solution.optimal
        assert check(graph, solution.require(), budget).total == cheapest(graph, budget, staged=True)


def test_moccasin_is_deterministic():
    graph = training_chain(8)
    assert solve_moccasin(graph, 6).plan == solve_moccasin(graph, 6).plan


def test_gaps():
    """DTR against the optimum: what is not feasible is infinite, and what fits has no gap."""
    graph = training_chain(6)
    shares = [1.0, 5 / 8, 3 / 8]
    whole, tight, none = (find_gap(graph, share, ["dtr", "lru"], seconds=20) for share in shares)
    assert (whole.budget, tight.budget, none.budget) == (8, 5, 3)
    assert (whole.best, whole.gap("dtr"), whole.gap("lru")) == (graph.cost, 0, 0)
    assert tight.optimal
    assert tight.solver == "Checkmate"
    assert tight.dtr["dtr"] == check(graph, plan_dtr(graph, 5, "dtr"), 5).total
    assert tight.gap("dtr") == tight.dtr["dtr"] / tight.best - 1 >= 0
    assert none.best == none.dtr["dtr"] == none.bound == math.inf
    assert none.budget < none.floor
    assert math.isnan(none.gap("dtr"))


def test_gaps_where_only_dtr_has_a_plan():
    """A budget that every operator fits into, and no plan in stages does: that is proved."""
    gap = find_gap(NO_STAGE, 5 / NO_STAGE.peak, ["dtr-eq"], seconds=20)
    assert gap.budget == gap.floor == 5
    assert (gap.best, gap.bound, gap.optimal, gap.solver) == (math.inf, math.inf, False, "Checkmate")
    assert gap.dtr["dtr-eq"] == 9


def test_gaps_of_graphs_too_large_for_checkmate(monkeypatch):
    monkeypatch.setattr("dtr_fx.lab.planners.checkmate.MAX_OPERATORS", 10)
    gap = find_gap(training_chain(6), 5 / 8, ["dtr"], seconds=20)
    assert (gap.solver, gap.optimal) == ("MOCCASIN", True)
