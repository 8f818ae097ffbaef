"""Heuristics that look at addresses: what goes, in which order, and what it leaves."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from operator_logs import write_chain
from random_programs import MAX_COST, Act, Driver, Op, programs

import dtr_fx
from dtr_fx.cli import main
from dtr_fx.lab import networks
from dtr_fx.lab.log import read_log
from dtr_fx.lab.replay import replay
from dtr_fx.runtime import HEURISTICS, Deallocation, Runtime, Tensor, trace
from dtr_fx.runtime.caching_allocator import MIB, CachingAllocator
from dtr_fx.runtime.graph import Storage
from dtr_fx.runtime.steps import BUDGET
from dtr_fx.runtime.windows import cheapest_window
from dtr_fx.search import paper, run_policy, scores_of

LOGS = Path(__file__).resolve().parents[2] / "shared" / "dtr_logs"


def events(runtime: Runtime) -> str:
    return trace(runtime.steps, "f{}".format, "t{}".format)


def fill(runtime: Runtime, costs: str, size: int = 2 * MIB) -> list[Tensor]:
    """A constant, and results side by side that are each computed from it alone, at these costs."""
    start = runtime.constant(1)
    return [runtime.perform_op([start], [size], cost=float(cost))[0] for cost in costs.split()]


# --- Windows -----------------------------------------------------------------------------------------------


def test_coop_evicts_storages_side_by_side() -> None:
    """Six results of 2 MiB, t1 and t4 the cheapest: for 4 MiB Coop takes t4 with t5, DTR t1 with t4."""
    found = {}
    for heuristic in ("coop", "dtr-eq"):
        runtime = Runtime(12 * MIB + 1, heuristic, allocator=CachingAllocator(expandable_segments=True))
        fill(runtime, "1 90 90 1 5 90")
        runtime.perform_op([], [4 * MIB], cost=1.0)
        found[heuristic] = events(runtime).split(", ", 6)[-1]
    assert found == {"coop": "D t4, D t5, C f6", "dtr-eq": "D t1, D t4, C f6"}


def test_what_coop_evicts_is_one_gap_and_nothing_more_is_reserved() -> None:
    runtime = Runtime(20 * MIB + 1, "coop")
    fill(runtime, "9 9 9 1 1 1 9 9 9 9")
    assert runtime.allocator is not None
    before = runtime.allocator.reserved
    [made] = runtime.perform_op([], [6 * MIB], cost=1.0)
    assert events(runtime).endswith("D t4, D t5, D t6, C f10")
    assert made.storage.block is not None
    assert made.storage.block.size == 6 * MIB
    assert runtime.allocator.reserved == before == 22 * MIB


def test_a_pinned_storage_is_in_no_window() -> None:
    runtime = Runtime(12 * MIB + 1, "coop")
    made = fill(runtime, "1 1 1 9 9 9")
    runtime.pin(made[1])
    runtime.perform_op([], [4 * MIB], cost=1.0)
    assert events(runtime).endswith("D t3, D t4, C f6")


def test_without_a_window_coop_evicts_one_after_the_other() -> None:
    """Each other storage is pinned, so that 4 MiB are nowhere to be had in one piece."""
    runtime = Runtime(20 * MIB + 1, "coop")
    for tensor in fill(runtime, "1 1 1 1 1 1 1 1 1 1")[::2]:
        runtime.pin(tensor)
    runtime.perform_op([], [4 * MIB], cost=1.0)
    assert events(runtime).endswith("D t2, D t4, C f10")
    assert runtime.used <= runtime.budget


def test_coop_makes_a_gap_where_all_would_fit_but_in_pieces() -> None:
    """20 MiB of which t2 and t5 are released: 4 MiB fit in bytes, but not in one piece."""
    runtime = Runtime(20 * MIB + 1, "coop")
    made = fill(runtime, "9 9 2 9 9 9 9 9 9 9")
    runtime.release(made[1])
    runtime.release(made[4])
    assert runtime.used == 16 * MIB + 1
    [big] = runtime.perform_op([], [4 * MIB], cost=1.0)
    assert events(runtime).endswith("D t3, C f10")
    assert big.storage.block is not None
    assert made[0].storage.block is not None
    assert big.storage.block.address == made[0].storage.block.address + 2 * MIB


def test_the_cheapest_window_is_that_of_all_windows() -> None:
    """Against every run of blocks, on random segments with free blocks and storages that must stay."""
    draw = random.Random(0)
    for _ in range(300):
        allocator = CachingAllocator(expandable_segments=True)
        prices: dict[Storage, float] = {}
        blocks = []
        for number in range(draw.randint(1, 14)):
            storage = Storage(number, draw.randint(2, 9) * MIB)
            prices[storage] = math.inf if draw.random() < 0.15 else draw.randint(1, 20)
            blocks.append(allocator.malloc(storage.size, storage))
        for block in draw.sample(blocks, len(blocks) // 3):
            allocator.free(block)
        _, large = allocator.pools
        span, nbytes = draw.randint(1, 30) * MIB, draw.randint(-5, 20) * MIB
        row = list(large.blocks())
        runs = [row[i:j] for i in range(len(row)) for j in range(i + 1, len(row) + 1)]
        totals = [
            sum(prices[block.owner] for block in run if isinstance(block.owner, Storage))
            for run in runs
            if sum(block.size for block in run) >= span
            and sum(block.owner.size for block in run if isinstance(block.owner, Storage)) >= nbytes
        ]
        found = cheapest_window(row, prices.__getitem__, span, nbytes)
        lowest = min(totals, default=math.inf)
        assert sum(prices[storage] for storage in found) == (lowest if lowest < math.inf else 0)


# --- Gaps --------------------------------------------------------------------------------------------------


def test_mge_evicts_beside_what_is_free() -> None:
    """All alike but in age, t1 the oldest: DTR evicts it, MegEngine what lies beside the free t3."""
    found = {}
    for heuristic in ("mge", "dtr-eq"):
        runtime = Runtime(18 * MIB + 1, heuristic)
        made = fill(runtime, "1 1 1 1 1 1 1 1 1")
        runtime.release(made[2])
        runtime.perform_op([], [4 * MIB], cost=1.0)
        found[heuristic] = events(runtime).split(", ")[-2:]
    assert found == {"mge": ["D t2", "C f9"], "dtr-eq": ["D t1", "C f9"]}


def test_what_often_comes_back_is_dearer_for_mge() -> None:
    runtime = Runtime(math.inf, "mge")
    [one], [other] = (runtime.perform_op([], [MIB], cost=1.0) for _ in range(2))
    for _ in range(50):
        runtime.drop(one)
        runtime.access(one)
    runtime.access(other)
    runtime.access(one)  # both are as stale, and have a free block on one side or none
    runtime.budget = 2 * MIB
    runtime.perform_op([], [MIB], cost=1.0)
    assert events(runtime).endswith("D t1, C f2")


# --- Any run -----------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(
    programs(),
    st.integers(6, 16),
    st.sampled_from(["coop", "mge", "dtr-eq"]),
    st.sampled_from(["eager", "banish", "ignore"]),
    st.booleans(),
)
def test_what_is_resident_has_a_block_and_nothing_else_does(
    program: list[Op | Act], budget: int, heuristic: str, deallocation: Deallocation, keep_passed: bool
) -> None:
    allocator = CachingAllocator(expandable_segments=True)
    options: dict[str, Any] = {"deallocation": deallocation, "keep_passed": keep_passed}
    runtime = Runtime(budget, heuristic, max_recompute=MAX_COST, allocator=allocator, **options)

    def observe() -> None:
        blocks = [block for pool in allocator.pools for block in pool.blocks() if not block.is_free]
        there = [storage for storage in runtime.storages if storage.resident and storage.size]
        assert {id(storage.block): storage for storage in there} == {id(each): each.owner for each in blocks}
        assert all(block.size >= 512 for block in blocks)
        assert runtime.used <= runtime.budget

    Driver(runtime).run(program, observe)


# --- As people have them -----------------------------------------------------------------------------------


@pytest.mark.parametrize("heuristic", ["coop", "mge"])
def test_they_plan_a_graph_online(heuristic: str) -> None:
    def f(x: torch.Tensor) -> torch.Tensor:
        kept = [x]
        for _ in range(6):
            kept.append(torch.sin(kept[-1]))
        for value in reversed(kept):
            x = x * value
        return x

    x = torch.ones(3 * MIB // 4)
    gm = torch.fx.symbolic_trace(f)
    rewritten, report = dtr_fx.transform(gm, "70%", heuristic=heuristic, planner="online", example_inputs=[x])
    assert report.heuristic == heuristic
    assert report.planned_peak <= report.budget < report.baseline_peak
    assert torch.equal(rewritten(x), gm(x))


@pytest.mark.parametrize("heuristic", ["coop", "mge"])
def test_each_choice_can_be_asked_for(heuristic: str) -> None:
    """All that a window evicts was chosen, at the score that its drop has."""
    program = networks.residual(20)
    policy = paper(HEURISTICS[heuristic])
    plan = run_policy(program, 24, policy).plan
    made_room = [(at, step) for at, step in enumerate(plan.steps) if step.reason == BUDGET]
    assert len(made_room) > 10
    for at, step in made_room:
        [found] = [one for one in scores_of(program, plan, step.storage, [policy]) if one.step == at]
        assert (found.chosen, found.rank, found.score) == (step.storage, 1, step.score)


def test_simulate_shows_what_is_reserved(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = str(write_chain(tmp_path / "chain.log"))
    arguments = ["simulate", log, "--heuristic", "dtr-eq", "coop", "mge", "--budget", "60%"]
    assert main(arguments) == 0
    assert "fragmentation" not in capsys.readouterr().out
    assert main([*arguments, "--reserved"]) == 0
    printed = capsys.readouterr().out
    assert printed.count("2.00 MiB") == 3  # a small segment for some hundreds of bytes
    assert "fragmentation" in printed


@pytest.mark.skipif(not LOGS.is_dir(), reason="needs the operator logs")
@pytest.mark.parametrize("log", ["lstm", "transformer", "unet"])
def test_coop_halves_the_fragmentation_of_a_log(log: str) -> None:
    program = read_log(LOGS / f"{log}.log.gz")
    coop, dtr = (
        replay(program, program.peak // 2, heuristic, max_slowdown=2.0, reserved=True)
        for heuristic in ("coop", "dtr-eq")
    )
    assert (coop.outcome, dtr.outcome) == ("ok", "ok")
    assert coop.fragmentation is not None
    assert dtr.fragmentation is not None
    assert coop.fragmentation <= dtr.fragmentation / 2
