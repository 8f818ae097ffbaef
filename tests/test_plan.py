"""A plan is a value: equal, hashable, printable in the paper's notation, the same after JSON."""

from __future__ import annotations

import pytest

from dtr_fx.lab import networks
from dtr_fx.runtime import HEURISTICS, Plan
from dtr_fx.runtime.program import Call, Keep, Output, Program
from dtr_fx.search import Policy, execute_order, find_plan, paper, run_policy

# f0 makes 4 bytes in 2 s, which f2 reads again; f1 needs 6 bytes meanwhile, f3 runs between.
PROGRAM = Program(
    "four",
    (
        Call("f0", (), (Output(0, 4),), 2.0),
        Call("f1", (0,), (Output(1, 1),), 3.0, workspace=5),
        Call("f2", (1,), (Output(2, 6),), 5.0),
        Call("f3", (0, 2), (Output(3, 1),), 7.0),
        Keep(3),
    ),
)


def test_a_plan_in_the_papers_notation():
    plan = execute_order(PROGRAM, [0, 1, 2, 0, 3])
    assert str(plan) == "C f0, C f1, D t0, C f2, B t1, R f0, C f3, B t0, B t2"


def test_a_drop_has_its_reason_in_numbers():
    plan = execute_order(PROGRAM, [0, 1, 2, 0, 3])
    [drop] = [step for step in plan.steps if step.kind == "drop"]
    assert (drop.storage, drop.nbytes, drop.again, drop.away) == (0, 4, 2.0, 5.0)
    banished = [step for step in plan.steps if step.kind == "banish"]
    assert all(step.again is None for step in banished)


def test_a_plan_is_a_value():
    one, same = (find_plan(networks.residual(4), 16, Policy(HEURISTICS["next-use"]), 0.03) for _ in range(2))
    other = find_plan(networks.residual(4), 20, Policy(HEURISTICS["next-use"]), 0.03)
    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert len({one, same, other}) == 2
    with pytest.raises(AttributeError):
        one.peak = 0  # type: ignore[misc]


@pytest.mark.parametrize("heuristic", ["dtr-eq", "lru", "next-use"])
def test_json_and_back(heuristic):
    plan = run_policy(networks.linear(30), 12, paper(HEURISTICS[heuristic])).plan
    assert plan.decided_by == heuristic
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize("text", ["[]", "{}", '{"steps": [["compute"]]}', "3"])
def test_what_is_no_plan(text):
    with pytest.raises(ValueError, match="no plan"):
        Plan.from_json(text)
