"""Theorem 3.1: the linear feedforward network in O(N) operators and 2⌈√N⌉ memory."""

from __future__ import annotations

import math
import re
from itertools import pairwise

import pytest

from dtr_fx.cli import main
from dtr_fx.lab.networks import linear
from dtr_fx.lab.replay import replay
from dtr_fx.lab.theorems import root_budget, run_linear
from dtr_fx.runtime import OutOfBudget, Runtime, Step, Thrash, parameterized, trace
from dtr_fx.runtime.driver import drive
from dtr_fx.runtime.steps import BUDGET, COMPUTE, RECOMPUTE

# The heuristic of the theorem: the smallest evicted neighbourhood, whatever the staleness.
H_E_STAR = parameterized(staleness=False, cost="exact")


def test_the_program():
    """Without a budget: A.2's program, with its releases.  Operator 4 + i is the i-th gradient's."""
    runtime = Runtime(100)
    drive(runtime, linear(4))
    names = ["t1", "t2", "t3", "t4", "g4", "g3", "g2", "g1"]
    assert trace(runtime.steps, names.__getitem__, names.__getitem__) == (
        "C t1, C t2, C t3, C t4, B t4, C g4, D t3, C g3, D g4, D t2, C g2, D g3, D t1, C g1, B g2"
    )
    assert runtime.clock == 8


@pytest.mark.parametrize("n", [1, 2, 3, 4, 9, 10, 100])
def test_root_budget(n):
    half = root_budget(n) // 2
    assert root_budget(n) == 2 * half
    assert (half - 1) ** 2 < n <= half**2


# What the simulator of the paper's artifact executes on the same networks, over 2N.
ARTIFACT = {100: 1.400, 200: 1.433, 1000: 1.479, 4000: 1.499}


@pytest.mark.parametrize("n", ARTIFACT)
@pytest.mark.parametrize("heuristic", ["dtr", "dtr-eq"])
def test_as_many_operators_as_the_papers_simulator(heuristic, n):
    run = run_linear(n, heuristic)
    assert run.budget == root_budget(n)
    assert run.ratio == pytest.approx(ARTIFACT[n], abs=0.001)


@pytest.mark.parametrize("n", ARTIFACT)
@pytest.mark.parametrize("heuristic", ["dtr", "dtr-eq"])
def test_as_many_with_banishing(heuristic, n):
    """Appendix A frees for good what the program needs no more."""
    run = run_linear(n, heuristic, deallocation="banish")
    assert run.ratio == replay(linear(n), root_budget(n), heuristic, deallocation="banish").slowdown
    assert run.ratio == pytest.approx(ARTIFACT[n], abs=0.01)


def test_the_ratio_hardly_grows():
    assert run_linear(20_000, "dtr-eq").ratio < 1.6


@pytest.mark.slow
def test_the_ratio_hardly_grows_with_banishing():
    assert run_linear(50_000, "dtr", deallocation="banish").ratio < 1.6


@pytest.mark.parametrize("deallocation", ["banish", "eager"])
@pytest.mark.parametrize("n", [50, 200, 500, 4000])
def test_the_theorems_own_heuristic(n, deallocation):
    assert replay(linear(n), root_budget(n), H_E_STAR, deallocation=deallocation).slowdown < 1.7


def _forward_and_backward(runtime: Runtime, n: int) -> tuple[list[Step], list[Step]]:
    """The run's events up to the computation of t_N, and those after it.

    Operator and storage i are those of t_{i+1}.
    """
    drive(runtime, linear(n))
    last = next(i for i, event in enumerate(runtime.steps) if event.kind == COMPUTE and event.op == n - 1)
    return runtime.steps[: last + 1], runtime.steps[last + 1 :]


def _in_memory(events: list[Step]) -> list[int]:
    """S: the indices of the tensors that are in memory after these events of the forward pass."""
    in_memory = set()
    for event in events:
        if event.kind in (COMPUTE, RECOMPUTE):
            in_memory.add(event.op + 1)
        else:
            in_memory.remove(event.storage + 1)
    return sorted(in_memory)


