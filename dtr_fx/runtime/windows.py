"""Windows of storages that lie side by side, which Coop (Zhang et al., NeurIPS 2023) evicts together."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable

from .caching_allocator import Block
from .graph import Storage


def cheapest_window(
    blocks: Iterable[Block], price: Callable[[Storage], float], span: int, nbytes: int
) -> list[Storage]:
    """The storages of the cheapest window of ``span`` bytes that frees ``nbytes``; none where there is none.

    A window is made of blocks side by side that are free, at no price, or of storages that can be evicted,
    whose price is finite.  It grows to the right until it is large enough, and shrinks from the left as long
    as it still is: each block is looked at twice.
    """
    best: list[Storage] = []
    lowest = math.inf
    window: deque[tuple[Block, int, float]] = deque()
    size = freed = 0
    total = 0.0
    for block in blocks:
        nbytes_of, its_price = _worth(block, price)
        if block.previous is None or its_price == math.inf:
            window.clear()
            size, freed, total = 0, 0, 0.0
        if its_price == math.inf:
            continue
        window.append((block, nbytes_of, its_price))
        size, freed, total = size + block.size, freed + nbytes_of, total + its_price
        while window and size >= span and freed >= nbytes:
            if total < lowest:
                owners = (each.owner for each, _, _ in window)
                best, lowest = [owner for owner in owners if isinstance(owner, Storage)], total
            gone, nbytes_of, its_price = window.popleft()
            size, freed, total = size - gone.size, freed - nbytes_of, total - its_price
    return best


def _worth(block: Block, price: Callable[[Storage], float]) -> tuple[int, float]:
    """The bytes in use that the eviction of a block frees, and its price."""
    if isinstance(block.owner, Storage):
        return block.owner.size, price(block.owner)
    return 0, 0.0 if block.is_free else math.inf
