"""Replays and sweeps: what they report, and the original simulator's results on its own logs."""

from __future__ import annotations

import csv
import io
import itertools
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from dtr_fx.lab.log import read_log, with_offload
from dtr_fx.lab.replay import replay
from dtr_fx.lab.simrd import SimrdRuntime
from dtr_fx.lab.sweep import Sweep, to_csv, to_json
from dtr_fx.runtime import HEURISTICS
from dtr_fx.runtime.driver import drive
from dtr_fx.runtime.program import Call, Constant, Instruction, Keep, Output, Program, Release
from dtr_fx.runtime.steps import DROP

LOGS = Path(__file__).resolve().parents[2] / "shared" / "dtr_logs"
OURS_TO_COMPARE = ("dtr", "dtr-eq", "dtr-local", "msps")
needs_logs = pytest.mark.skipif(
    not LOGS.is_dir(), reason=f"the original artifact's logs and results are not at {LOGS}"
)


def chain(n: int) -> Program:
    """n unit operators forward, then n backward that read them last to first; the last one's result stays."""
    steps: list[Instruction] = [
        Constant(0, 1),
        *(Call(f"f{number}", (number - 1,), (Output(number, 1),), 1.0) for number in range(1, n + 1)),
    ]
    gradient = n
    for number in range(n - 1, -1, -1):
        steps += [
            Call(f"g{number}", (number, gradient), (Output(gradient := 2 * n - number, 1),), 1.0),
            Release(number),
            Release(gradient - 1 if gradient > n + 1 else n),
        ]
    return Program("chain", (*steps, Keep(gradient)), n)


def test_without_a_budget_nothing_is_recomputed():
    program = chain(20)
    result = replay(program)
    assert (result.outcome, result.slowdown, result.rematerialized) == ("ok", 1.0, 0)
    assert result.operators == 40
    assert result.base == 40.0
    assert result.peak == result.whole == program.peak == 22
    assert result.scored == 0


@pytest.mark.parametrize("heuristic", HEURISTICS)
def test_a_budget_holds_and_what_it_costs_is_counted(heuristic):
    result = replay(chain(20), 12, heuristic)
    assert result.outcome == "ok"
    assert result.peak <= 12
    assert result.rematerialized == result.recompute == result.rematerialized_bytes > 0
    assert result.slowdown == 1 + result.recompute / 40
    assert result.scored > 0


def test_a_known_future_is_told_to_the_heuristics_that_look_at_it():
    # x is read last, y next: looking back both are equal, looking ahead only one choice is free.
    steps = (
        Constant(0, 0),
        Call("x", (0,), (Output(1, 1),), 1.0),
        Call("y", (0,), (Output(2, 1),), 1.0),
        Call("z", (0,), (Output(3, 1),), 1.0),
        Release(3),
        Call("read y", (2,), (Output(4, 0),), 1.0),
        Release(2),
        Call("read x", (1,), (Output(5, 0),), 1.0),
    )
    assert replay(Program("two", steps), 2, "next-use").rematerialized == 1
    assert replay(Program("two", steps), 2, lambda s, m, c: 1 / s).rematerialized == 1
    assert replay(Program("two", steps), 2, lambda s, m, c: s).rematerialized == 1


def test_out_of_memory_and_thrashing_are_told_apart():
    impossible = replay(chain(20), 3)
    assert impossible.outcome == "out of memory"
    assert impossible.slowdown == math.inf
    thrashing = replay(chain(20), 5, max_slowdown=1.25)
    assert thrashing.outcome == "thrash"
    assert 10 < thrashing.recompute <= 11
    assert replay(chain(20), 5, max_slowdown=50).outcome == "ok"


def test_accesses_are_of_the_heuristic_and_of_its_metadata():
    local, exact, classes = (replay(chain(40), 12, name) for name in ("dtr-local", "dtr", "dtr-eq"))
    assert local.maintained == 0
    assert min(exact.maintained, classes.maintained) > 0
    assert min(local.scored, exact.scored, classes.scored) > 0


@needs_logs
@pytest.mark.parametrize(
    ("name", "share"),
    [("unet", 0.4), ("unet", 0.6), ("resnet32", 0.1), ("resnet32", 0.4), ("resnet32", 0.6), ("lstm", 0.3)],
)
def test_logs_take_less_time_where_storages_may_be_moved(name, share):
    program = read_log(LOGS / f"{name}.log.gz")
    budget = int(share * program.peak)
    alone = replay(program, budget, max_slowdown=4.0)
    both = replay(with_offload(program, 50e9, 50e9), budget, max_slowdown=4.0)
    assert both.moved
    assert both.outcome == "ok"
    assert both.peak <= budget
    assert both.slowdown < alone.slowdown