def _longest_evicted_run(resident: list[int]) -> int:
    return max(later - earlier - 1 for earlier, later in pairwise([0, *resident]))


@pytest.mark.parametrize("n", [10, 47, 200])
@pytest.mark.parametrize("share", [0.02, 0.1, 0.3, 0.7])
def test_the_forward_pass_leaves_evenly_spaced_checkpoints(n, share):
    """Lemma A.3, from t_1 to t_N with M = B units: under h_e* no sequence of evicted tensors is longer than
    2(N - 2) / (B - 1) when t_N has been computed; and the forward pass rematerializes nothing."""
    budget = max(3, math.floor(share * n))
    forward, _ = _forward_and_backward(Runtime(budget, H_E_STAR, deallocation="banish"), n)
    assert all(event.kind != RECOMPUTE for event in forward)
    assert len(_in_memory(forward)) == min(n, budget)
    assert _longest_evicted_run(_in_memory(forward)) <= 2 * (n - 2) / (budget - 1)


@pytest.mark.parametrize("deallocation", ["banish", "eager"])
@pytest.mark.parametrize("n", [12, 75, 200, 1000])
def test_checkpoints_outlast_the_backward_pass(n, deallocation):
    """Lemma A.1: let S be the tensors in memory after the computation of t_N, under h_e* with B units.  There
    is a C ⊆ S of which (1) each stays in memory during the backward pass until the program needs it no more
    and is banished, and (2) neighbours are at most 4(N - 2) / (B - 1) apart.

    C is all of S that is never evicted to make room.
    """
    budget = root_budget(n)
    forward, backward = _forward_and_backward(Runtime(budget, H_E_STAR, deallocation=deallocation), n)
    evicted = {event.storage + 1 for event in backward if event.reason == BUDGET}
    checkpoints = [i for i in _in_memory(forward) if i not in evicted]
    assert _longest_evicted_run(checkpoints) <= 4 * (n - 2) / (budget - 1)


def test_the_least_memory():
    assert run_linear(30, "dtr-eq", 3).ratio > 5
    with pytest.raises(OutOfBudget):
        run_linear(30, "dtr-eq", 2)


def test_max_ratio():
    with pytest.raises(Thrash):
        run_linear(30, "dtr-eq", 3, max_ratio=5)


def test_rejects_an_empty_network():
    with pytest.raises(ValueError, match="n is 0; it must be at least 1"):
        run_linear(0)


def test_bench_command(capsys):
    options = ["--n", "100", "200", "--heuristic", "dtr", "dtr-eq"]
    assert main(["bench", "paper", "--only", "linear", *options]) == 0
    title, _, _, *rows = capsys.readouterr().out.splitlines()
    assert title == "linear network, forward and backward, deallocation eager, best of 3"
    assert [row.split()[:4] for row in rows[::2]] == [[name, "100", "20", "1.400"] for name in options[-2:]]
    assert all(re.fullmatch(r"dtr.* +200 +30 +1\.43[23] +\d+\.\d", row) for row in rows[1::2])
    assert main(["bench", "paper", "--only", "linear", *options[:-1], "--deallocation", "banish"]) == 0
    _, _, _, first, _ = capsys.readouterr().out.splitlines()
    assert first.split()[3] == f"{run_linear(100, 'dtr', deallocation='banish').ratio:.3f}"


def test_bench_command_gives_up_on_a_heuristic_that_thrashes(capsys):
    assert main(["bench", "paper", "--only", "linear", "--n", "2000", "--heuristic", "lru"]) == 2
    assert capsys.readouterr().err == "dtr-fx: error: lru executes more than 20 × 2N operators at N = 2000\n"


@pytest.mark.parametrize("n", ["0", "-3", "x"])
def test_bench_command_rejects(n, capsys):
    with pytest.raises(SystemExit):
        main(["bench", "paper", "--only", "linear", "--n", n])
    assert "--n" in capsys.readouterr().err
