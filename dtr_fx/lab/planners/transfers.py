"""The static optimum with transfers: keep, compute again, or move out and back, whichever ends first.

Checkmate's program (``checkmate``) with two queues of copies beside the compute would need an order for each
queue and a clock for each place, and a relaxation of those says next to nothing.  Here the optimum is a
shortest path, found by best-first search (A*) over what is on the device and on the host.  The model of time
is that of ``time_plan``, the objective the end of the last operator: compute, recomputation and stalls.
"""

from __future__ import annotations

import heapq
import itertools
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

from dtr_fx.lab.planners.clock import (
    DROP,
    OFFLOAD,
    RELOAD,
    RUN,
    WAIT,
    Action,
    time_plan,
    with_ends,
)
from dtr_fx.lab.planners.graph import OperatorGraph
from dtr_fx.lab.planners.plan import CannotPlan, solvable
from dtr_fx.tiers.tier import Bandwidth

# Times that differ by less than this share of the program's cost are equal.
_EXACT = 1e-9

_SHORT_OF = "{}: no plan with transfers fits {} bytes"


@dataclass(frozen=True)
class Moved:
    """The best plan found, None without one; its ``cost`` is the time at which its last operator ends.

    No plan ends before ``bound``; ``optimal`` says that this one ends then.  ``seconds`` is the wall time.
    """

    actions: tuple[Action, ...] | None
    cost: float
    bound: float
    optimal: bool
    seconds: float
    labels: int


def solve_transfers(
    graph: OperatorGraph,
    budget: float,
    link: Bandwidth,
    seconds: float = 60.0,
    *,
    host: float = math.inf,
    known: Sequence[Sequence[Action]] = (),
) -> Moved:
    """The plan whose last operator ends first, of all plans under the rules of ``time_plan``.

    All plans: those that run the operators for the first time in program order, and again whenever and as
    often as they like, not in Checkmate's stages only.  Exact up to rounding where ``optimal``; where the
    time is up first, ``bound`` is still a true lower bound.  ``known`` are plans to start from: the search
    looks for better ones only.

    Raises ``CannotPlan`` if no plan fits, ``ValueError`` if the budget or the seconds are no number.
    """
    closed = solvable(graph, budget, seconds, "the optimum with transfers")
    start = time.perf_counter()
    best: tuple[Action, ...] | None = None
    cost = math.inf
    for actions in known:
        timing = time_plan(graph, actions, link, budget, host)
        if timing.total < cost:
            best, cost = tuple(actions), timing.total
    search = _Search(closed, budget, link, host, cost)
    found = search.run(start + seconds)
    if found is not None:
        real = [action for action in found if action.number < len(graph)]
        best = tuple(with_ends(graph, real))
        cost = time_plan(graph, best, link, budget, host).total
    elapsed = time.perf_counter() - start
    if best is None and search.bound == math.inf:
        raise CannotPlan(_SHORT_OF.format(graph.name, budget))
    optimal = found is not None or search.bound == search.upper
    return Moved(best, cost, cost if optimal else min(cost, search.bound), optimal, elapsed, search.labels)


class _Label(NamedTuple):
    """A state between two operators, and how it was reached.

    Sets of values are bit masks.  ``done`` operators have run for the first time.  ``out`` and ``back`` say
    when the channels are free, ``copies`` when the copies of values on the device are on the host, and
    ``arrivals`` when values on their way back are there; what is past by ``clock`` may be missing.
    ``may_copy``: which values the next copy out may be of.
    """

    done: int
    here: int
    host: int
    may_copy: int
    clock: float
    out: float
    back: float
    copies: dict[int, float]
    arrivals: dict[int, float]
    parent: _Label | None
    actions: tuple[Action, ...]
    serial: int