def test_simrd_is_eager_only():
    program = replace(chain(4), simrd=True)
    with pytest.raises(ValueError, match="eager eviction, not 'banish'"):
        replay(program, 8, deallocation="banish")
    with pytest.raises(ValueError, match="eager eviction, not 'ignore'"):
        Sweep([program], ["dtr"], deallocations=["eager", "ignore"])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"budget": math.nan}, "the budget is nan"),
        ({"budget": -1}, "the budget is -1"),
        ({"budget": True}, "the budget is True"),
        ({"deallocation": "banished"}, "unknown deallocation 'banished'; choose one of 'eager', 'banish'"),
        ({"max_slowdown": 0.5}, "max_slowdown is 0.5; it is at least 1"),
        ({"max_slowdown": math.nan}, "max_slowdown is nan"),
        ({"heuristic": "best"}, "unknown heuristic 'best'"),
    ],
)
def test_what_cannot_be_replayed(arguments, expected):
    with pytest.raises(ValueError, match=expected):
        replay(chain(4), **arguments)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"budgets": [True]}, "True is no budget"),
        ({"budgets": [0.5, 1.5]}, "1.5 is no budget"),
        ({"budgets": [math.nan]}, "nan is no budget"),
        ({"budgets": [-1]}, "-1 is no budget"),
        ({"deallocations": ["banished"]}, "unknown deallocation 'banished'"),
        ({"max_slowdown": 0.5}, "max_slowdown is 0.5"),
        ({"heuristics": ["dtr", "best"]}, "unknown heuristic 'best'"),
    ],
)
def test_what_cannot_be_swept(arguments, expected):
    with pytest.raises(ValueError, match=expected):
        Sweep(**{"programs": [chain(4)], "heuristics": ["dtr"], **arguments})


def test_a_sweep_needs_a_process():
    with pytest.raises(ValueError, match="processes is 0; it is at least 1"):
        Sweep([chain(4)], ["dtr"]).run(processes=0)


def test_a_program_fits_into_its_own_peak():
    """A constant that is overwritten stays, as in a run: nothing could make it again."""
    steps = (
        Constant(0, 8),
        Call("write", (0,), (Output(1, 8),), 1.0),
        Release(0),
        Call("read", (1,), (Output(2, 8),), 1.0),
        Keep(1),
    )
    program = Program("overwritten", steps)
    assert program.peak == 24
    for deallocation in ("eager", "banish", "ignore"):
        assert replay(program, program.peak, deallocation=deallocation).outcome == "ok"


@pytest.mark.parametrize("processes", [1, 2])
def test_a_sweep_does_all_replays_in_order(processes):
    done = []
    sweep = Sweep([chain(10), chain(20)], ["dtr", "lru"], [0.5, 9], ["eager", "ignore"])
    results = sweep.run(processes=processes, advance=done.append)
    assert done == list(range(1, 17))
    assert len(results) == len(sweep) == 16
    expected = [
        replay(program, budget, heuristic, deallocation=deallocation, max_slowdown=2.0)
        for program, half in ((chain(10), 6), (chain(20), 11))
        for heuristic in ("dtr", "lru")
        for deallocation in ("eager", "ignore")
        for budget in (half, 9)
    ]
    assert results == expected


def test_tables_for_other_programs():
    results = Sweep([chain(20)], ["dtr"], [0.5, 2]).run(processes=1)
    assert [result.outcome for result in results] == ["ok", "out of memory"]
    rows = list(csv.DictReader(io.StringIO(to_csv(results))))
    objects = json.loads(to_json(results))
    assert [row["outcome"] for row in rows] == ["ok", "out of memory"]
    assert [item["outcome"] for item in objects] == ["ok", "out of memory"]
    assert float(rows[0]["slowdown"]) == objects[0]["slowdown"] == results[0].slowdown
    assert rows[1]["slowdown"] == ""
    assert objects[1]["slowdown"] is None


# The original simulator


def expected() -> dict[str, dict[str, dict[str, float | str]]]:
    return json.loads((LOGS / "simrd_slowdown.json").read_text())["slowdown"]


def verdict(result) -> float | str:
    return {"ok": result.slowdown, "out of memory": "OOM", "thrash": "thrash"}[result.outcome]


SIX = (*OURS_TO_COMPARE, "lru", "size")
# Of the long logs some cells; "dtr" and "msps" take seconds each.
SOME = {
    "transformer": {"dtr": ("0.2",), "dtr-eq": ("0.4", "0.2"), "dtr-local": ("0.3", "0.1"), "msps": ("0.2",)},
    "treelstm": {
        "dtr-eq": ("0.5", "0.3"),
        "dtr-local": ("0.6", "0.5"),
        "lru": ("0.7",),
    },
    "lstm": {"dtr-eq": ("0.4", "0.2"), "lru": ("0.7", "0.6")},
}


@needs_logs
@pytest.mark.parametrize(
    ("name", "heuristic"),
    [
        *itertools.product(("resnet32", "unet"), SIX),
        *(
            pytest.param(name, heuristic, marks=pytest.mark.slow)
            for name in ("transformer", "treelstm", "lstm")
            for heuristic in (SIX if name == "transformer" else SOME[name])
        ),
    ],
)
def test_the_original_simulators_results_come_out(name, heuristic):
    """All of them: ``dtr-fx bench paper LOG --reference``, some minutes."""
    program = read_log(LOGS / f"{name}.log.gz", simrd=True)
    known = expected()[name][heuristic]
    for ratio in SOME.get(name, {}).get(heuristic, known):
        slowdown = known[ratio]
        found = verdict(replay(program, int(float(ratio) * program.peak), heuristic, max_slowdown=2.0))
        assert found == (slowdown if isinstance(slowdown, str) else pytest.approx(slowdown, abs=0.001)), ratio


