"""Where walks start: orders that save a part of the forward pass and run the rest again for the backward one.

Orders are measured on a timeline, which is lent.  ``backward`` is the backward pass's first operator.  Where
other programs run between the passes, what is saved can be limited for its own sake.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Sequence
from functools import partial

import networkx as nx
from networkx.algorithms.flow import boykov_kolmogorov

from dtr_fx.runtime.program import Call, Program
from dtr_fx.search.lifetimes import Operators, closure
from dtr_fx.search.timeline import Found, Timeline

# Prices of bytes that are tried, as powers of two times the forward pass's cost for its bytes.
_LOWEST, _HIGHEST, _BISECTIONS = -5.0, 7.0, 5
# How many runs ago something was there that is kept in place of what is made from it.
_RECENT = 50


def cuts(line: Timeline, backward: int) -> list[list[int]]:
    """Of orders by minimum cuts the cheapest that fits and, of those that cost less, the nearest, if any.

    A cut chooses, as in PyTorch's partitioner, what to save at a price of a byte, and what to run again.
    """
    operators = line.operators
    unit = price_of_bytes(operators, backward)
    low, high = _LOWEST, _HIGHEST
    found: list[Found] = []
    wanted = read_back(operators, backward)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        again = cheapest_cut(operators, wanted, unit * 2**middle)
        program = range(len(operators.makes))
        order = _rerun(operators, program, backward, again, partial(_ancestors, operators, again))
        found.append(line.settle(order))
        if found[-1].over:
            low = middle
        else:
            high = middle
    return best_and_nearest(found)


def best_and_nearest(found: Sequence[Found]) -> list[list[int]]:
    """The cheapest order that fits and, of those that cost less, the nearest, if any."""
    fitting = [one for one in found if not one.over]
    best = min(fitting, key=lambda one: one.cost, default=None)
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


def spared(line: Timeline) -> list[int]:
    """The line's order, without the repeated runs, the dearest first, that it fits without."""
    again = line.operators.again
    for slot in sorted(line.repeated, key=lambda slot: (-again[line.op_at[slot]], slot)):
        if slot in line.op_at:
            line.remove(slot)
            if line.over:
                line.undo()
            else:
                line.commit()
    return line.order


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
    again = [op for op in order[:start] if op >= 0 and repeats[op]]
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


def cheapest_cut(
    operators: Operators, wanted: Iterable[int], price: float, first: int = 0, free: Container[int] = ()
) -> set[int]:
    """The operators that run again to have some storages, where saved bytes have a price.

    What is made before the operator ``first`` is there, and what is ``free`` is saved at no price.  An
    operator on the sink's side of the cut runs again; a storage there whose operator does not is saved.
    """
    maker, repeats = operators.maker, operators.repeats
    graph = nx.DiGraph()
    graph.add_nodes_from(("saved", "read"))

    def further(op: int) -> list[int]:
        return [made for made in makers(operators, op) if made >= first] if repeats[op] else []

    for op in closure((maker[storage] for storage in wanted if maker[storage] >= first), further):
        if repeats[op]:
            graph.add_edge("saved", op, capacity=operators.again[op])
            read = (storage for storage in operators.reads[op] if maker[storage] >= first)
            graph.add_edges_from((("storage", storage), op) for storage in read)
        else:
            graph.add_edge("saved", op)
        for storage in operators.makes[op]:
            cost = 0 if storage in free else price * operators.size[storage]
            graph.add_edge(op, ("storage", storage), capacity=cost)
    graph.add_edges_from((("storage", storage), "read") for storage in wanted if maker[storage] >= first)
    _, (_, made_again) = nx.minimum_cut(graph, "saved", "read", flow_func=boykov_kolmogorov)
    return {node for node in made_again if isinstance(node, int)}


def _ancestors(operators: Operators, again: set[int], op: int) -> set[int]:
    """One of the operators, and those of them that it is made from."""
    return closure([op], lambda op: [maker for maker in makers(operators, op) if maker in again])


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
        for maker in makers(operators, op):
            if maker in again and maker not in done:
                now |= companions(maker) - done
        order += [*sorted(now), op]
        done |= {*now, op}
    return order


def price_of_bytes(operators: Operators, backward: int) -> float:
    """The forward pass's cost, for each byte that the program makes."""
    return sum(operators.again[:backward]) / max(1, sum(operators.size))


def read_back(operators: Operators, backward: int) -> set[int]:
    """The storages of the forward pass that the backward pass reads."""
    read = {storage for reads in operators.reads[backward:] for storage in reads}
    return {storage for storage in read if operators.maker[storage] < backward}


def makers(operators: Operators, op: int) -> list[int]:
    return [operators.maker[storage] for storage in operators.reads[op]]
