"""The caching allocator: addresses derived on paper, a plain model of the same rules, and properties."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dtr_fx.runtime.caching_allocator import MIB, Block, CachingAllocator

KIB = 1024
FAR = 2**44 // KIB  # where the large segment that grows starts

# --- On paper: requests in KiB by name, "-a" frees a; addresses in KiB, reserved bytes in MiB -------------

PAPER = {
    "sizes are rounded up to 512 bytes, and packed into one small segment": (
        [("a", 0.001), ("b", 1), ("c", 1.25), ("d", 0.5)],
        {"a": 0, "b": 0.5, "c": 1.5, "d": 3},
        2,
    ),
    "a request of 1 MiB is small: the third needs another segment": (
        [("a", 1024), ("b", 1024), ("c", 1024)],
        {"a": 0, "b": 1024, "c": 2048},
        4,
    ),
    "a request above 1 MiB is large, and lies in 20 MiB": (
        [("a", 1024), ("b", 1024.5), ("c", 1024)],
        {"a": 0, "b": 2048, "c": 1024},
        22,
    ),
    "9 MiB are cut from 20 twice, what is left takes 2 MiB but no more": (
        [("a", 9 * 1024), ("b", 9 * 1024), ("c", 2 * 1024), ("d", 1536)],
        {"a": 0, "b": 9 * 1024, "c": 18 * 1024, "d": 20 * 1024},
        40,
    ),
    "10 MiB have a segment of their own, rounded up to 2 MiB": (
        [("a", 10 * 1024), ("b", 11 * 1024), ("c", 1)],
        {"a": 0, "b": 10 * 1024, "c": 22 * 1024},
        24,
    ),
    "1 MiB at the end of a large block is not split off": (
        [("a", 19 * 1024), ("b", 1024.5)],
        {"a": 0, "b": 20 * 1024},
        40,
    ),
    "what is freed is found again, by best fit": (
        [("a", 8), ("b", 1), ("c", 4), ("d", 1), "-a", "-c", ("e", 3), ("f", 8)],
        {"b": 8, "d": 13, "e": 9, "f": 0},
        2,
    ),
    "of free blocks of one size the lowest address is taken": (
        [("a", 4), ("b", 1), ("c", 4), ("d", 1), "-c", "-a", ("e", 4)],
        {"b": 4, "d": 9, "e": 0},
        2,
    ),
    "a free block is one with those on both of its sides": (
        [("a", 4), ("b", 4), ("c", 4), ("d", 1), "-a", "-c", "-b", ("e", 12)],
        {"d": 12, "e": 0},
        2,
    ),
    "blocks of two segments are never one": (
        [("a", 1024), ("b", 1024), ("c", 1024), ("d", 1024), "-b", "-c", ("e", 1024), ("f", 1024)],
        {"a": 0, "d": 3072, "e": 1024, "f": 2048},
        4,
    ),
    "12 MiB do not fit between what is left of two segments: fragmentation": (
        [(name, 9 * 1024) for name in "abcd"] + ["-a", "-c", ("e", 12 * 1024)],
        {"b": 9 * 1024, "d": 29 * 1024, "e": 40 * 1024},
        52,
    ),
    "a large free block does not serve small requests": (
        [("a", 5 * 1024), "-a", ("b", 1)],
        {"b": 20 * 1024},
        22,
    ),
}

EXPANDABLE = {
    "the small segment grows by 2 MiB, the large one by 20": (
        [("a", 1024), ("b", 1024), ("c", 1), ("d", 19 * 1024), ("e", 2 * 1024)],
        {"a": 0, "b": 1024, "c": 2048, "d": FAR, "e": FAR + 19 * 1024},
        44,
    ),
    "30 MiB are two pages; what is left of 512 bytes on is split off": (
        [("a", 30 * 1024), ("b", 10 * 1024 - 0.5), ("c", 1025)],
        {"a": FAR, "b": FAR + 30 * 1024, "c": FAR + 40 * 1024 - 0.5},
        60,
    ),
    "the end is the last resort: a hole is filled though it is larger": (
        [("a", 10 * 1024), ("b", 5 * 1024), "-a", ("c", 4 * 1024)],
        {"b": FAR + 10 * 1024, "c": FAR},
        20,
    ),
    "a free end grows only by what it lacks": (
        [("a", 15 * 1024), ("b", 25 * 1024)],
        {"a": FAR, "b": FAR + 15 * 1024},
        40,
    ),
}

OVERSIZE = {  # max_split_size is 30 MiB
    "a block of 30 MiB or more is not split, nor given to a smaller request": (
        [("a", 40 * 1024), "-a", ("b", 20 * 1024)],
        {"b": 40 * 1024},
        60,
    ),
    "it is given to a request of 30 MiB or more that wastes less than 20": (
        [("a", 60 * 1024), "-a", ("b", 40 * 1024), ("c", 41 * 1024)],
        {"b": 60 * 1024, "c": 0},
        100,
    ),
}


def play(allocator: CachingAllocator, steps: Sequence[tuple[str, float] | str]) -> dict[str, Block]:
    live: dict[str, Block] = {}
    for step in steps:
        if isinstance(step, str):
            allocator.free(live.pop(step[1:]))
        else:
            live[step[0]] = allocator.malloc(math.ceil(step[1] * KIB), step[0])
    return live


@pytest.mark.parametrize("case", [*PAPER, *EXPANDABLE, *OVERSIZE])
def test_addresses_are_those_on_paper(case: str) -> None:
    steps, addresses, reserved = {**PAPER, **EXPANDABLE, **OVERSIZE}[case]
    limit = 30 * MIB if case in OVERSIZE else math.inf
    allocator = CachingAllocator(expandable_segments=case in EXPANDABLE, max_split_size=limit)
    live = play(allocator, steps)
    assert {name: block.address / KIB for name, block in live.items()} == addresses
    assert allocator.reserved == reserved * MIB


def test_a_block_knows_its_owner_while_it_has_one() -> None:
    allocator = CachingAllocator()
    play(allocator, [("a", 4), ("b", 4), "-a"])
    small, _ = allocator.pools
    assert [(block.owner, block.size // KIB) for block in small.blocks()] == [
        (None, 4), ("b", 4), (None, 2040)
    ]  # fmt: skip


def test_fragmentation_over_time() -> None:
    allocator = CachingAllocator()
    play(allocator, PAPER["12 MiB do not fit between what is left of two segments: fragmentation"][0])
    assert [(in_use // MIB, reserved // MIB) for in_use, reserved in allocator.timeline] == [
        (9, 20), (18, 20), (27, 40), (36, 40), (27, 40), (18, 40), (30, 52)
    ]  # fmt: skip
    assert allocator.fragmentation == 1 - 36 / 52


# --- The same rules by lists and scans ----------------------------------------------------------------------


@dataclass
class Plain:
    """Each segment is its pool, its start and its blocks' sizes and names; nothing is kept sorted."""

    expandable: bool
    segments: list[tuple[bool, int, list[list]]] = field(default_factory=list)
    reserved: int = 0

    def free_blocks(self, is_small: bool, size: int) -> list[tuple[bool, int, int, list[list], int]]:
        found = []
        for small, start, blocks in self.segments:
            for number, (nbytes, name) in enumerate(blocks):
                if small == is_small and name is None and nbytes >= size:
                    is_end = self.expandable and number == len(blocks) - 1
                    address = start + sum(nbytes for nbytes, _ in blocks[:number])
                    found.append((is_end, nbytes, address, blocks, number))
        return sorted(found, key=lambda one: one[:3])

    def grow(self, is_small: bool, size: int) -> None:
        page = (2 if is_small else 20) * MIB
        same = [blocks for small, _, blocks in self.segments if small == is_small]
        if self.expandable and same:
            if same[0][-1][1] is not None:
                same[0].append([0, None])
            more = math.ceil((size - same[0][-1][0]) / page) * page
            same[0][-1][0] += more
        else:
            step = 2 * MIB if size >= 10 * MIB and not self.expandable else page
            more = math.ceil(size / step) * step
            start = self.reserved if not self.expandable else 0 if is_small else FAR * KIB
            self.segments.append((is_small, start, [[more, None]]))
        self.reserved += more

    def malloc(self, nbytes: int, name: int) -> int:
        size = math.ceil(nbytes / 512) * 512
        is_small = size <= MIB
        if not self.free_blocks(is_small, size):
            self.grow(is_small, size)
        _, found, address, blocks, number = self.free_blocks(is_small, size)[0]
        is_split = found - size >= 512 if is_small or self.expandable else found - size > MIB
        blocks[number : number + 1] = [[size, name], [found - size, None]] if is_split else [[found, name]]
        return address

    def free(self, name: int) -> None:
        for _, _, blocks in self.segments:
            for block in blocks:
                block[1] = None if block[1] == name else block[1]
            merged: list[list] = []
            for nbytes, owner in blocks:
                if merged and owner is None and merged[-1][1] is None:
                    merged[-1][0] += nbytes
                else:
                    merged.append([nbytes, owner])
            blocks[:] = merged

    @property
    def allocated(self) -> int:
        return sum(nbytes for _, _, blocks in self.segments for nbytes, name in blocks if name is not None)