class _Search:
    """Best-first search over labels.

    Four rules leave a best plan in (each can be shown by exchanging two actions of a plan that breaks it):

    - A value is evicted only right before bytes are taken that would not fit otherwise, and then no more
      values than needed.
    - A copy out is issued as soon as its value is made or, if its turn in the queue comes later, right after
      the copy before it.
    - A copy back is issued so late that it starts before the next operator ends.
    - What nothing can need any more is freed at once.

    A label is dropped if another one with the same values on the device and as many on the host is there no
    later with all of its clocks.  ``_Future`` bounds what is still to come from below.
    """

    def __init__(
        self, graph: OperatorGraph, budget: float, link: Bandwidth, host: float, upper: float
    ) -> None:
        self._budget, self._host_budget, self.upper = budget, host, upper
        self._nodes = graph.nodes
        self._count = len(graph)
        self._size = [node.size for node in graph.nodes]
        self._cost = [node.cost for node in graph.nodes]
        self._reads = [_mask(node.inputs) for node in graph.nodes]
        self._out = [link.seconds_out(size) for size in self._size]
        self._back = [link.seconds_back(size) for size in self._size]
        self._alive, self._rest_after = _alive(graph)
        self._future = _Future(graph, budget, link)
        self._epsilon = _EXACT * max(graph.cost, 1e-300)
        self._labels: dict[tuple[int, int], list[_Label]] = {}
        self._serials = itertools.count(1)
        self._worse: set[int] = set()
        self.bound = 0.0
        self.labels = 0
        self._bytes = cache(lambda mask: sum(self._size[v] for v in _bits(mask)))
        self._evictions = cache(self._find_evictions)

    def run(self, end: float) -> list[Action] | None:
        """The actions of a plan better than the upper bound; None if there is none, or time is up."""
        first = _Label(0, 0, 0, 0, 0.0, 0.0, 0.0, {}, {}, None, (), 0)
        queue = [(self._bound_of(first), 0, 0, first)]
        while queue:
            bound, _, _, label = heapq.heappop(queue)
            self.bound = max(self.bound, bound)
            if label.done == self._count:
                return self._path(label)
            if label.serial in self._worse:
                continue
            if self.labels % 256 == 0 and time.perf_counter() > end:
                return None
            self.labels += 1
            for after in self._moves(label):
                reached = max(bound, self._bound_of(after))
                if reached < self.upper - self._epsilon and self._new(after):
                    heapq.heappush(queue, (reached, -after.done, after.serial, after))
        self.bound = self.upper
        return None

    def _bound_of(self, label: _Label) -> float:
        bound = self._future.bound(label)
        for value, arrival in label.arrivals.items():
            bound = max(bound, arrival + self._rest_after[value])
        return bound

    def _path(self, label: _Label) -> list[Action]:
        parts = []
        at: _Label | None = label
        while at is not None:
            parts.append(at.actions)
            at = at.parent
        return [action for actions in reversed(parts) for action in actions]

    # Successors

    def _moves(self, label: _Label) -> Iterator[_Label]:
        copying = label.may_copy & label.here & ~label.host
        for value in _bits(copying):
            if (moved := self._offload(label, value)) is not None:
                yield moved
        here, alive = label.here, self._alive[label.done]
        held = 0
        for value, arrival in label.arrivals.items():
            if arrival > label.clock:
                held |= 1 << value
        for value in _bits(label.host & ~here & alive):
            for evicted in self._evictions(here & ~held, self._lacking(here, value)):
                yield self._reload(label, value, evicted)
        for op in (label.done, *_bits(alive & ~here)):
            if self._reads[op] & ~here == 0:
                free = here & ~held & ~self._reads[op]
                for evicted in self._evictions(free, self._lacking(here, op)):
                    if (moved := self._run(label, op, evicted)) is not None:
                        yield moved

    def _lacking(self, here: int, value: int) -> float:
        return max(0, self._bytes(here) + self._size[value] - self._budget)

    def _find_evictions(self, free: int, lacking: float) -> list[int]:
        """The sets of values whose bytes suffice, and none of them can be left out."""
        if lacking <= 0:
            return [0]
        values = sorted((value for value in _bits(free) if self._size[value]), key=lambda v: -self._size[v])
        found: list[int] = []

        def extend(start: int, chosen: int, missing: float) -> None:
            # From the largest to the smallest: as the last one was missing, no earlier one can be left out.
            for place in range(start, len(values)):
                value = values[place]
                if missing <= self._size[value]:
                    found.append(chosen | 1 << value)
                else:
                    extend(place + 1, chosen | 1 << value, missing - self._size[value])

        extend(0, 0, lacking)
        return found

    def _offload(self, label: _Label, value: int) -> _Label | None:
        end = max(label.clock, label.out) + self._out[value]
        useless = end + self._back[value] + self._rest_after[value] >= self.upper - self._epsilon
        if useless or self._bytes(label.host) + self._size[value] > self._host_budget:
            return None
        return label._replace(
            host=label.host | 1 << value,
            may_copy=-1,
            out=end,
            copies={**label.copies, value: end},
            parent=label,
            serial=next(self._serials),
            actions=(Action(OFFLOAD, value),),
        )

    def _evict(self, label: _Label, evicted: int) -> tuple[float, dict[int, float], list[Action]]:
        clock, copies, actions = label.clock, label.copies, []
        for value in _bits(evicted):
            copied = label.host >> value & 1
            actions.append(Action(WAIT if copied else DROP, value))
            clock = max(clock, copies.get(value, 0.0))
        return clock, copies, actions

    def _reload(self, label: _Label, value: int, evicted: int) -> _Label:
        clock, copies, actions = self._evict(label, evicted)
        arrival = max(clock, label.back) + self._back[value]
        return label._replace(
            here=label.here & ~evicted | 1 << value,
            may_copy=0,
            clock=clock,
            back=arrival,
            copies={v: end for v, end in copies.items() if end > clock},
            arrivals={**{v: at for v, at in label.arrivals.items() if at > clock}, value: arrival},
            parent=label,
            serial=next(self._serials),
            actions=(*actions, Action(RELOAD, value)),
        )

    def _run(self, label: _Label, op: int, evicted: int) -> _Label | None:
        clock, copies, actions = self._evict(label, evicted)
        reads = self._reads[op]
        for value, arrival in label.arrivals.items():
            if reads >> value & 1:
                clock = max(clock, arrival)
        clock += self._cost[op]
        for value, arrival in label.arrivals.items():
            if not reads >> value & 1 and arrival - self._back[value] >= clock:
                return None
        first = op == label.done
        done = label.done + first
        here = (label.here & ~evicted | 1 << op) & self._alive[done]
        return _Label(
            done,
            here,
            label.host & self._alive[done] if self._host_budget == math.inf else label.host,
            here & ~label.host & 1 << op,
            clock,
            label.out,
            label.back,
            {v: end for v, end in copies.items() if end > clock and here >> v & 1},
            {v: at for v, at in label.arrivals.items() if at > clock and here >> v & 1},
            label,
            (*actions, Action(RUN, op)),
            next(self._serials),
        )

    # Dominance

    def _new(self, label: _Label) -> bool:
        """Whether no label found before is as good; those that this one is as good as are given up."""
        others = self._labels.setdefault((label.done, label.here), [])
        for other in others:
            if self._as_good(other, label):
                return False
        worse = [other.serial for other in others if self._as_good(label, other)]
        if worse:
            self._worse.update(worse)
            others[:] = [other for other in others if other.serial not in self._worse]
        others.append(label)
        return True

    def _as_good(self, one: _Label, other: _Label) -> bool:
        clock = other.clock + self._epsilon
        if (
            one.clock > clock
            or other.host & ~one.host
            or other.may_copy & ~one.may_copy & ~one.host & other.here
        ):
            return False
        if self._host_budget < math.inf and one.host != other.host:
            return False
        if one.out > max(clock, other.out + self._epsilon) or one.back > max(
            clock, other.back + self._epsilon
        ):
            return False
        for value, end in one.copies.items():
            if end > max(clock, other.copies.get(value, 0.0) + self._epsilon):
                return False
        for value, arrival in one.arrivals.items():
            if arrival > max(clock, other.arrivals.get(value, 0.0) + self._epsilon):
                return False
        return True


