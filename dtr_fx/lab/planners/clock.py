"""Plans that move values between the device and the host, and the clock that judges them all."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dtr_fx.lab.planners.graph import OperatorGraph
from dtr_fx.lab.planners.plan import PlanError
from dtr_fx.runtime import Plan
from dtr_fx.runtime.steps import BANISH, COMPUTE, RECOMPUTE
from dtr_fx.runtime.steps import DROP as DROPPED
from dtr_fx.tiers.tier import Bandwidth

RUN, DROP, OFFLOAD, WAIT, RELOAD = "run", "drop", "offload", "wait", "reload"


class Action(NamedTuple):
    """An action on an operator, or on its result, which has the same number.

    ``run`` computes it.  ``drop`` frees it on the device.  ``offload`` starts a copy to the host, ``wait``
    waits for the end of that and frees it on the device, ``reload`` takes its bytes and starts a copy back.
    """

    kind: str
    number: int


def link_of(graph: OperatorGraph, ratio: float, latency: float = 0.0) -> Bandwidth:
    """The link that moves an average value of the forward pass in ``ratio`` times its cost."""
    values = [graph.nodes[number] for number in graph.forward]
    bandwidth = sum(value.size for value in values) / (ratio * sum(value.cost for value in values))
    return Bandwidth(bandwidth, bandwidth, latency)


@dataclass(frozen=True)
class Timing:
    """Of a plan: when its last operator ends, and what of that is recomputation and what is waiting.

    ``peak`` are the most bytes on the device at once, ``host`` those on the host at the end.
    """

    total: float
    recompute: float
    stalls: float
    peak: int
    host: int


def time_plan(
    graph: OperatorGraph,
    actions: Iterable[Action],
    link: Bandwidth,
    budget: float = math.inf,
    host: float = math.inf,
) -> Timing:
    """Carry a plan out on three clocks: of compute, of the copies out and of the copies back.

    - Operators run one after the other.  One that reads a value on its way back waits for its arrival.
    - A copy out starts as soon as it is issued and the copies out before it have ended; its value is on the
      device up to the plan's ``wait``, at which compute waits for its end.
    - A copy back starts as soon as it is issued and the copies back before it have ended; its value takes its
      bytes from the moment it is issued.
    - A copy takes the link's latency and the time for its bytes.  The directions do not hinder each other.
    - While an operator runs, all that is on the device counts, values in transfer and its result among it.
    - A value is copied out once at most.  Its copy stays on the host to the end, and may be read often.

    Raises ``PlanError`` if an action cannot be done there, an operator never runs, a result is missing at
    the end, or the bytes on the device or on the host are over the budget.
    """
    run = _Run(graph, link, budget, host)
    for number, action in enumerate(actions):
        run.act(number, action)
    return run.timing()


def as_actions(plan: Plan) -> list[Action]:
    """The actions of a plan of an operator graph's program.

    Freeing a value that was copied out waits for the copy, and reading one waits for its way back: the plan's
    own steps for waiting say nothing more.
    """
    actions: list[Action] = []
    copied: set[int] = set()
    for step in plan.steps:
        if step.kind in (COMPUTE, RECOMPUTE):
            actions.append(Action(RUN, step.op))
        elif step.kind in (OFFLOAD, RELOAD):
            copied.add(step.storage)
            actions.append(Action(step.kind, step.storage))
        elif step.kind in (DROPPED, BANISH):
            actions.append(Action(WAIT if step.storage in copied else DROP, step.storage))
    return actions


class _Run:
    """The state of the device: its three clocks, and until when the values on it are in transfer."""

    def __init__(self, graph: OperatorGraph, link: Bandwidth, budget: float, host: float) -> None:
        self._graph, self._link, self._budget, self._host = graph, link, budget, host
        self._clock = self._out = self._back = 0.0
        self._here: dict[int, float] = {}  # and when it can be read
        self._copied: dict[int, float] = {}  # when the copy on the host is there
        self._used = self._peak = 0
        self._runs = [0] * len(graph)

    def act(self, number: int, action: Action) -> None:
        kind, value = action
        if kind not in _LEGAL or not 0 <= value < len(self._graph):
            raise PlanError(f"action {number}: {action} is none for {len(self._graph)} operators")
        self._what = f"action {number}: {kind} {self._graph.nodes[value].name} ({value})"
        getattr(self, f"_{kind}")(value)

    def timing(self) -> Timing:
        graph = self._graph
        if 0 in self._runs:
            missing = self._runs.index(0)
            raise PlanError(f"{graph.nodes[missing].name} ({missing}) is never computed")
        if not graph.results <= self._here.keys():
            raise PlanError(
                f"the results {sorted(graph.results - self._here.keys())} are not there at the end"
            )
        # A result on its way back has to arrive.
        total = max(self._clock, max((self._here[value] for value in graph.results), default=0.0))
        cost = sum(node.cost * runs for node, runs in zip(graph.nodes, self._runs))
        host = sum(graph.nodes[value].size for value in self._copied)
        return Timing(total, cost - graph.cost, total - cost, self._peak, host)

    def _run(self, op: int) -> None:
        node = self._graph.nodes[op]
        missing = [source for source in node.inputs if source not in self._here]
        self._require(not missing, f"reads {missing}, which are not on the device")
        self._require(op not in self._here, "is on the device already")
        self._take(op)
        self._clock = max([self._clock, *(self._here[source] for source in node.inputs)]) + node.cost
        self._here[op] = self._clock
        self._runs[op] += 1

    def _drop(self, value: int) -> None:
        self._require(value in self._here, "is not on the device")
        self._require(self._here[value] <= self._clock, "is on its way back")
        self._require(self._copied.get(value, 0.0) <= self._clock, "is being copied: wait for that")
        del self._here[value]
        self._used -= self._graph.nodes[value].size

    def _offload(self, value: int) -> None:
        self._require(value in self._here, "is not on the device")
        self._require(value not in self._copied, "was copied before")
        self._out = max(self._clock, self._out) + self._link.seconds_out(self._graph.nodes[value].size)
        self._copied[value] = self._out
        held = sum(self._graph.nodes[copied].size for copied in self._copied)
        self._require(held <= self._host, f"brings {held} bytes on the host, over {self._host}")

    def _wait(self, value: int) -> None:
        self._require(value in self._copied, "is not being copied")
        self._clock = max(self._clock, self._copied[value])
        self._drop(value)

    def _reload(self, value: int) -> None:
        self._require(value in self._copied, "is not on the host")
        self._require(value not in self._here, "is on the device already")
        self._take(value)
        start = max(self._clock, self._back, self._copied[value])
        self._here[value] = self._back = start + self._link.seconds_back(self._graph.nodes[value].size)

    def _take(self, value: int) -> None:
        self._used += self._graph.nodes[value].size
        self._peak = max(self._peak, self._used)
        self._require(self._used <= self._budget, f"brings {self._used} bytes, over {self._budget}")

    def _require(self, holds: bool, otherwise: str) -> None:
        if not holds:
            raise PlanError(f"{self._what} {otherwise}")


_LEGAL = frozenset((RUN, DROP, OFFLOAD, WAIT, RELOAD))


def with_ends(graph: OperatorGraph, actions: Sequence[Action]) -> list[Action]:
    """The actions, and a drop of each value right after the last one that needs it on the device.

    Copies to the host that nothing brings back are left out, and so is what waits for them.
    """
    reloaded = {number for kind, number in actions if kind == RELOAD}
    actions = [
        Action(DROP, number) if kind == WAIT and number not in reloaded else Action(kind, number)
        for kind, number in actions
        if kind != OFFLOAD or number in reloaded
    ]
    needed = set(graph.results)
    backwards: list[Action] = []
    for action in reversed(actions):
        kind, number = action
        touched = dict.fromkeys((number, *(graph.nodes[number].inputs if kind == RUN else ())))
        if kind in (DROP, WAIT):
            needed.add(number)
        else:
            backwards += [Action(DROP, value) for value in touched if value not in needed]
            needed.update(touched)
        if kind in (RUN, RELOAD):
            needed.discard(number)
        backwards.append(action)
    return backwards[::-1]
