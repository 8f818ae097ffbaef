"""Static planners on operator graphs: every plan is judged by one verifier, and none beats the optimum."""

from __future__ import annotations

import math
from functools import cache
from itertools import count, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_graphs import cheapest, graphs

from dtr_fx.errors import GraphError
from dtr_fx.lab.planners import (
    PLANNERS,
    CannotPlan,
    Node,
    OperatorGraph,
    PlanError,
    check,
    plan_chen_greedy,
    plan_chen_sqrt,
    plan_dtr,
    plan_order,
    plan_revolve,
    training_chain,
)
from dtr_fx.lab.planners.checkpointing import revolve_order
from dtr_fx.lab.replay import replay
from dtr_fx.runtime import Plan, Step
from dtr_fx.runtime.program import Call, Constant, Keep, Output, Program, Release

ALL = {**PLANNERS, "DTR": plan_dtr, "DTR by size": lambda graph, budget: plan_dtr(graph, budget, "size")}


def compute(op: int) -> Step:
    return Step("compute", op, -1, 0)


def free(op: int) -> Step:
    return Step("banish", op, op, 0)


def plan_of(*steps: Step) -> Plan:
    return Plan(steps, budget=math.inf, peak=0, cost=0.0)


def plain_chain(layers: int) -> OperatorGraph:
    """f_0 … f_{N-1} and b_{N-1} … b_0, where b_i reads f_i and b_{i+1}: the chain of Revolve."""
    nodes = [Node(f"f{layer}", 1, 1, (layer - 1,) if layer else ()) for layer in range(layers)]
    for layer in reversed(range(layers)):
        nodes.append(Node(f"b{layer}", 1, 1, (layer, len(nodes) - 1) if layer < layers - 1 else (layer,)))
    return OperatorGraph("plain chain", tuple(nodes), layers)


# The verifier


PAIR = OperatorGraph("pair", (Node("a", 1, 4), Node("b", 2, 3, (0,))), 1, frozenset({1}))


def test_what_a_plan_costs():
    plan = plan_of(compute(0), free(0), compute(0), compute(1), free(0))
    cost = check(PAIR, plan, budget=7)
    assert (cost.total, cost.peak, cost.computes) == (4, 7, (2, 1))


@pytest.mark.parametrize(
    ("steps", "says"),
    [
        ((compute(1), compute(0)), r"step 0: b \(1\) is computed without its inputs \[0\]"),
        ((compute(0), free(0), compute(1)), r"step 2: b \(1\) is computed without its inputs \[0\]"),
        ((compute(0), compute(0), compute(1)), r"step 1: a \(0\) is computed and is already live"),
        ((compute(0), compute(1), free(0), free(0)), r"step 3: a \(0\) is freed and is not live"),
        ((free(1), compute(0), compute(1)), r"step 0: b \(1\) is freed and is not live"),
        ((compute(0),), r"b \(1\) is never computed"),
        ((compute(0), compute(1), free(1)), r"the results \[1\] are not live at the end"),
        ((compute(0), compute(2)), r"step 1: compute 2 names none of the 2 operators"),
    ],
)
def test_a_broken_plan_is_refused(steps, says):
    with pytest.raises(PlanError, match=says):
        check(PAIR, plan_of(*steps))


def test_a_plan_over_budget_is_refused():
    plan = plan_of(compute(0), compute(1))
    assert check(PAIR, plan, 7).peak == 7
    with pytest.raises(PlanError, match=r"step 1: b \(1\) brings 7 bytes, over 6"):
        check(PAIR, plan, 6)


@given(graphs())
def test_the_program_itself_is_a_plan(graph):
    cost = check(graph, plan_order(graph, range(len(graph))))
    assert (cost.total, cost.peak) == (graph.cost, graph.peak)
    assert graph.program.peak == graph.peak
    assert graph.floor <= graph.peak


@given(graphs(), st.data())
def test_no_step_of_a_plan_can_be_left_out(graph, data):
    plan = plan_order(graph, range(len(graph)))
    computes = [number for number, step in enumerate(plan.steps) if step.kind == "compute"]
    left_out = data.draw(st.sampled_from(computes))
    with pytest.raises(PlanError):
        check(graph, plan_of(*plan.steps[:left_out], *plan.steps[left_out + 1 :]))


# Graphs


