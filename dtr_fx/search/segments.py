"""Checkpointing in segments (Chen et al., arXiv 1604.06174): each part of the forward pass runs twice."""

from __future__ import annotations

from collections.abc import Iterator

from .timeline import Operators, Timeline

_COUNTS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64)


def segmented(operators: Operators, backward: int, budget: int) -> list[list[int]]:
    """Orders with the forward pass in segments: the cheapest that fit, else those that come nearest.

    ``budget`` are bytes without the program's constants.  The best is first.
    """
    lines = [Timeline(operators, order, budget) for order in _orders(operators, backward)]
    fitting = sorted((line for line in lines if not line.over), key=lambda line: line.cost)
    others = sorted((line for line in lines if line.over), key=lambda line: line.over)
    return [line.order for line in (*fitting, *others)[:2]]


def _orders(operators: Operators, backward: int) -> Iterator[list[int]]:
    wanted = _wanted(operators, backward)
    for count in _COUNTS:
        if count < backward:
            yield _order(operators, backward, _segments(operators, backward, count), wanted)


def _wanted(operators: Operators, backward: int) -> set[int]:
    """The forward operators whose results the backward pass reads."""
    read = {storage for reads in operators.reads[backward:] for storage in reads}
    return {operators.maker[storage] for storage in read if operators.maker[storage] < backward}


def _segments(operators: Operators, backward: int, count: int) -> list[int]:
    """Of each forward operator the number of its segment; all segments make as many bytes."""
    made = [sum(operators.size[storage] for storage in operators.makes[op]) for op in range(backward)]
    total = max(1, sum(made))
    segments, before = [], 0
    for nbytes in made:
        segments.append(min(count - 1, before * count // total))
        before += nbytes
    return segments


def _order(operators: Operators, backward: int, segments: list[int], wanted: set[int]) -> list[int]:
    """A segment runs again, as far as it is needed, when the backward pass first reads of it."""
    needed = set(wanted)
    members: dict[int, list[int]] = {}
    for op in reversed(range(backward)):
        if op in needed and operators.repeats[op]:
            members.setdefault(segments[op], []).append(op)
            makers = (operators.maker[storage] for storage in operators.reads[op])
            needed.update(maker for maker in makers if segments[maker] == segments[op])
    members.pop(segments[-1], None)
    order = list(range(backward))
    for op in range(backward, len(operators.makes)):
        for storage in operators.reads[op]:
            maker = operators.maker[storage]
            if maker in wanted:
                order += reversed(members.pop(segments[maker], ()))
        order.append(op)
    return order
