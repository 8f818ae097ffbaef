"""Plans that move storages out and back beside those that compute them again.

Transfers use what computing does not, so that the two together cost less than either: walks start from the
plan without transfers, and from one that moves whatever is idle for the longest time.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Sequence

from dtr_fx.runtime import Plan, Program
from dtr_fx.search.execute import execute_found
from dtr_fx.search.lifetimes import Operators
from dtr_fx.search.timeline import Found, Timeline
from dtr_fx.search.walk import walk

_Start = tuple[Sequence[int], Collection[int]]

# How hot a walk is; how closely the smallest budget is searched, as a share of the lower bound; the factor on
# the penalty of a byte too many where cost does not count.
_WARM, _CLOSE, _PENALTY = 0.3, 0.01, 100.0


def with_moves(program: Program, budget: int, plan: Plan | None, seconds: float) -> Plan | None:
    """The cheapest plan that is found with transfers, or the given one; None if there is none.

    ``plan`` fits without them.  The effort, in seconds of a usual machine, is spent once more.
    """
    line = Timeline(Operators.of(program), budget - program.constants)
    starts: list[_Start] = [moved_only(line)]
    if plan is not None:
        starts.append((plan.order, plan.moved))
    best = plan
    for order, moved in starts:
        found = walk(line, order, seconds / len(starts), temperature=_WARM, moved=moved)
        if found is None:
            continue
        found = issued_ahead(line, found)
        carried_out = execute_found(program, found.order, budget, found.moved)
        if carried_out is not None and (best is None or carried_out.extra < best.extra):
            best = carried_out
    return best


def moved_only(line: Timeline) -> tuple[list[int], frozenset[int]]:
    """The program's order, with the largest idle storages moved out until the rest fits, or none is left."""
    operators = line.operators
    line.settle(range(len(operators.makes)))
    left = {op for op, back in enumerate(operators.back) if back < math.inf}
    while left and line.over:
        worst = int(line.used.argmax())
        idle = [
            (sum(operators.size[storage] for storage in operators.makes[op]), op, min(slots))
            for op in left
            if line.runs[operators.moved_by[op]][0] < worst
            and (slots := [s for each in operators.makes[op] if (s := line.read_after_idling(each, worst))])
        ]
        if not idle:
            break
        _, op, slot = max(idle)
        left.discard(op)
        line.move(op)
        target = line.free_slot(max(worst, line.runs[operators.moved_by[op]][0]), slot)
        if target is not None:
            line.add(op, target)
        line.commit()
        line.spread_if_dense()
    return line.order, frozenset(line.moved)


def issued_ahead(line: Timeline, found: Found) -> Found:
    """The order with copies back issued earlier where there is room, as late as compute need not wait."""
    best = line.settle(found.order, found.moved)
    waited = line.waited()
    needed = math.inf
    for slot in sorted((slot for slot in line.repeated if line.op_at[slot] in line.moved), reverse=True):
        op = line.op_at[slot]
        reads = [line.reads[storage] for storage in line.operators.makes[op]]
        first = min((read for slots in reads for read in slots if read > slot), default=line.end)
        needed = min(needed, float(line.clock[first])) - line.operators.back[op]
        earlier = int(line.clock.searchsorted(max(0.0, needed)))
        ended = line.runs[line.operators.moved_by[op]][0]
        gone = max(line.touched_before(storage, slot) for storage in line.operators.makes[op])
        room = line.budget - sum(line.operators.size[storage] for storage in line.operators.makes[op])
        full = (line.used[ended:slot] > room).nonzero()[0]
        lowest = max(earlier, ended + 1, gone + 1, ended + int(full[-1]) + 1 if len(full) else 0)
        target = next((free for free in range(lowest, slot) if free not in line.op_at), None)
        if target is None:
            continue
        line.remove(slot)
        line.add(op, target)
        if line.over:
            line.undo()
        else:
            line.commit()
    after = line.waited()
    if line.over or after > waited:
        return found
    return Found(best.cost + after, 0, line.order, frozenset(line.moved))


def smallest_with_moves(program: Program, bound: int, plan: Plan, seconds: float) -> Plan:
    """The plan of the lowest peak that is found with transfers, at any cost, or the given one."""
    line = Timeline(Operators.of(program), bound - program.constants)
    starts = [moved_only(line), (plan.order, plan.moved)]
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


def _any_within(line: Timeline, starts: Iterable[_Start], seconds: float) -> Found | None:
    walks = (
        walk(line, order, seconds, penalty=_PENALTY, any_will_do=True, moved=moved) for order, moved in starts
    )
    return next(filter(None, walks), None)
