"""PyTorch's CUDA caching allocator, without a GPU: where each allocation lies, and what all of them reserve.

The rules are those of ``c10/cuda/CUDACachingAllocator.cpp``; functions have the names that theirs have there.

segment   what is asked of the driver at once; it is cut into blocks that lie side by side
pools     requests of up to 1 MiB are served from small segments of 2 MiB, all others from large ones: of
          20 MiB for requests below 10 MiB, else of the request rounded up to 2 MiB
best fit  the smallest free block that is large enough, of several the one of the lowest address
split     what is left of a block stays free: from 512 bytes on in small segments and expandable ones, in
          large ones above 1 MiB, and never for requests of ``max_split_size`` or more
merge     a block that is freed becomes one with the free blocks beside it
expand    each pool is one segment, which grows at its end by pages of 2 MiB (small) or 20 MiB (large); a
          free block at the end comes last in a search, since it may grow to any size

Left out: several streams, private pools of CUDA graphs, ``roundup_power2_divisions``, and what happens on a
full device, where PyTorch gives unused segments back.  Segments lie behind each other in the order in which
they were reserved; the driver may place them otherwise.
"""

from __future__ import annotations

import math
import os
import re
from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import Self

MIB = 2**20
_BLOCK = 512  # the sizes of blocks are multiples of it
_SMALL = 1 * MIB  # the largest request that is served from the small pool
_LARGE = 10 * MIB  # from here on a request has a segment of its own,
_ROUND_LARGE = 2 * MIB  # rounded up to a multiple of this
_ROUNDING = 20 * MIB  # how much more than asked a block of ``max_split_size`` may have
_APART = 2**44  # addresses that are set aside for a segment that grows


@dataclass(eq=False, slots=True)
class Block:
    """Bytes side by side: of some ``owner``, or free."""

    address: int
    size: int
    pool: Pool
    previous: Block | None = None
    next: Block | None = None
    is_free: bool = True
    owner: object = None

    def to_the_end(self) -> Iterator[Block]:
        """This block and those behind it in its segment, side by side."""
        block: Block | None = self
        while block is not None:
            yield block
            block = block.next

    @property
    def gap(self) -> int:
        """Its bytes, and those of the free blocks beside it."""
        beside = (other for other in (self.previous, self.next) if other is not None and other.is_free)
        return self.size + sum(other.size for other in beside)


@dataclass(eq=False, slots=True)
class Pool:
    """Segments, by their first blocks, and the free blocks in the order in which best fit tries them."""

    is_small: bool
    segment: int  # bytes of a segment, or of a page of the one that grows
    segments: list[Block] = field(default_factory=list)
    free: list[tuple[int, int, Block]] = field(default_factory=list)

    def blocks(self) -> Iterator[Block]:
        """All blocks, segment by segment."""
        for first in self.segments:
            yield from first.to_the_end()

    def insert(self, block: Block) -> None:
        insort(self.free, (block.size, block.address, block))

    def erase(self, block: Block) -> None:
        del self.free[bisect_left(self.free, (block.size, block.address))]