def test_a_graph_of_a_schedule():
    """Views are their base, outputs are merged, constants are taken out, as in Figure 3."""
    program = Program(
        "step",
        (
            Constant(0, 100),
            Call("f", (0,), (Output(1, 4), Output(2, 6)), 5.0),
            Call("view", (2,), (Output(3, 0, alias=2),), 1.0),
            Call("transpose", (0,), (Output(4, 0, alias=0),), 1.0),
            Call("g", (3, 1, 4), (Output(5, 3),), 7.0),
            Release(1),
            Call("f backward", (5, 3), (Output(6, 2),), 2.0),
            Keep(6),
            Keep(0),
        ),
        backward=4,
    )
    assert OperatorGraph.of(program) == OperatorGraph(
        "step",
        (Node("f", 6.0, 10), Node("g", 7.0, 3, (0,)), Node("f backward", 2.0, 2, (1, 0))),
        backward=2,
        results=frozenset({2}),
        constants=100,
    )


def test_results_are_split_off():
    """The gradient of the parameter stays, that of the activation does not have to."""
    program = Program(
        "linear",
        (
            Constant(0, 10),
            Call("linear backward", (0,), (Output(1, 100), Output(2, 10)), 5.0),
            Call("view", (2,), (Output(3, 0, alias=2),), 0.0),
            Call("input backward", (1,), (Output(4, 1),), 2.0),
            Keep(3),
        ),
    )
    linear, results = Node("linear backward", 5.0, 100), Node("linear backward results", 0.0, 10, (0,))
    assert OperatorGraph.of(program) == OperatorGraph(
        "linear",
        (linear, results, Node("input backward", 2.0, 1, (0,))),
        results=frozenset({1}),
        constants=10,
    )


@given(graphs())
def test_a_graph_survives_as_a_schedule(graph):
    assert OperatorGraph.of(graph.program) == graph


@pytest.mark.parametrize(
    ("nodes", "more"),
    [
        ((Node("a", 1, 1, (0,)),), {}),
        ((Node("a", 1, 1, (1,)), Node("b", 1, 1)), {}),
        ((Node("a", -1, 1),), {}),
        ((Node("a", math.inf, 1),), {}),
        ((Node("a", 1, -1),), {}),
        ((Node("a", 1, 1.5),), {}),
        ((Node("a", math.nan, 1),), {}),
        ((Node("a", 1, 1),), {"results": frozenset({1})}),
        ((Node("a", 1, 1),), {"backward": 2}),
    ],
)
def test_what_is_no_graph(nodes, more):
    with pytest.raises(GraphError):
        OperatorGraph("none", nodes, **more)


def test_a_chain_has_a_layer_at_least():
    assert training_chain(1).cost == 2
    with pytest.raises(ValueError, match="layers is 0; it must be at least 1"):
        training_chain(0)


# All planners


@settings(max_examples=150)
@given(graphs(), st.floats(0, 1))
def test_every_plan_is_sound_and_none_beats_the_optimum(graph, share):
    budget = round(graph.floor - 1 + share * (graph.peak - graph.floor + 1))
    optimum = cheapest(graph, budget)
    for planner in ALL.values():
        try:
            plan = planner(graph, budget)
        except CannotPlan:
            continue
        assert check(graph, plan, budget).total >= optimum >= graph.cost


@given(graphs())
def test_below_what_an_operator_needs_nothing_is_planned(graph):
    for planner in ALL.values():
        with pytest.raises(CannotPlan):
            planner(graph, graph.floor - 1)


@given(graphs())
def test_what_fits_is_not_recomputed(graph):
    for planner in (plan_dtr, plan_revolve, plan_chen_greedy):
        assert check(graph, planner(graph, graph.peak)).total == graph.cost


@pytest.mark.parametrize("planner", [plan_chen_sqrt, plan_chen_greedy, plan_revolve])
def test_checkpointing_needs_a_backward_pass(planner):
    graph = OperatorGraph("inference", (Node("a", 1, 1), Node("b", 1, 1, (0,))))
    with pytest.raises(CannotPlan, match=r"inference: .* no backward pass"):
        planner(graph, 10)


# DTR


@given(graphs(), st.floats(0.3, 1), st.sampled_from(["dtr", "lru", "next-use"]))
def test_dtr_as_a_plan_costs_what_its_replay_costs(graph, share, heuristic):
    budget = int(share * graph.peak)
    replayed = replay(graph.program, budget, heuristic, max_slowdown=101)
    if replayed.outcome == "ok":
        cost = check(graph, plan_dtr(graph, budget, heuristic), budget)
        assert cost.total == pytest.approx(replayed.base + replayed.recompute)
        assert cost.peak == replayed.peak
    else:
        with pytest.raises(CannotPlan):
            plan_dtr(graph, budget, heuristic)


# Chen et al. 2016


