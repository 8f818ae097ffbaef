"""When storages are used next: what a traced graph or a log knows, and ``Runtime.expect`` is told."""

from __future__ import annotations

import math
from collections.abc import Iterable

Uses = tuple[float, Iterable[int], Iterable[int]]


def next_uses(operators: Iterable[Uses]) -> list[list[tuple[int, float]]]:
    """For every operator, when the storages that it touches are read next.

    Parameters
    ----------
    operators:
        In program order: the cost, the storages read and the storages written of each.

    Returns
    -------
    list
        Per operator, pairs of a storage and a time in the program's own cost, ``math.inf`` for never; the
        storages in ascending order.

    Examples
    --------
    >>> next_uses([(1.0, [], [0]), (2.0, [0], [1]), (1.0, [1], [2])])
    [[(0, 1.0)], [(0, inf), (1, 3.0)], [(1, inf), (2, inf)]]
    """
    started = []
    clock = 0.0
    for cost, read, written in operators:
        started.append((clock, tuple(read), tuple(written)))
        clock += cost
    next_use: dict[int, float] = {}
    expectations = []
    for clock, read, written in reversed(started):
        touched = sorted({*read, *written})
        expectations.append([(storage, next_use.get(storage, math.inf)) for storage in touched])
        for storage in read:
            next_use[storage] = clock
    return expectations[::-1]