class CachingAllocator:
    """Serves requests for bytes as PyTorch does, with its ``expandable_segments`` and ``max_split_size``.

    ``allocated`` and ``reserved`` are what ``torch.cuda.memory_allocated`` and ``memory_reserved`` would say,
    ``timeline`` has both after each request and each ``free``.

    Examples
    --------
    >>> allocator = CachingAllocator()
    >>> one, other = allocator.malloc(1000), allocator.malloc(100)
    >>> one.size, other.address, allocator.reserved // MIB
    (1024, 1024, 2)
    """

    def __init__(self, *, expandable_segments: bool = False, max_split_size: float = math.inf) -> None:
        self.expandable_segments = expandable_segments
        self.max_split_size = max_split_size
        self.pools = Pool(is_small=True, segment=2 * MIB), Pool(is_small=False, segment=20 * MIB)
        self.allocated = self.reserved = self.peak_allocated = 0
        self.timeline: list[tuple[int, int]] = []
        for number, pool in enumerate(self.pools if expandable_segments else ()):
            pool.segments.append(Block(number * _APART, 0, pool))
            pool.insert(pool.segments[0])

    @classmethod
    def as_configured(cls) -> Self:
        """With the settings that PyTorch reads from the environment: ``PYTORCH_ALLOC_CONF``, or the older."""
        given = os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF", "")
        expands = re.search(r"expandable_segments\s*:\s*True", given)
        limit = re.search(r"max_split_size_mb\s*:\s*(\d+)", given)
        return cls(
            expandable_segments=expands is not None,
            max_split_size=int(limit[1]) * MIB if limit else math.inf,
        )

    @property
    def fragmentation(self) -> float:
        """The share of what is reserved that is not allocated even at the peak."""
        return 1 - self.peak_allocated / self.reserved if self.reserved else 0.0

    def get_pool(self, nbytes: int) -> Pool:
        """The pool that serves a request."""
        return self.pools[nbytes > _SMALL]

    def malloc(self, nbytes: int, owner: object = None) -> Block:
        """A block for a request of at least one byte."""
        size = _round_up(nbytes, _BLOCK)
        pool = self.get_pool(size)
        block = self._get_free_block(pool, size) or self._alloc_block(pool, size)
        if self._should_split(block, size):
            pool.insert(_insert_after(block, block.address + size, block.size - size))
            block.size = size
        block.is_free, block.owner = False, owner
        self._count(block.size)
        return block

    def free(self, block: Block) -> None:
        """The block becomes free, and one with the free blocks beside it."""
        self._count(-block.size)
        block.is_free, block.owner = True, None
        for other in (block.previous, block.next):
            if other is not None and other.is_free:
                block.pool.erase(other)
                self._merge(block, other)
        block.pool.insert(block)

    def _get_free_block(self, pool: Pool, size: int) -> Block | None:
        """The best fit; blocks of ``max_split_size`` or more are for requests of about their size."""
        at = bisect_left(pool.free, (size,))
        if self.expandable_segments and at < len(pool.free) - 1 and pool.free[at][2].next is None:
            at += 1
        if at == len(pool.free):
            return None
        block = pool.free[at][2]
        limit = self.max_split_size
        if (size >= limit and block.size >= size + _ROUNDING) or size < limit <= block.size:
            return None
        pool.erase(block)
        return block

    def _alloc_block(self, pool: Pool, size: int) -> Block:
        """New bytes from the driver: a segment, or pages at the end of the one that grows."""
        if self.expandable_segments:
            *_, block = pool.blocks()
            if block.is_free:
                pool.erase(block)
            else:
                block = _insert_after(block, block.address + block.size, 0)
            new = _round_up(size - block.size, pool.segment)
            block.size += new
        else:
            new = pool.segment if size < _LARGE else _round_up(size, _ROUND_LARGE)
            block = Block(self.place(new), new, pool)
            pool.segments.append(block)
        self.reserved += new
        return block

    def place(self, nbytes: int) -> int:
        """The address of a new segment: behind all others."""
        return self.reserved

    def _should_split(self, block: Block, size: int) -> bool:
        remaining = block.size - size
        if block.pool.is_small or self.expandable_segments:
            return remaining >= _BLOCK
        return size < self.max_split_size and remaining > _SMALL

    def _merge(self, block: Block, other: Block) -> None:
        """The block takes in a free one beside it."""
        if other is block.next:
            block.next = other.next
        else:
            block.previous, block.address = other.previous, other.address
            if other.previous is None:
                block.pool.segments[block.pool.segments.index(other)] = block
        block.size += other.size
        _link(block)

    def _count(self, nbytes: int) -> None:
        self.allocated += nbytes
        self.peak_allocated = max(self.peak_allocated, self.allocated)
        self.timeline.append((self.allocated, self.reserved))


def _insert_after(block: Block, address: int, size: int) -> Block:
    """A free block between this one and the next."""
    new = Block(address, size, block.pool, block, block.next)
    _link(new)
    return new


def _link(block: Block) -> None:
    """Tell the blocks beside this one."""
    if block.previous is not None:
        block.previous.next = block
    if block.next is not None:
        block.next.previous = block


def _round_up(nbytes: int, multiple: int) -> int:
    return -(-nbytes // multiple) * multiple
