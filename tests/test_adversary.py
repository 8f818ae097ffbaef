"""Theorem 3.2: an adversary makes every heuristic that does not know the future do Ω(N/B) times the work."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dtr_fx.cli import main
from dtr_fx.lab.theorems import run_adversary
from dtr_fx.runtime import HEURISTICS, Runtime, parameterized, random

ONLINE = [name for name, heuristic in HEURISTICS.items() if heuristic.time == "staleness"]


def freshest(s, m, c):
    return s


def always_the_same(s, m, c):
    return np.zeros_like(s)


def dearest(s, m, c):
    return -c


OWN = [freshest, always_the_same, dearest]


@pytest.mark.parametrize("budget", [3, 6, 12])
@pytest.mark.parametrize("heuristic", [*ONLINE, *OWN])
def test_the_ratio_grows_as_n_over_b(heuristic, budget):
    """B paths of L_j operators: the sum of L_j (L_j + 1) / 2 is least when all are N/B long (Appendix B)."""
    for n in (5 * budget, 10 * budget, 20 * budget):
        run = run_adversary(n, budget, heuristic)
        assert run.ratio >= (n / budget + 1) / 2


@given(
    st.integers(1, 80),
    st.integers(3, 12),
    st.one_of(
        st.sampled_from([*ONLINE, *OWN]),
        st.builds(random, st.integers(0, 99)),
        st.builds(
            parameterized,
            staleness=st.booleans(),
            size=st.booleans(),
            cost=st.sampled_from(["exact", "eq", "local", "no"]),
        ),
    ),
)
def test_every_operator_rematerializes_its_whole_path(n, budget, heuristic):
    """The k-th operator of a path costs k; the same choices come out each time."""
    run = run_adversary(n, budget, heuristic)
    assert sum(run.paths) == n
    assert len(run.paths) == min(n, budget)
    assert run.executed == sum(sum(range(1, length + 1)) for length in run.paths)
    assert run == run_adversary(n, budget, heuristic)


@pytest.mark.parametrize("heuristic", [*ONLINE, *OWN])
def test_the_optimum_is_the_order_path_by_path(heuristic):
    run = run_adversary(60, 4, heuristic)
    runtime = Runtime(4, heuristic)
    start = runtime.constant(1)
    for length in run.paths:
        tensor = start
        for _ in range(length):
            [tensor] = runtime.perform_op([tensor], [1], cost=1.0)
    assert runtime.clock == run.n == 60


def test_while_the_paths_fit_nothing_is_lost():
    run = run_adversary(8, 8, "lru")
    assert (run.executed, run.n, run.ratio, run.least_ratio) == (8, 8, 1, 1)


def test_names_its_heuristic():
    assert run_adversary(5, 3, freshest).heuristic == "freshest"
    assert run_adversary(5, 3).heuristic == "dtr-eq"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 8), "n is 0"),
        ((5, 2), "the budget is 2; .* at least 3"),
        ((5, 8, "best"), "unknown heuristic 'best'"),
        ((5, 8, "next-use"), "next-use scores by the next use"),
        ((5, 8, "next-use-root"), "choose a heuristic that scores by staleness"),
    ],
)
def test_rejects(arguments, message):
    with pytest.raises(ValueError, match=message):
        run_adversary(*arguments)


def test_bench_command(capsys):
    arguments = ["--n", "16", "32", "--budget", "4", "--heuristic", "lru", "msps"]
    assert main(["bench", "paper", "--only", "adversary", *arguments]) == 0
    _, header, _, *rows = capsys.readouterr().out.splitlines()
    assert header.split() == ["B", "N", "(N/B", "+", "1)/2", "lru", "msps"]
    assert [row.split()[:3] for row in rows] == [["4", "16", "2.50"], ["4", "32", "4.50"]]
    for n, row in zip((16, 32), rows):
        expected = [f"{run_adversary(n, 4, heuristic).ratio:.2f}" for heuristic in ("lru", "msps")]
        assert row.split()[3:] == expected


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--budget", "2"], r"2 units are too few; at least 3"),
        (["--budget", "x"], r"--budget: x: write a share"),
        (["--n", "0"], r"0 is not a positive number"),
        (["--heuristic", "next-use"], r"--heuristic: next-use knows the future"),
    ],
)
def test_bench_command_rejects(arguments, message, capsys):
    try:
        status = main(["bench", "paper", "--only", "adversary", *arguments])
    except SystemExit as stop:
        status = stop.code
    assert status == 2
    assert re.search(message, capsys.readouterr().err)
