"""Plans that move storages out and back beside those that compute them again.

Transfers use what computing does not, so that the two together cost less than either:

    plans without transfers, for more memory by what the queue takes in the forward pass
      └─ what idles is moved until they fit  ──►  copies back issued ahead  ──►  a walk
           └─ the runtime carries out the cheapest, and checks it  ──►  the plan
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter

import numpy as np

from dtr_fx.runtime import Plan, Program
from dtr_fx.search.execute import execute_found
from dtr_fx.search.lifetimes import Moved, Operators
from dtr_fx.search.timeline import Found, Timeline
from dtr_fx.search.walk import walk

# By how much of what the queue takes in the forward pass a budget is raised; how hot walks are.
_RAISED, _WARM = (0.0, 0.6, 1.0), 0.3
# Of how many parts a step is, in which a copy may run.
_PARTS = 256
# How closely the smallest budget is searched, as a share of the lower bound; the factor on the penalty of a
# byte too many where cost does not count.
_CLOSE, _PENALTY = 0.01, 100.0


def with_moves(
    program: Program, budget: int, computed: Callable[[int], Plan | None], seconds: float
) -> Plan | None:
    """The cheapest plan that is found with transfers, or without; None if there is none.

    ``computed`` has the plans without transfers by their budgets.  The effort, in seconds of a usual machine,
    is for walks.
    """
    best = computed(budget)
    if best is not None and not best.extra:
        return best
    for found in sorted(_found(program, budget, computed, seconds), key=lambda found: found.cost):
        if best is not None and found.cost >= best.extra:
            break
        carried_out = execute_found(program, found.order, budget, found.moved)
        if carried_out is not None and (best is None or carried_out.extra < best.extra):
            best = carried_out
    return best


def _found(
    program: Program, budget: int, computed: Callable[[int], Plan | None], seconds: float
) -> Iterator[Found]:
    """Orders that fit, with what they move."""
    line = Timeline(Operators.of(program), budget - program.constants)
    yield from moving_alone(line)
    for order in _orders(program, budget, computed):
        start = issued_ahead(line, *moved_from(line, order, waits=False))
        hurried = issued_ahead(line, *moved_from(line, order, waits=True)) if start.over else start
        more = walk(line, start.order, seconds, temperature=_WARM, moved=start.moved)
        if more is None and hurried is not start:
            more = walk(line, hurried.order, seconds, temperature=_WARM, moved=hurried.moved)
        starts = [hurried] if more is None else [hurried, issued_ahead(line, more.order, more.moved)]
        yield from (found for found in starts if not found.over)


def moving_alone(line: Timeline) -> list[Found]:
    """The program in its own order, with what it moves to fit: greedy, by size and by the next read."""
    order = range(len(line.operators.makes))
    moved = (moved_from(line, order, waits=True, latest=latest) for latest in (False, True))
    return [found for each in moved if not (found := issued_ahead(line, *each)).over]


def _orders(program: Program, budget: int, computed: Callable[[int], Plan | None]) -> Iterator[Sequence[int]]:
    """Orders without transfers, for more memory."""
    calls = list(program.calls())
    assert program.tier is not None
    assert program.tier.speed is not None
    hidden = program.tier.speed.out * sum(call.cost for call in calls[: program.backward])
    for raised in sorted({min(program.peak, budget + int(share * hidden)) for share in _RAISED}):
        plan = computed(raised) if raised < program.peak else None
        if plan is not None or raised == program.peak:
            yield range(len(calls)) if plan is None else plan.order


class _Queue:
    """The free time of one direction, in parts of a step."""

    def __init__(self, step: float) -> None:
        self._free = np.full(_PARTS, step / _PARTS)
        self._part = step / _PARTS

    def take(self, start: float, end: float, seconds: float, *, late: bool) -> bool:
        """Take so much of the free time between two times, the latest first or the earliest, if there is."""
        parts = range(math.ceil(start / self._part), min(_PARTS, int(end / self._part)))
        if self._free[parts.start : parts.stop].sum() < seconds:
            return False
        for part in reversed(parts) if late else parts:
            taken = min(seconds, float(self._free[part]))
            self._free[part] -= taken
            seconds -= taken
        return True


def moved_from(
    line: Timeline, order: Sequence[int], *, waits: bool, latest: bool = False
) -> tuple[list[int], Moved]:
    """An order, with idle storages moved out until it fits, or none is left.

    The largest go first, or those that are read ``latest``, of those for which both copies find time while
    others are not copied.  Where nothing has been copied in time, compute ``waits`` for copies, too.
    """
    operators = line.operators
    line.settle(order)
    step = float(line.clock[-1])
    queues = _Queue(step), _Queue(step)
    left = {op for op, back in enumerate(operators.back) if back < math.inf and len(line.runs[op]) == 1}
    key = itemgetter(2, 0) if latest else None
    for _ in range(2 * len(line.runs)):
        if not line.over:
            break
        worst = int(line.used.argmax())
        idle = sorted(_idle(line, left, worst, waits=False), key=key, reverse=True)
        hidden = [each for each in idle if _is_hidden(line, queues, each, worst)]
        chosen = hidden or idle[:1]
        if waits and not chosen:
            chosen = sorted(_idle(line, left, worst, waits=True), key=key, reverse=True)[:1]
        if not chosen:
            break
        for _, op, slot in chosen:
            before = int(line.used[worst])
            if before <= line.budget:
                break
            _move_away(line, op, worst, slot)
            if line.used[worst] == before:
                left.discard(op)
        line.commit()
        line.spread_if_dense()
    return line.order, dict(line.moved)


def _move_away(line: Timeline, op: int, worst: int, slot: int) -> None:
    """Have what an operator makes outside in a slot, and back for the read in another, if there is room."""
    if op not in line.moved:
        if not line.has_room_for(op):
            return
        line.move(op)
    if line.copied_at(op) >= worst:
        line.hold(op, worst)
    target = _free_from(line, line.slot_at(line.clock[slot] - line.operators.back[op]), worst, slot)
    if target is not None:
        line.add(op, target, back=True)


def _free_from(line: Timeline, wanted: int, after: int, before: int) -> int | None:
    """The last free slot up to the wanted one, else the first behind it, between two others."""
    slots = (*range(min(wanted, before - 1), after, -1), *range(max(wanted, after) + 1, before))
    return next((slot for slot in slots if slot not in line.op_at), None)


def _idle(line: Timeline, ops: Iterable[int], worst: int, *, waits: bool) -> Iterator[tuple[int, int, int]]:
    """Of operators the bytes that idle in a slot and can be gone by then, with the next read of them."""
    makes = line.operators.makes
    for op in ops:
        made = line.written_at(op)
        if op in line.moved:
            is_out = waits or line.copied_at(op) < worst
        else:
            is_out = waits or line.clock[made + 1] + line.operators.out[op] <= line.clock[worst]
        if is_out and made < worst:
            reads = [line.read_after_idling(storage, worst) for storage in makes[op]]
            slots = [slot for slot in reads if slot is not None]
            if slots:
                sizes = (
                    line.operators.size[each] for each, slot in zip(makes[op], reads) if slot is not None
                )
                yield sum(sizes), op, min(slots)


def _is_hidden(line: Timeline, queues: tuple[_Queue, _Queue], idle: tuple[int, int, int], worst: int) -> bool:
    """True if both copies of what idles in a slot find time; they have it then."""
    _, op, slot = idle
    operators, clock = line.operators, line.clock
    out, back = queues
    made, gone, read = (float(clock[at]) for at in (line.written_at(op) + 1, worst, slot))
    is_out = op in line.moved or out.take(made, gone, operators.out[op], late=False)
    return is_out and back.take(gone, read, operators.back[op], late=True)


def issued_ahead(line: Timeline, order: Sequence[int], moved: Moved) -> Found:
    """The order with copies back issued earlier where there is room, as late as compute need not wait."""
    operators = line.operators
    best = line.settle(order, moved)
    waited = line.waited()
    needed = math.inf
    for slot in sorted(line.back, reverse=True):
        if slot not in line.back:  # it went with another
            continue
        op = line.op_at[slot]
        reads = [line.reads[storage] for storage in operators.makes[op]]
        first = min((read for slots in reads for read in slots if read > slot), default=line.end)
        needed = min(needed, float(line.clock[first])) - operators.back[op]
        earlier = line.slot_at(needed)
        ended = line.copied_at(op)
        gone = max(line.touched_before(storage, slot) for storage in operators.makes[op])
        room = line.budget - sum(operators.size[storage] for storage in operators.makes[op])
        full = (line.used[ended:slot] > room).nonzero()[0]
        after = max(ended, gone, ended + int(full[-1]) if len(full) else 0)
        target = _free_from(line, earlier, after, slot)
        if target is None:
            continue
        line.remove(slot)
        line.add(op, target, back=True)
        if line.over > best.over:
            line.undo()
        else:
            line.commit()
    then = line.waited()
    if then > waited:
        return best._replace(cost=best.cost + waited)
    return Found(best.cost + then, line.over, line.order, dict(line.moved))


def smallest_with_moves(program: Program, bound: int, plan: Plan, seconds: float) -> Plan:
    """The plan of the lowest peak that is found with transfers, at any cost, or the given one."""
    line = Timeline(Operators.of(program), bound - program.constants)
    as_it_is = range(len(line.operators.makes))
    starts: list[tuple[Sequence[int], Moved]] = [moved_from(line, as_it_is, waits=True)]
    starts.append((plan.order, plan.moved))
    low, trials = bound - 1, 2 + math.ceil(math.log2(max(2.0, (plan.peak - bound) / (_CLOSE * bound))))
    share = seconds / (trials * len(starts))
    while plan.peak - low > max(1, _CLOSE * bound):
        budget = bound if low < bound else (low + plan.peak) // 2
        line.budget = budget - program.constants
        found = _any_within(line, starts, share)
        lower = None if found is None else execute_found(program, found.order, budget, found.moved)
        if found is None or lower is None:
            low = budget
        else:
            plan = lower
            starts[-1] = found.order, found.moved
    return plan


def _any_within(
    line: Timeline, starts: Iterable[tuple[Sequence[int], Moved]], seconds: float
) -> Found | None:
    walks = (
        walk(line, order, seconds, penalty=_PENALTY, enough=math.inf, moved=moved) for order, moved in starts
    )
    return next(filter(None, walks), None)
