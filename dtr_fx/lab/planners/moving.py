"""Moving alone, as DeepSpeed's DeepCompile plans it: copies to the host, greedily, and no recomputation."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise
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
from dtr_fx.lab.planners.plan import CannotPlan
from dtr_fx.tiers.tier import Bandwidth


class _Gap(NamedTuple):
    """Where a value can be away: after operator ``left`` has made or read it, before ``back`` reads it."""

    value: int
    left: int
    back: int


def plan_moving(
    graph: OperatorGraph, budget: float, link: Bandwidth, *, host: float = math.inf
) -> tuple[Action, ...]:
    """The program's operators, each run once, and what has to be moved out for the budget.

    Where the program needs more than the budget, values are moved out, the largest first, or those that are
    read again latest: the better of the two plans.  Copies out start at once and are waited for when their
    bytes are needed; copies back are issued as late as hides them by the clock of the unconstrained program,
    or as early as the budget allows.

    Raises ``CannotPlan`` if there is no such plan.
    """
    sizes = [node.size for node in graph.nodes]
    orders: tuple[Callable[[_Gap], tuple[int, int]], ...] = (
        lambda gap: (sizes[gap.value], gap.back),
        lambda gap: (gap.back, sizes[gap.value]),
    )
    plans = [_plan(graph, budget, link, host, order) for order in orders]
    return min(plans, key=lambda plan: time_plan(graph, plan, link, budget, host).total)


def _plan(
    graph: OperatorGraph,
    budget: float,
    link: Bandwidth,
    host: float,
    order: Callable[[_Gap], tuple[int, int]],
) -> tuple[Action, ...]:
    held = _held(graph)
    gaps = _choose(graph, held, budget, host, order)
    issued = _issue(graph, held, gaps, budget, link)
    return tuple(with_ends(graph, _actions(graph, budget, gaps, issued)))


def _last_uses(graph: OperatorGraph) -> list[int]:
    count = len(graph)
    return [
        count if value in graph.results else max(users, default=value)
        for value, users in enumerate(graph.users)
    ]


def _held(graph: OperatorGraph) -> list[int]:
    """The bytes on the device while each operator runs, and at the end, if nothing is moved."""
    held = [0] * (len(graph) + 1)
    for value, last in enumerate(_last_uses(graph)):
        for place in range(value, last + 1):
            held[place] += graph.nodes[value].size
    return held


def _choose(
    graph: OperatorGraph,
    held: list[int],
    budget: float,
    host: float,
    order: Callable[[_Gap], tuple[int, int]],
) -> list[_Gap]:
    """The gaps in which values are moved out; takes their bytes from what is held."""
    gaps = []
    for value, users in enumerate(graph.users):
        uses = [value, *users, *([len(graph)] if value in graph.results else ())]
        gaps += [_Gap(value, left, back) for left, back in pairwise(uses) if back > left + 1]
    chosen: list[_Gap] = []
    moved: set[int] = set()
    for place in range(len(held)):
        while held[place] > budget:
            there = [gap for gap in gaps if gap.left < place < gap.back and gap not in chosen]
            room = host - sum(graph.nodes[value].size for value in moved)
            there = [gap for gap in there if gap.value in moved or 0 < graph.nodes[gap.value].size <= room]
            if not there:
                raise CannotPlan(f"{graph.name}: moving alone cannot plan {budget} bytes")
            gap = max(there, key=order)
            chosen.append(gap)
            moved.add(gap.value)
            for away in range(gap.left + 1, gap.back):
                held[away] -= graph.nodes[gap.value].size
    return chosen


def _issue(
    graph: OperatorGraph, held: list[int], gaps: list[_Gap], budget: float, link: Bandwidth
) -> dict[_Gap, int]:
    """Before which operator each value is brought back; adds its bytes to what is held from there on."""
    starts = [0.0]
    for node in graph.nodes:
        starts.append(starts[-1] + node.cost)
    issued: dict[_Gap, int] = {}
    busy = math.inf  # the channel is taken from then on
    for gap in sorted(gaps, key=lambda gap: (gap.back, gap.value), reverse=True):
        size = graph.nodes[gap.value].size
        busy = min(starts[gap.back], busy) - link.seconds_back(size)
        place = gap.back
        while place - 1 > gap.left + 1 and starts[place] > busy and held[place - 1] + size <= budget:
            place -= 1
            held[place] += size
        issued[gap] = place
    return issued


def _actions(graph: OperatorGraph, budget: float, gaps: list[_Gap], issued: dict[_Gap, int]) -> list[Action]:
    leaving: dict[int, list[int]] = defaultdict(list)
    coming: dict[int, list[_Gap]] = defaultdict(list)
    for gap in sorted(gaps):
        leaving[gap.left].append(gap.value)
    for gap in sorted(gaps, key=lambda gap: (gap.back, gap.value)):
        coming[issued[gap]].append(gap)
    last = _last_uses(graph)
    actions: list[Action] = []
    here: set[int] = set()
    copied: list[int] = []  # on the device and copied, or being copied, in the order of the copies

    def make_room(value: int) -> None:
        while copied and sum(graph.nodes[v].size for v in (*here, value)) > budget:
            actions.append(Action(WAIT, copied[0]))
            here.remove(copied.pop(0))
        here.add(value)

    out: set[int] = set()
    for op in range(len(graph) + 1):
        for gap in coming[op]:
            if gap.value in copied:  # it never had to go
                copied.remove(gap.value)
                continue
            make_room(gap.value)
            actions.append(Action(RELOAD, gap.value))
        if op == len(graph):
            break
        make_room(op)
        actions.append(Action(RUN, op))
        for value in leaving[op]:
            if value not in out:
                actions.append(Action(OFFLOAD, value))
                out.add(value)
            copied.append(value)
        for value in [v for v in here if last[v] <= op]:
            here.remove(value)
            actions.append(Action(DROP, value))
    return actions