class _Future:
    """A lower bound of the time at which a plan can end from a label on.

    Whatever the plan does next, each value that is on the host, or that will be short of room while some
    operator k runs, is computed again, which the compute clock pays, or copied, which the channels pay.  Both
    clocks bound the end; so does each weighted mean of them, and in a mean every value takes the cheaper way
    by itself.  What a channel does already bounds the end only where the plan gives it more to do, so that
    ``terms`` are the numbers (a, b, c, d, e) of bounds min(a · clock + b · out + c · back + d, clock + e),
    where e is for all of it computed again.
    """

    def __init__(self, graph: OperatorGraph, budget: float, link: Bandwidth) -> None:
        self._graph = graph
        count = len(graph)
        self._cost = [node.cost for node in graph.nodes]
        self._size = [node.size for node in graph.nodes]
        self._out = [link.seconds_out(size) for size in self._size]
        self._back = [link.seconds_back(size) for size in self._size]
        self._rest = [sum(self._cost[number:]) for number in range(count + 1)]
        self._weights = self._weigh()
        self._readers = [
            [next((user for user in users if user >= start), None) for start in range(count + 1)]
            for users in graph.users
        ]
        self._needed = [
            _mask(value for value in range(done) if self._readers[value][done] is not None)
            for done in range(count + 1)
        ]
        self._tight = [number for number in range(count) if self._excess(number, budget) > 0]
        self._lacking = {number: self._excess(number, budget) for number in self._tight}
        self._waiting = {number: tuple(self._crossing(number)) for number in self._tight}
        self._waiting_mask = {number: _mask(values) for number, values in self._waiting.items()}
        self._alone = self._accumulate_alone(budget)
        self._terms = cache(self._find_terms)
        self._covers = cache(self._cover)

    def bound(self, label: _Label) -> float:
        clock = label.clock
        out, back = max(label.out, clock), max(label.back, clock)
        terms = self._terms(label.done, label.here, label.host)
        return max(min(a * clock + b * out + c * back + d, clock + e) for a, b, c, d, e in terms)

    def _weigh(self) -> list[float]:
        """Weights of the compute clock at which some value's ways are equally cheap."""
        ratios = sorted(
            way / (cost + way)
            for cost, *ways in zip(self._cost, self._out, self._back)
            for way in ways
            if cost and way
        )
        places = (0, len(ratios) // 2, len(ratios) - 1)
        return sorted({w for place in places for w in (ratios[place], 1 - ratios[place])}) if ratios else []

    def _accumulate_alone(self, budget: float) -> list[float]:
        """Of each number of operators the cost of those that leave no room for a value on its way back."""
        alone = [0.0]
        for k, node in enumerate(self._graph.nodes):
            touched = {k, *node.inputs}
            room = budget - sum(self._size[value] for value in touched)
            others = [
                self._size[value] for value in range(k) if value not in touched and self._graph.users[value]
            ]
            alone.append(alone[-1] + (node.cost if all(size > room for size in others) else 0.0))
        return alone

    def _crossing(self, k: int) -> Iterator[int]:
        """The values made before k and read after it, but not by it."""
        for value in range(k):
            if k not in self._graph.users[value] and any(user > k for user in self._graph.users[value]):
                yield value

    def _excess(self, k: int, budget: float) -> float:
        node = self._graph.nodes[k]
        touched = {k, *node.inputs, *self._crossing(k)}
        return sum(self._size[value] for value in touched) - budget

    def _first_reader(self, value: int, start: int) -> int | None:
        return self._readers[value][start]

    def _gone(self, done: int, here: int, host: int) -> int:
        """The values that have to be computed again, as they are needed and nowhere."""
        there = here | host
        gone = 0
        needed = list(_bits(self._needed[done] & ~there))
        while needed:
            value = needed.pop()
            if not gone >> value & 1:
                gone |= 1 << value
                needed += [v for v in self._graph.nodes[value].inputs if not there >> v & 1]
        return gone

    def _find_terms(self, done: int, here: int, host: int) -> list[tuple[float, ...]]:
        gone = self._gone(done, here, host)
        rest = self._rest[done] + sum(self._cost[value] for value in _bits(gone))
        terms: list[tuple[float, ...]] = []
        alone = rest
        tight = [
            (k, *self._covers(k, gone & self._waiting_mask[k], host & self._waiting_mask[k]))
            for k in self._tight
            if k >= done
        ]
        missing = sorted(
            (reader, value)
            for value in _bits(host & ~here)
            if (reader := self._first_reader(value, done)) is not None
        )
        for place, weight in enumerate(self._weights):
            outs, again = -math.inf, 0.0
            for k, before, after, through, computed in tight:
                spent = weight * rest
                outs, again = max(
                    (outs, again), (spent + max(before[place], through[place]), rest + computed)
                )
                alone = max(
                    alone, spent + after[place] + (1 - weight) * (self._rest[done] - self._rest[k + 1])
                )
            if outs > -math.inf:
                terms.append((weight, 1 - weight, 0.0, outs, again))
            backs, work, computed, again = -math.inf, weight * rest, rest, 0.0
            for reader, value in missing:
                work += min(weight * self._cost[value], (1 - weight) * self._back[value])
                rest_then = self._rest[reader] + self._alone[reader] - self._alone[done]
                computed += self._cost[value]
                backs, again = max((backs, again), (work + (1 - weight) * rest_then, computed))
            if backs > -math.inf:
                terms.append((weight, 0.0, 1 - weight, backs, again))
        return [(1.0, 0.0, 0.0, alone, math.inf), *terms]

    def _cover(self, k: int, gone: int, host: int) -> tuple[list[float], list[float], list[float], float]:
        """Of each weight the least that the values pay that make room for k.

        Before it starts, when they are copied out; after it ended, when they are copied back; and both, by
        the time that the copies out start.  Last what they pay where nothing more is copied out.
        """
        rest = self._rest[k]
        after = [self._first_reader(value, k + 1) for value in self._waiting[k]]
        reader = max(reader for reader in after if reader is not None)
        last = self._rest[reader] + self._alone[reader] - self._alone[k + 1]
        found: tuple[list[float], list[float], list[float]] = ([], [], [])
        for weight in self._weights:
            other = 1 - weight
            ways: tuple[list[tuple[float, int]], ...] = ([], [], [])
            for value in self._waiting[k]:
                again = 0.0 if gone >> value & 1 else weight * self._cost[value]
                out = 0.0 if host >> value & 1 else other * self._out[value]
                back = other * self._back[value]
                for way, pays in zip(ways, (out, back, out + back)):
                    way.append((min(again, pays), self._size[value]))
            tails = (rest, last, self._cost[k] + last)
            for kept, way, tail in zip(found, ways, tails):
                kept.append(other * tail + _least(way, self._lacking[k]))
        there = gone | host
        computed = ((0.0 if there >> v & 1 else self._cost[v], self._size[v]) for v in self._waiting[k])
        return *found, _least(list(computed), self._lacking[k])


def _least(values: Sequence[tuple[float, int]], size: float) -> float:
    """The least price of values of this size in all, parts of values allowed."""
    price = 0.0
    for pays, has in sorted((pair for pair in values if pair[1]), key=lambda pair: pair[0] / pair[1]):
        taken = min(size, has)
        price += pays * taken / has
        size -= taken
        if size <= 0:
            return price
    return math.inf


def _alive(graph: OperatorGraph) -> tuple[list[int], list[float]]:
    """What can be needed, directly or for a recomputation, once so many operators ran; and of each value
    what is left to do, at the least, after it was used for the last time."""
    count = len(graph)
    last = list(range(count))  # the last operator that can need the value
    for value in reversed(range(count)):
        last[value] = max((max(user, last[user]) for user in graph.users[value]), default=-1)
    rest = [sum(node.cost for node in graph.nodes[at:]) if at >= 0 else 0.0 for at in last]
    alive = []
    for done in range(count + 1):
        needed = [False] * count
        for value in reversed(range(done)):
            needed[value] = any(user >= done or needed[user] for user in graph.users[value])
        alive.append(_mask(value for value in range(done) if needed[value]))
    return alive, rest


def _mask(values: Iterator[int] | Sequence[int]) -> int:
    mask = 0
    for value in values:
        mask |= 1 << value
    return mask


@cache
def _bits(mask: int) -> tuple[int, ...]:
    return tuple(place for place in range(mask.bit_length()) if mask >> place & 1)
