"""The least that plans compute again within a budget: a lower bound on their cost.

When the operator runs at which most would be live, what later ones read of earlier ones either waits in the
bytes that are left, or is made again afterwards from what waits.  At a price for a byte that waits, the
cheapest choice is a minimum cut.  Its cost and price, less the price of all the bytes that are left, is more
than no plan costs, whatever the price is (Lagrangian relaxation).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator
from itertools import accumulate

import networkx as nx
from networkx.algorithms.flow import boykov_kolmogorov

from dtr_fx.runtime.program import Program
from dtr_fx.search.bound import Bounds
from dtr_fx.search.lifetimes import closure

# How many prices are tried, how closely the best is looked for, as a share of the bound, and by which factor
# a price rises at which too much would wait.
_CUTS, _CLOSE, _DEARER = 4, 0.02, 4.0
# How many calls are looked at for the one for which most waits.
_CALLS = 20
# Sums in another order differ by less.
_ROUNDING = 1e-9


def least_recomputed(program: Program, budget: int) -> float:
    """A cost that the recomputes of no plan are below which fits ``budget`` bytes, constants included.

    It is for plans without transfers, which run the calls in this order for the first time.  It counts each
    call once at most: where several more forward passes are needed it is far too low.

    Examples
    --------
    >>> from dtr_fx.runtime.program import Call, Keep, Output
    >>> f, g = Call("f", (), (Output(0, 4),), 1.0), Call("g", (0,), (Output(1, 4),), 2.0)
    >>> last = Call("last", (0, 1), (Output(3, 1),), 1.0)
    >>> program = Program("four", (f, g, Call("wide", (1,), (Output(2, 8),), 1.0), last, Keep(3)))
    >>> [round(least_recomputed(program, budget), 6) for budget in (16, 12)]
    [0.0, 1.0]
    """
    bounds = Bounds(program)
    waiting = _most_waiting(program, bounds)
    left = 0 if waiting is None else budget - waiting.beside
    if waiting is None or waiting.nbytes <= max(left, 0) or not waiting.cost:
        return 0.0
    price, bound = waiting.cost / waiting.nbytes, 0.0
    more, less = (0.0, waiting.nbytes), None
    for _ in range(_CUTS):
        cost, nbytes = found = waiting.cut(price)
        bound = max(bound, cost + price * (nbytes - left))
        more, less = (found, less) if nbytes > left else (more, found)
        if less is None:
            price *= _DEARER
        elif more[1] <= less[1]:
            break
        else:
            # Between two cuts the bound is highest where they are equal, and at most what they are there.
            price = (less[0] - more[0]) / (more[1] - less[1])
            if more[0] + price * (more[1] - left) <= (1 + _CLOSE) * bound:
                break
    return bound * (1 - _ROUNDING)


def _most_waiting(program: Program, bounds: Bounds) -> _Waiting | None:
    """What waits for the call while which most certainly is live if nothing runs again; not all are tried."""
    best: _Waiting | None = None
    live = _live(program, bounds)
    numbers = (number for number, call in enumerate(bounds.calls) if not call.serves_recompute)
    for number in heapq.nlargest(_CALLS, numbers, key=live.__getitem__):
        if best is not None and best.beside + best.nbytes >= live[number]:
            break
        waiting = _Waiting(program, bounds, number)
        if best is None or waiting.beside + waiting.nbytes > best.beside + best.nbytes:
            best = waiting
    return best


def _live(program: Program, bounds: Bounds) -> list[int]:
    """The bytes that are live while each call runs, if nothing runs again."""
    last = dict(bounds.maker)
    for number, reads in enumerate(bounds.reads):
        last.update(dict.fromkeys(reads & bounds.maker.keys(), number))
    for tensors in program.kept_after.values():
        last.update((program.storages[tensor], len(bounds.calls)) for tensor in tensors)
    change = [0] * (len(bounds.calls) + 2)
    for storage, number in bounds.maker.items():
        if storage in bounds.size and storage not in bounds.optional:
            change[number] += bounds.size[storage]
            change[last[storage] + 1] -= bounds.size[storage]
    made = accumulate(change)
    return [program.constants + nbytes + call.workspace for nbytes, call in zip(made, bounds.calls)]


def _read_later(bounds: Bounds, number: int) -> Iterator[set[int]]:
    """The storages that calls read which every plan runs later; of a deferred call, those that need it."""
    call = bounds.calls[number]
    made = {output.tensor for output in call.outputs}
    for other, reads in enumerate(bounds.reads[number + 1 :], number + 1):
        if not call.may_defer:
            yield reads
        elif not made.isdisjoint(reads):
            made.update(output.tensor for output in bounds.calls[other].outputs)
            yield reads


class _Waiting:
    """What was made before a call and is read after it, beside what the call itself reads and makes.

    ``nbytes`` is how much that is, ``beside`` what the call itself holds, and all that is held for good by
    then; ``cost`` is what it would take to make all of it again.
    """

    def __init__(self, program: Program, bounds: Bounds, number: int) -> None:
        self._bounds, calls, maker, size = bounds, bounds.calls, bounds.maker, bounds.size
        held = (storage for storage, start in bounds.held_from.items() if start <= number)
        outputs = {program.storages[output.tensor] for output in calls[number].outputs}
        there = {*held, *bounds.reads[number], *outputs, *bounds.optional}
        kept = {program.storages[tensor] for tensors in program.kept_after.values() for tensor in tensors}

        def waits(storage: int) -> bool:
            return storage not in there and maker.get(storage, number) < number

        wanted = set(filter(waits, kept.union(*_read_later(bounds, number))))

        def sources(op: int) -> list[int]:
            """The storages that are made again for a call to run again."""
            return [each for each in bounds.reads[op] if waits(each)] if calls[op].recomputable else []

        ops = closure((maker[each] for each in wanted), lambda op: [maker[each] for each in sources(op)])
        self._again = {op: self._price_of(op) for op in ops}
        # What is wanted is saved, or its call runs again, whoever else reads it.
        self._saved = dict.fromkeys(ops, 0)
        for storage in wanted:
            self._saved[maker[storage]] += size[storage]
        self._readers: dict[int, list[int]] = {}
        for op in sorted(ops):
            for storage in sources(op):
                if storage not in wanted:
                    self._readers.setdefault(storage, []).append(op)
        linked = {maker[storage] for storage in self._readers}.union(*self._readers.values())
        self._linked, self._alone = sorted(linked), sorted(ops - linked)
        self.beside = bounds.while_running[number].nbytes
        self.nbytes = sum(self._saved.values())
        self.cost = sum(cost for cost in self._again.values() if cost < math.inf)

    def _price_of(self, op: int) -> float:
        call = self._bounds.calls[op]
        if not call.recomputable:
            return math.inf
        # It may run for the first time where it is counted as running again, or not at all.
        return 0.0 if call.may_defer or call.serves_recompute else call.cost

    def cut(self, price: float) -> tuple[float, int]:
        """The cost of what is made again, and the bytes that wait, where both together cost least."""
        again = {op for op in self._alone if self._again[op] < price * self._saved[op]}
        graph, maker, size = nx.DiGraph(), self._bounds.maker, self._bounds.size
        graph.add_nodes_from(("saved", "read"))
        for op in self._linked:
            limit = {} if self._again[op] == math.inf else {"capacity": self._again[op]}
            graph.add_edge("saved", op, **limit)
            graph.add_edge(op, "read", capacity=price * self._saved[op])
        for storage, readers in self._readers.items():
            graph.add_edge(maker[storage], ("storage", storage), capacity=price * size[storage])
            graph.add_edges_from((("storage", storage), op) for op in readers)
        _, (_, below) = nx.minimum_cut(graph, "saved", "read", flow_func=boykov_kolmogorov)
        again.update(op for op in self._linked if op in below)
        wait = sum(self._saved[op] for op in self._saved.keys() - again)
        wait += sum(
            size[storage]
            for storage in self._readers
            if ("storage", storage) in below and maker[storage] not in again
        )
        return sum(self._again[op] for op in sorted(again)), wait
