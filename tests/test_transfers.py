"""Plans with transfers: the clock that judges them, optima derived by hand, the exact search, its rivals."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_graphs import first_end, graphs

from dtr_fx.cli import main
from dtr_fx.cli.bench import optimum
from dtr_fx.errors import CommandError
from dtr_fx.lab.planners import (
    MOVERS,
    Action,
    CannotPlan,
    Node,
    OperatorGraph,
    PlanError,
    Timing,
    find_transfer_gap,
    link_of,
    plan_moving,
    solve_checkmate,
    solve_transfers,
    time_plan,
    training_chain,
)
from dtr_fx.lab.planners.gaps import search_with_moves
from dtr_fx.tiers.tier import Bandwidth

pytestmark = pytest.mark.little_effort


def actions(text: str) -> list[Action]:
    """``"run 0, offload 0"``"""
    return [Action(kind, int(number)) for kind, number in map(str.split, text.split(", "))]


# a (4 bytes, costs 10), then w, which needs 6 of 8 bytes, then a is read again.
AROUND = OperatorGraph("around", (Node("a", 10, 4), Node("w", 5, 6), Node("last", 1, 1, (0,))))
# Before w another operator runs that leaves a where it is.
LATER = OperatorGraph("later", (Node("a", 10, 4), Node("b", 3, 1), Node("w", 5, 6), Node("last", 1, 1, (0,))))
# Two values of 4 bytes, both in w's way.
PAIR = OperatorGraph(
    "pair", (Node("a", 10, 4), Node("b", 10, 4), Node("w", 20, 8), Node("last", 1, 1, (0, 1)))
)


def test_a_plan_on_three_clocks():
    """a is made at 10, copied out until 12; w runs 12 to 17; a comes back until 19; last ends at 20."""
    plan = actions("run 0, offload 0, wait 0, run 1, drop 1, reload 0, run 2")
    assert time_plan(AROUND, plan, Bandwidth(2, 2), 8) == Timing(20, 0, 4, 6, 4)
    again = actions("run 0, drop 0, run 1, drop 1, run 0, run 2")
    assert time_plan(AROUND, again, Bandwidth(2, 2), 8) == Timing(26, 10, 0, 6, 0)


def test_copies_of_one_direction_wait_for_each_other():
    """a's copy takes 10 to 15, b's 20 to 25: so w starts at 25.  Back: 45 to 50, 50 to 55."""
    plan = "run 0, offload 0, run 1, offload 1, wait 0, wait 1, run 2, drop 2, reload 0, reload 1, run 3"
    assert time_plan(PAIR, actions(plan), Bandwidth(1, 1, 1), 9).total == 56
    # With copies of 12 a's ends at 22 and b's at 34, w ends at 54, and both are back at 78.
    assert time_plan(PAIR, actions(plan), Bandwidth(0.4, 0.4, 2), 9).total == 34 + 20 + 24 + 1


@pytest.mark.parametrize(
    ("plan", "error"),
    [
        ("run 2", r"run last \(2\) reads \[0\], which are not on the device"),
        ("run 0, run 0", "on the device already"),
        ("run 0, run 1", "brings 10 bytes, over 8"),
        ("run 0, offload 0, drop 0", "is being copied"),
        ("run 0, offload 0, wait 0, reload 0, drop 0", "is on its way back"),
        ("run 0, offload 0, offload 0", "was copied before"),
        ("run 0, wait 0", "is not being copied"),
        ("run 0, drop 0, reload 0", "is not on the host"),
        ("offload 0", "is not on the device"),
        ("run 0, drop 0", r"w \(1\) is never computed"),
        ("run 3", "none for 3 operators"),
        ("move 0", "none for 3 operators"),
    ],
)
def test_plans_that_are_none(plan, error):
    with pytest.raises(PlanError, match=error):
        time_plan(AROUND, actions(plan), Bandwidth(1, 1), 8)


def test_the_host_is_a_budget_too():
    with pytest.raises(PlanError, match="brings 4 bytes on the host, over 3"):
        time_plan(AROUND, actions("run 0, offload 0"), Bandwidth(1, 1), 8, host=3)


@pytest.mark.parametrize(
    ("graph", "budget", "link", "best"),
    [
        # a and w do not fit together, and last needs a: a copy out of t and one back of t, none of it hidden,
        # or a again for 10: 16 + min(2 t, 10).
        (AROUND, 8, Bandwidth(4, 4), 18),
        (AROUND, 8, Bandwidth(1, 1), 24),
        (AROUND, 8, Bandwidth(0.5, 0.5), 26),
        # Nothing to do where everything fits.
        (AROUND, 10, Bandwidth(1, 1), 16),
        # The copy out runs beside b, which costs 3: of its 2 nothing is left, of its 4 one.
        (LATER, 8, Bandwidth(2, 2), 19 + 2),
        (LATER, 8, Bandwidth(1, 2), 19 + 1 + 2),
        # w needs both gone.  a's copy out is hidden behind b, b's is not, and nothing hides copies back: both
        # moved is 2 out and 4 back.
        (PAIR, 9, Bandwidth(2, 2), 41 + 6),
        # Copies of 4: that would be 12.  b made again costs 10, in which a comes back.
        (PAIR, 9, Bandwidth(1, 1), 41 + 10),
        # Copies of 12: a's ends 2 after b does, and comes back 2 after b is made again.
        (PAIR, 9, Bandwidth(1 / 3, 1 / 3), 41 + 2 + 12),
        # Copies of 15: 5 and 15 are as long as making both again, of 16: longer.
        (PAIR, 9, Bandwidth(4 / 15, 4 / 15), 41 + 20),
        (PAIR, 9, Bandwidth(1 / 4, 1 / 4), 41 + 20),
    ],
)
def test_optima_by_hand(graph, budget, link, best):
    solution = solve_transfers(graph, budget, link, 20)
    assert solution.optimal
    assert solution.cost == solution.bound == pytest.approx(best)
    assert time_plan(graph, solution.actions, link, budget).total == solution.cost


def test_a_host_that_holds_one_of_two_values():
    """Fast copies: a's is hidden, b's takes 1 out, 2 for both back; with room for one, b is made again."""
    assert solve_transfers(PAIR, 9, Bandwidth(4, 4), 20).cost == pytest.approx(41 + 1 + 2)
    assert solve_transfers(PAIR, 9, Bandwidth(4, 4), 20, host=4).cost == pytest.approx(41 + 10)
    assert solve_transfers(PAIR, 9, Bandwidth(4, 4), 20, host=3).cost == pytest.approx(41 + 20)


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(
    graphs(),
    st.floats(0, 1),
    st.tuples(*[st.sampled_from([0.3, 1.0, 3.0])] * 2, st.sampled_from([0.0, 0.5])),
    st.sampled_from([math.inf, math.inf, 4]),
)
def test_the_search_finds_what_trying_everything_finds(graph, share, speeds, host):
    budget = round(graph.floor + share * (graph.peak - graph.floor))
    link = Bandwidth(*speeds)
    graph = OperatorGraph(graph.name, graph.nodes[:5])
    best = first_end(graph, budget, link, host)
    try:
        solution = solve_transfers(graph, budget, link, 60, host=host)
    except CannotPlan:
        assert best == math.inf
        return
    assert solution.optimal
    assert solution.cost == pytest.approx(best)


def test_without_a_link_worth_its_name_the_optimum_is_that_of_recomputation():
    pytest.importorskip("scipy")
    graph = training_chain(5)
    slow = Bandwidth(1e-6, 1e-6)
    for budget in (5, 6):
        assert solve_transfers(graph, budget, slow, 20).cost == solve_checkmate(graph, budget).cost


@pytest.mark.slow
def test_no_rival_is_ahead_of_the_optimum():
    for graph, ratios in ((training_chain(5), (0.3, 1.0, 3.0)), (training_chain(6), (1.0,))):
        for ratio in ratios:
            gap = find_transfer_gap(graph, 0.8, ratio, MOVERS, 20)
            assert gap is not None
            assert gap.optimal
            assert gap.cost <= gap.best <= min(gap.plans.values())


def test_moving_alone_runs_every_operator_once():
    graph = training_chain(8)
    for budget in (4, 5, 7):
        link = link_of(graph, 1)
        timing = time_plan(graph, plan_moving(graph, budget, link), link, budget)
        assert timing.recompute == 0
        assert timing.peak <= budget
        assert timing.host > 0
    assert time_plan(graph, plan_moving(graph, 20, link), link).host == 0
    with pytest.raises(CannotPlan, match="moving alone cannot plan 3 bytes"):
        plan_moving(graph, 3, link)
    with pytest.raises(CannotPlan, match="moving alone"):
        plan_moving(graph, 5, link, host=2)


def test_what_cannot_be_solved():
    graph = training_chain(5)
    with pytest.raises(CannotPlan, match="every plan needs 4"):
        solve_transfers(graph, 3, Bandwidth(1, 1))
    with pytest.raises(ValueError, match="needs a budget and some seconds"):
        solve_transfers(graph, 5, Bandwidth(1, 1), 0)


def test_when_time_is_up_the_bound_holds():
    graph = training_chain(10)
    link = link_of(graph, 3)
    known = plan_moving(graph, 5, link)
    solution = solve_transfers(graph, 5, link, 0.2, known=[known])
    assert not solution.optimal
    assert graph.cost <= solution.bound <= solution.cost == time_plan(graph, known, link, 5).total


def test_the_benchmark_prints_the_optimum_and_the_gaps(monkeypatch, capsys):
    graph = training_chain(5)
    monkeypatch.setattr("dtr_fx.cli.bench.optimum.small_programs", lambda: [graph])
    assert main(["bench", "plans", "--only", "transfers", "--shares", "65%", "10%", "--seconds", "20"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    cases = [line for line in lines if line[:3] == ["chain", "of", "5"]]
    assert [line[6] for line in cases] == ["0.3", "1", "3"]
    gap = find_transfer_gap(graph, 0.65, 3.0, MOVERS, 20)
    shown = [float(word) for word in cases[2][8:] if word not in "×"]
    ends = [gap.best / gap.cost, *(end / gap.cost for end in gap.plans.values())]
    assert [shown[0], *shown[2:]] == pytest.approx(ends, abs=0.001)
    [alone] = (line for line in lines if line[:4] == ["moving", "alone", "×", "3"])
    assert float(alone[4].strip("+%")) == pytest.approx(100 * gap.gap("moving alone"), abs=0.1)
    assert alone[-3:] == ["1", "of", "1"]


def test_no_plan_ends_before_the_optimum():
    """What a channel still copies delays an operator only if that waits for more of it."""
    unet = next(graph for graph in optimum.small_programs() if graph.name == "unet(1), random costs")
    link = link_of(unet, 1.0)
    plan = search_with_moves(unet, 33, link)
    ends = time_plan(unet, plan, link, 33).total
    assert solve_transfers(unet, 33, link, 30.0).bound <= ends * (1 + 1e-9)


def test_copies_out_are_waited_for_when_their_bytes_are_needed():
    """Between two layers what comes back is issued while what goes is still on its way."""
    tree = next(graph for graph in optimum.small_programs() if graph.name == "tree(2)")
    budget, link = int(0.8 * tree.program.peak), link_of(tree, 3.0)
    both, alone = (
        time_plan(tree, plan(tree, budget, link), link, budget).total
        for plan in (search_with_moves, plan_moving)
    )
    assert both < alone


def test_an_interrupted_benchmark_goes_on(tmp_path):
    kept = tmp_path / "cases.jsonl"
    case = [training_chain(3)], (0.8,), 1.0, {"moving alone": plan_moving}, (1.0,)
    first = list(optimum.transfer_results(*case, resume=kept))
    lines = kept.read_text()
    assert len(lines.splitlines()) == len(first) == 1
    assert list(optimum.transfer_results(*case, resume=kept)) == first
    assert kept.read_text() == lines
    kept.write_text("no JSON\n")
    with pytest.raises(CommandError, match="not a file that this option wrote"):
        list(optimum.transfer_results(*case, resume=kept))
