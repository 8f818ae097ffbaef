"""Where walks start: orders that save a part of the forward pass and run the rest again for the backward one.

Orders are measured on a timeline, which is lent.  ``backward`` is the backward pass's first operator.  Where
other programs run between the passes, what is saved can be limited for its own sake.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from functools import partial
from itertools import accumulate

import networkx as nx
from networkx.algorithms.flow import boykov_kolmogorov

from dtr_fx.runtime.program import Call, Program
from dtr_fx.search.lifetimes import Operators
from dtr_fx.search.timeline import Found, Timeline

_COUNTS = (2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64)
# Prices of bytes that are tried, as powers of two times the forward pass's cost for its bytes.
_LOWEST, _HIGHEST, _BISECTIONS = -5.0, 7.0, 5
# How many runs ago something was there that is kept in place of what is made from it.
_RECENT = 50


def segmented(line: Timeline, backward: int) -> list[int]:
    """The cheapest order in segments (Chen et al., arXiv 1604.06174) that fits, else the nearest.

    What enters a segment of the forward pass is saved, and the segment runs again.
    """
    operators = line.operators
    wanted = _wanted(operators, backward)
    segments = (_segments(operators, backward, count, wanted) for count in _COUNTS)
    program = range(len(operators.makes))
    orders = (_rerun(operators, program, backward, one.keys(), one.__getitem__) for one in segments)
    return min(map(line.settle, orders), key=lambda found: (found.over, found.cost)).order


def cuts(line: Timeline, backward: int) -> list[list[int]]:
    """Of orders by minimum cuts the cheapest that fits and, of those that cost less, the nearest, if any.

    A cut chooses, as in PyTorch's partitioner, what to save at a price of a byte, and what to run again.
    """
    operators = line.operators
    unit = sum(operators.again[:backward]) / max(1, sum(operators.size))
    low, high = _LOWEST, _HIGHEST
    found: list[Found] = []
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        again = cheapest_cut(operators, backward, unit * 2**middle)
        program = range(len(operators.makes))
        order = _rerun(operators, program, backward, again, partial(_ancestors, operators, again))
        found.append(line.settle(order))
        if found[-1].over:
            low = middle
        else:
            high = middle
    best = min((one for one in found if not one.over), key=lambda one: one.cost, default=None)
    others = (one for one in found if one.over and (best is None or one.cost < best.cost))
    nearest = min(others, key=lambda one: one.over, default=None)
    return [one.order for one in (best, nearest) if one is not None]


def relieved(line: Timeline, order: Sequence[int]) -> list[int]:
    """The order, with runs inserted behind those that are above the budget, or the order if that is worse."""
    given = line.settle(order)
    relief: list[int] = []
    for index, slot in enumerate(line.slots):
        relief.append(line.op_at[slot])
        if line.used[slot] > line.budget:
            relief += _made_afterwards(line, slot, line.slots[max(0, index - _RECENT)])
    return min(given, line.settle(relief), key=lambda found: found.over).order


def limit_saved(program: Program, most: int, budget: int) -> Program:
    """The program for plans within a budget that hold at most so many bytes between the passes."""

    def limited(number: int, call: Call) -> Call:
        taken = budget - most if number == program.backward else 0  # all but these bytes
        return call._replace(workspace=max(call.workspace, taken))

    return program.with_calls(limited)


def rerun_forward(program: Program, order: Sequence[int]) -> list[int]:
    """An order that saves the least tensors: what the forward pass did is done again after it."""
    assert program.backward is not None
    repeats = [call.recomputable for call in program.calls()]
    start = order.index(program.backward)
    again = [op for op in order[:start] if repeats[op]]
    return [*order[: start + 1], *again, *order[start + 1 :]]


def rerun(program: Program, order: Sequence[int], again: set[int]) -> list[int]:
    """An order that saves nothing of these operators: each that may runs again for the backward pass."""
    if program.backward is None:
        return list(order)
    operators = Operators.of(program)
    again = {op for op in again if operators.repeats[op]}
    start = order.index(program.backward)
    return _rerun(operators, order, start, again, partial(_ancestors, operators, again))


def _made_afterwards(line: Timeline, slot: int, recent: int) -> list[int]:
    """The operators that make again what waits at a slot, if what they are made from has fewer bytes.

    Only what was read since the slot ``recent`` is a source.  A storage is two nodes, an edge between them
    its bytes: above the cut it waits, below it is made again.
    """
    operators = line.operators
    waiting = [
        storage
        for storage, size in enumerate(operators.size)
        if size and line.read_after_idling(storage, slot) is not None
    ]
    running = line.op_at[slot]
    is_there = {*operators.reads[running], *operators.makes[running]}
    graph = nx.DiGraph()
    graph.add_nodes_from(("kept", "read"))
    graph.add_edges_from(((storage, "out"), "read") for storage in waiting)
    pending, seen = list(waiting), set(waiting)
    while pending:
        storage = pending.pop()
        maker = operators.maker[storage]
        size = 0 if storage in is_there else operators.size[storage]
        graph.add_edge((storage, "in"), (storage, "out"), capacity=size)
        reads = operators.reads[maker]
        if operators.repeats[maker] and all(line.touched_before(read, slot) >= recent for read in reads):
            graph.add_edges_from(((read, "out"), (storage, "in")) for read in reads)
            pending += set(reads) - seen
            seen.update(reads)
        else:
            graph.add_edge("kept", (storage, "in"))
    nbytes, (_, made_again) = nx.minimum_cut(graph, "kept", "read", flow_func=boykov_kolmogorov)
    if nbytes >= sum(operators.size[storage] for storage in waiting):
        return []
    return sorted({operators.maker[storage] for storage, side in made_again - {"read"} if side == "in"})


def _segments(operators: Operators, backward: int, count: int, wanted: Iterable[int]) -> dict[int, set[int]]:
    """Each operator that runs again with those of its segment; all segments make as many bytes.

    The last one is not given up: the backward pass starts with it.
    """
    made = [sum(operators.size[storage] for storage in operators.makes[op]) for op in range(backward)]
    total = max(1, sum(made))
    number = [min(count - 1, before * count // total) for before in accumulate(made[:-1], initial=0)]
    needed = set(wanted)
    for op in reversed(range(backward)):
        if op in needed:
            needed.update(maker for maker in _makers(operators, op) if number[maker] == number[op])
    segments: list[set[int]] = [set() for _ in range(count)]
    for op in needed:
        if operators.repeats[op] and number[op] != number[-1]:
            segments[number[op]].add(op)
    return {op: segment for segment in segments for op in segment}


def cheapest_cut(operators: Operators, backward: int, price: float) -> set[int]:
    """The operators that run again where saved bytes have a price.

    An operator on the sink's side of the cut runs again; a storage there whose operator does not is saved.
    """
    wanted = _wanted(operators, backward)
    graph = nx.DiGraph()
    graph.add_nodes_from(("saved", "read"))
    for op in _closure(wanted, lambda op: _makers(operators, op) if operators.repeats[op] else []):
        if operators.repeats[op]:
            graph.add_edge("saved", op, capacity=operators.again[op])
            graph.add_edges_from((("storage", storage), op) for storage in operators.reads[op])
        else:
            graph.add_edge("saved", op)
        for storage in operators.makes[op]:
            graph.add_edge(op, ("storage", storage), capacity=price * operators.size[storage])
    for storage in {storage for reads in operators.reads[backward:] for storage in reads}:
        if operators.maker[storage] in wanted:
            graph.add_edge(("storage", storage), "read")
    _, (_, made_again) = nx.minimum_cut(graph, "saved", "read", flow_func=boykov_kolmogorov)
    return {node for node in made_again if isinstance(node, int)}


def _ancestors(operators: Operators, again: set[int], op: int) -> set[int]:
    """One of the operators, and those of them that it is made from."""
    return _closure([op], lambda op: [maker for maker in _makers(operators, op) if maker in again])


def _rerun(
    operators: Operators,
    order: Sequence[int],
    start: int,
    again: Container[int],
    companions: Callable[[int], set[int]],
) -> list[int]:
    """The order, with each operator of ``again`` once more before the backward pass first reads of it.

    That pass starts at ``start``.  The operator's companions, itself among them, come along, in the program's
    order; each operator does so once.
    """
    done: set[int] = set()
    given, order = order, list(order[:start])
    for op in given[start:]:
        now: set[int] = set()
        for maker in _makers(operators, op):
            if maker in again and maker not in done:
                now |= companions(maker) - done
        order += [*sorted(now), op]
        done |= {*now, op}
    return order


def _wanted(operators: Operators, backward: int) -> set[int]:
    """The forward operators whose results the backward pass reads."""
    makers = (maker for op in range(backward, len(operators.makes)) for maker in _makers(operators, op))
    return {maker for maker in makers if maker < backward}


def _makers(operators: Operators, op: int) -> list[int]:
    return [operators.maker[storage] for storage in operators.reads[op]]


def _closure(ops: Iterable[int], further: Callable[[int], Iterable[int]]) -> set[int]:
    """The operators, and by the way of ``further`` all others that lead to them."""
    found = set(ops)
    unseen = list(found)
    while unseen:
        more = set(further(unseen.pop())) - found
        found |= more
        unseen += more
    return found