@pytest.mark.parametrize("layers", [1, 2, 3, 10, 100, 1000])
def test_chen_sqrt_takes_root_n_memory_and_one_more_forward_pass(layers):
    graph = plain_chain(layers)
    cost = check(graph, plan_chen_sqrt(graph))
    segment = math.isqrt(layers - 1) + 1
    # Checkpoints of all segments, one whole segment, two gradients.
    assert cost.peak <= 2 * segment + 2
    assert max(cost.computes[:layers]) <= 2
    assert set(cost.computes[layers:]) == {1}


@given(graphs())
def test_chen_runs_no_forward_operator_more_than_twice(graph):
    computes = check(graph, plan_chen_sqrt(graph)).computes
    assert all(runs <= (2 if number in graph.forward else 1) for number, runs in enumerate(computes))


def test_chen_greedy_cuts_by_bytes():
    """Two large values and many small ones: segments of equal count are not what fits."""
    sizes = [1] * 10 + [20, 20] + [1] * 10
    nodes = [Node(f"f{layer}", 1, size, (layer - 1,) if layer else ()) for layer, size in enumerate(sizes)]
    for layer in reversed(range(len(sizes))):
        nodes.append(Node(f"b{layer}", 1, 1, (layer, len(nodes) - 1)))
    graph = OperatorGraph("uneven", tuple(nodes), len(sizes))
    by_count = check(graph, plan_chen_sqrt(graph))
    by_bytes = check(graph, plan_chen_greedy(graph, by_count.peak))
    assert by_bytes.total <= by_count.total
    assert by_bytes.peak <= by_count.peak
    assert by_bytes.total < graph.cost + len(sizes) - 1


def test_a_skip_connection_is_kept_across_segments():
    """f0 is read at the end of the forward pass: it is there without being computed again."""
    nodes = [Node(f"f{layer}", 1, 1, (layer - 1,) if layer else ()) for layer in range(8)]
    nodes.append(Node("f8", 1, 1, (7, 0)))
    for layer in reversed(range(9)):
        nodes.append(Node(f"b{layer}", 1, 1, (layer, len(nodes) - 1) if layer < 8 else (layer,)))
    graph = OperatorGraph("skip", tuple(nodes), 9)
    computes = check(graph, plan_chen_sqrt(graph)).computes
    assert computes[0] == computes[2] == computes[5] == 1  # the skip, and the ends of two segments
    assert computes[1] == computes[3] == computes[4] == 2


# Revolve


@cache
def fewest_steps(steps: int, snapshots: int) -> int:
    """What visiting a chain's values from last to first takes, by trying every place for the snapshot."""
    if steps == 0 or snapshots == 0:
        return steps * (steps + 1) // 2
    return min(
        place + fewest_steps(steps - place, snapshots - 1) + fewest_steps(place - 1, snapshots)
        for place in range(1, steps + 1)
    )


def forward_steps(steps: int, snapshots: int) -> int:
    """How many operators a chain's forward pass of N takes, all visits included.

    Griewank and Walther's t(l, c) = r l − C(c + r, c + 1) for l = N + 1 steps and c = s + 1 checkpoints, the
    input among them, where r is the smallest number with C(c + r, c) ≥ l: no operator runs more often.
    """
    checkpoints = snapshots + 1
    runs = next(runs for runs in count() if math.comb(checkpoints + runs, checkpoints) >= steps + 1)
    return runs * (steps + 1) - math.comb(checkpoints + runs, checkpoints + 1)


@pytest.mark.parametrize("steps", range(1, 31))
def test_revolve_runs_as_the_binomial_formula_says(steps):
    graph = plain_chain(steps)
    for snapshots in range(steps):
        computes = check(graph, plan_order(graph, revolve_order(graph, snapshots))).computes
        assert sum(computes[:steps]) == forward_steps(steps, snapshots) == fewest_steps(steps, snapshots)
        assert set(computes[steps:]) == {1}


def test_griewank_and_walthers_formula():
    """No step runs more than r times as long as l ≤ C(c + r, c), the input being one of the c checkpoints."""
    for checkpoints in range(1, 6):
        for runs in range(1, 6):
            longest = math.comb(checkpoints + runs, checkpoints) - 1
            for steps, most in ((longest, runs), (longest + 1, runs + 1)):
                graph = plain_chain(steps)
                order = revolve_order(graph, checkpoints - 1)
                assert max(check(graph, plan_order(graph, order)).computes) == most


def test_revolve_at_logarithmic_memory():
    graph = plain_chain(1000)
    cost = check(graph, plan_revolve(graph, 14))
    assert cost.peak <= 14
    assert max(cost.computes) <= 5


def test_a_tighter_budget_costs_revolve_more():
    graph = plain_chain(40)
    totals = [check(graph, plan_revolve(graph, budget)).total for budget in range(3, 42)]
    assert all(tight >= loose for tight, loose in pairwise(totals))
    assert totals[-1] == graph.cost