def random_trace(seed: int) -> list[int]:
    """Requests, of one byte to 64 MiB; a negative number frees the request of that place."""
    draw = random.Random(seed)
    steps: list[int] = []
    live: list[int] = []
    for place in range(1, 41):
        if live and draw.random() < 0.45:
            steps.append(-live.pop(draw.randrange(len(live))))
        else:
            live.append(place)
            steps.append(int(2 ** draw.uniform(0, 26)))
    return steps


@pytest.mark.parametrize("expandable", [False, True])
def test_1000_random_traces_lie_as_in_the_plain_model(expandable: bool) -> None:
    for seed in range(500 * expandable, 500 + 500 * expandable):
        allocator, plain = CachingAllocator(expandable_segments=expandable), Plain(expandable)
        blocks: dict[int, Block] = {}
        peak = 0
        for place, step in enumerate(random_trace(seed), 1):
            if step > 0:
                blocks[place] = allocator.malloc(step)
                assert blocks[place].address == plain.malloc(step, place), (seed, place)
            else:
                allocator.free(blocks.pop(-step))
                plain.free(-step)
            peak = max(peak, plain.allocated)
            assert allocator.timeline[-1] == (plain.allocated, plain.reserved), (seed, place)
        assert allocator.peak_allocated == peak


# --- Properties --------------------------------------------------------------------------------------------