A, B, C = 1, 2, 3
MAKE_ABC = [Call(name, (0,), (Output(number, 1),), 1.0) for name, number in (("a", A), ("b", B), ("c", C))]
FREE_ABC = [call._replace(cost=0.0) for call in MAKE_ABC]
ALL_AT_ONCE = [Call("abc", (0,), (Output(A, 1), Output(B, 1), Output(C, 1)), 1.0)]


def reading(*tensors: int) -> Call:
    return Call("read", tensors, (Output(9, 0),), 1.0)


@pytest.mark.parametrize(
    ("heuristic", "steps", "order"),
    [
        # Equal scores: who came last goes first.
        ("size", MAKE_ABC, [C, B, A]),
        # Who is read comes last, and of two that are read at once the second.
        ("size", [*MAKE_ABC, reading(A)], [A, C, B]),
        ("size", [*MAKE_ABC, reading(B, A)], [A, B, C]),
        ("size", [*MAKE_ABC, reading(A, B, A)], [A, B, C]),
        # Of an operator's outputs the first comes last.
        ("lru", ALL_AT_ONCE, [A, C, B]),
        # Unequal scores: the lowest.
        ("lru", MAKE_ABC, [A, B, C]),
        ("lru", [*MAKE_ABC, reading(B)], [A, B, C]),
        # What costs nothing scores zero, and the first zero ends the search.
        ("dtr-local", [*FREE_ABC, reading(0)], [A, B, C]),
        ("dtr-local", [*FREE_ABC[:2], MAKE_ABC[2], reading(A)], [B, A, C]),
    ],
)
def test_the_original_evicts_the_last_of_equal_scores(heuristic, steps, order):
    """a, b and c are three bytes, and so is d, for which all must go."""
    program = Program("abc", (Constant(0, 0), *steps, Call("d", (0,), (Output(4, 3),), 1.0)), simrd=True)
    runtime = SimrdRuntime(3, heuristic, deallocation="eager")
    drive(runtime, program)
    assert [step.storage for step in runtime.steps if step.kind == DROP][:3] == order


def test_the_original_counts_overwritten_constants_as_gone():
    steps = (Constant(0, 8), Call("write", (0,), (Output(1, 8),), 1.0), Release(0))
    program = Program("overwritten", (*steps, Call("read", (1,), (Output(2, 8),), 1.0)))
    assert (program.peak, replace(program, simrd=True).peak) == (24, 16)


@needs_logs
def test_by_our_own_rules_waiting_operators_lend_their_inputs():
    """U-Net at 40%: the original runs out of memory with most bytes locked; here it goes on, and thrashes."""
    ours, theirs = read_log(LOGS / "unet.log.gz"), read_log(LOGS / "unet.log.gz", simrd=True)
    budget = int(0.4 * ours.peak)
    assert replay(theirs, budget, "dtr-eq", max_slowdown=2.0).outcome == "out of memory"
    assert replay(ours, budget, "dtr-eq", max_slowdown=2.0).outcome == "thrash"
    assert replay(ours, budget, "dtr-eq").outcome == "ok"


# Of all cells those in which our own rules give another slowdown.  Storages that are dead for good inflate
# the original's scores there, to no one's use.
OURS = {("transformer", "dtr", "0.3"): 1.116, ("transformer", "dtr-eq", "0.2"): 1.513}


@needs_logs
@pytest.mark.parametrize(
    ("name", "heuristics"),
    [
        *((name, OURS_TO_COMPARE) for name in ("resnet32", "unet")),
        pytest.param("transformer", OURS_TO_COMPARE, marks=pytest.mark.slow),
        *(
            pytest.param(name, ("dtr-eq", "dtr-local"), marks=pytest.mark.slow)
            for name in ("treelstm", "lstm")
        ),
    ],
)
def test_by_our_own_rules_hardly_anything_differs(name, heuristics):
    """The same within 0.003 at all budgets but those of ``OURS``; what the original does not end in twice the
    time does not end here either."""
    program = read_log(LOGS / f"{name}.log.gz")
    for heuristic in heuristics:
        for ratio, slowdown in expected()[name][heuristic].items():
            result = replay(program, int(float(ratio) * program.peak), heuristic, max_slowdown=2.0)
            where = (name, heuristic, ratio)
            if where in OURS:
                assert result.slowdown == pytest.approx(OURS[where], abs=0.0005), where
                assert result.slowdown < slowdown, where
            elif isinstance(slowdown, str):
                assert result.outcome != "ok", where
            else:
                assert result.slowdown == pytest.approx(slowdown, abs=0.003), where
