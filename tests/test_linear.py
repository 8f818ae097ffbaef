"""Theorem 3.1: the linear feedforward network in O(N) operators and 2⌈√N⌉ memory."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest

from dtr_fx.cli import main
from dtr_fx.runtime import OutOfBudget, Runtime, Tensor, Thrash, parameterized, trace
from dtr_fx.runtime.events import BUDGET
from dtr_fx.simulate import backward, forward, root_budget, run_linear

# The heuristic of the theorem: the smallest evicted neighbourhood, whatever the staleness.
H_E_STAR = parameterized(staleness=False, cost="exact")


def test_the_program():
    """Without a budget: A.2's program, with its releases.  Operator 4 + i is the i-th gradient's."""
    runtime = Runtime(100)
    backward(runtime, forward(runtime, 4))
    names = ["t1", "t2", "t3", "t4", "g4", "g3", "g2", "g1"]
    assert trace(runtime.events, names.__getitem__, names.__getitem__) == (
        "C t1, C t2, C t3, C t4, B t4, C g4, D t3, C g3, D g4, D t2, C g2, D g3, D t1, C g1, D g2"
    )
    assert runtime.clock == 8


@pytest.mark.parametrize("n", [1, 2, 3, 4, 9, 10, 100])
def test_root_budget(n):
    half = root_budget(n) // 2
    assert root_budget(n) == 2 * half
    assert (half - 1) ** 2 < n <= half**2


# What the simulator of the paper's artifact executes on the same networks, over 2N.
ARTIFACT = {100: 1.400, 200: 1.433, 1000: 1.479, 4000: 1.499}


@pytest.mark.parametrize(
    ("heuristic", "n"), [*(("dtr-eq", n) for n in ARTIFACT), *(("dtr", n) for n in ARTIFACT if n < 4000)]
)
def test_as_many_operators_as_the_papers_simulator(heuristic, n):
    run = run_linear(n, heuristic)
    assert run.budget == root_budget(n)
    assert run.ratio == pytest.approx(ARTIFACT[n], abs=0.001)


def test_the_ratio_hardly_grows():
    assert run_linear(20_000, "dtr-eq").ratio < 1.6


@pytest.mark.parametrize("n", [50, 200, 500])
def test_the_theorems_own_heuristic(n):
    assert run_linear(n, H_E_STAR).ratio < 1.7


def _longest_evicted_run(resident: list[int]) -> int:
    return max(later - earlier - 1 for earlier, later in pairwise([0, *resident]))


def _indices(tensors: list[Tensor]) -> list[int]:
    return [i for i, tensor in enumerate(tensors, 1) if tensor.defined]


@pytest.mark.parametrize("n", [10, 47, 200])
@pytest.mark.parametrize("share", [0.02, 0.1, 0.3, 0.7])
def test_the_forward_pass_leaves_evenly_spaced_checkpoints(n, share):
    """Lemma A.3: after t_N no run of evicted tensors is longer than 2(N - 2) / (B - 1)."""
    budget = max(3, int(share * n))
    runtime = Runtime(budget, H_E_STAR, deallocation="banish")
    tensors = forward(runtime, n)
    assert runtime.clock == n
    assert _longest_evicted_run(_indices(tensors)) <= 2 * (n - 2) / (budget - 1)


@pytest.mark.parametrize("deallocation", ["banish", "eager"])
@pytest.mark.parametrize("n", [12, 75, 200])
def test_checkpoints_outlast_the_backward_pass(n, deallocation):
    """Lemma A.1: of the tensors resident after t_N, those that are never evicted before the program is done
    with them are at most 4(N - 2) / (B - 1) apart."""
    budget = root_budget(n)
    runtime = Runtime(budget, H_E_STAR, deallocation=deallocation)
    tensors = forward(runtime, n)
    kept = _indices(tensors)
    start = len(runtime.events)
    backward(runtime, tensors)
    evicted = {event.storage for event in runtime.events[start:] if event.reason == BUDGET}
    checkpoints = [i for i in kept if tensors[i - 1].storage.id not in evicted]
    assert _longest_evicted_run(checkpoints) <= 4 * (n - 2) / (budget - 1)


def test_the_least_memory():
    assert run_linear(30, "dtr-eq", 3).ratio > 5
    with pytest.raises(OutOfBudget):
        run_linear(30, "dtr-eq", 2)


def test_max_ratio():
    with pytest.raises(Thrash):
        run_linear(30, "dtr-eq", 3, max_ratio=5)


def test_bench_command(capsys):
    assert main(["bench", "linear", "--n", "100", "200", "--heuristic", "dtr"]) == 0
    title, _, _, *rows = capsys.readouterr().out.splitlines()
    assert title == "linear network, forward and backward, dtr, best of 3"
    assert re.fullmatch(r" *100 +20 +1\.400 +\d+\.\d", rows[0])
    assert re.fullmatch(r" *200 +30 +1\.43[23] +\d+\.\d", rows[1])


def test_bench_command_gives_up_on_a_heuristic_that_thrashes(capsys):
    assert main(["bench", "linear", "--n", "2000", "--heuristic", "lru"]) == 2
    assert capsys.readouterr().err == "dtr-fx: error: lru executes more than 20 × 2N operators at N = 2000\n"


@pytest.mark.parametrize("n", ["0", "-3", "x"])
def test_bench_command_rejects(n, capsys):
    with pytest.raises(SystemExit):
        main(["bench", "linear", "--n", n])
    assert "--n" in capsys.readouterr().err