traces = st.lists(
    st.tuples(st.integers(1, 40 * MIB) | st.integers(1, 4096), st.integers(0, 3)), min_size=1, max_size=60
)
settings_of_torch = st.fixed_dictionaries(
    {"expandable_segments": st.booleans(), "max_split_size": st.sampled_from([math.inf, 24 * MIB])}
)


def check(allocator: CachingAllocator, live: Sequence[Block]) -> None:
    """No two blocks overlap, none is lost, no two free ones lie side by side, nothing is counted twice."""
    every = [block for pool in allocator.pools for block in pool.blocks()]
    assert {block for block in every if not block.is_free} == set(live)
    by_address = sorted((block for block in every if block.size), key=lambda block: block.address)
    for block, following in itertools.pairwise(by_address):
        assert block.address + block.size <= following.address
    for block in every:
        if block.next is not None:
            assert block.address + block.size == block.next.address
            assert block.next.previous is block
            assert not (block.is_free and block.next.is_free)
    assert sum(block.size for block in every) == allocator.reserved
    assert sum(block.size for block in live) == allocator.allocated <= allocator.reserved
    free = [block for pool in allocator.pools for *_, block in pool.free]
    assert sorted(map(id, free)) == sorted(id(block) for block in every if block.is_free)


@settings(max_examples=60, deadline=None)
@given(traces, settings_of_torch)
def test_nothing_overlaps_and_all_that_is_freed_is_one_block_again(trace, options) -> None:
    allocator = CachingAllocator(**options)
    live: list[Block] = []
    for nbytes, gone in trace:
        live.append(allocator.malloc(nbytes))
        assert live[-1].size >= nbytes
        if 0 < gone < len(live):
            allocator.free(live.pop(-1 - gone))
        check(allocator, live)
    for block in live:
        allocator.free(block)
    check(allocator, [])
    assert allocator.allocated == 0
    for pool in allocator.pools:
        assert [*pool.blocks()] == pool.segments


@settings(max_examples=40, deadline=None)
@given(st.sampled_from([512, 2048, MIB, 2 * MIB, 4 * MIB, 10 * MIB, 20 * MIB]), st.lists(st.booleans()))
def test_one_size_that_fills_segments_leaves_no_hole(size: int, frees: list[bool]) -> None:
    """More is reserved only where every segment is full: by less than one segment, whatever is freed when."""
    allocator = CachingAllocator()
    live: list[Block] = []
    for is_free in frees:
        if is_free and live:
            allocator.free(live.pop(len(live) // 2))
        else:
            live.append(allocator.malloc(size))
        segment = allocator.get_pool(size).segment if size < 10 * MIB else size
        assert allocator.reserved == math.ceil(allocator.peak_allocated / segment) * segment
