"""Replay a schedule under a budget, and say what it came to (Appendix C.6 and D)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from dtr_fx.runtime import (
    Deallocation,
    Heuristic,
    OutOfBudget,
    Runtime,
    Tensor,
    Thrash,
    collector_paused,
    next_uses,
    resolve,
)
from dtr_fx.runtime.events import RECOMPUTE
from dtr_fx.runtime.heuristics import Score

from .schedule import Call, Constant, Keep, Release, Schedule
from .simrd import SimrdRuntime

Outcome: TypeAlias = Literal["ok", "out of memory", "thrash"]


@dataclass(frozen=True)
class Replay:
    """What a replay came to.

    ``budget``, ``whole`` (the schedule's own peak) and ``peak`` are bytes.  ``base`` is the cost of the
    program's operators, each once, and ``recompute`` that of the rematerialized ones, both in the schedule's
    unit of cost; ``rematerialized`` counts the latter, and ``rematerialized_bytes`` adds up what they
    allocated.  ``scored`` and ``maintained`` are the storages that were accessed to evaluate the heuristic
    and to keep its metadata (Appendix D.3).  A replay that ran ``"out of memory"`` or began to ``"thrash"``
    is counted as far as it came.
    """

    schedule: str
    heuristic: str
    deallocation: Deallocation
    budget: float
    whole: int
    outcome: Outcome
    base: float
    recompute: float
    peak: int
    operators: int
    rematerialized: int
    rematerialized_bytes: int
    scored: int
    maintained: int

    @property
    def slowdown(self) -> float:
        """Total over base cost; infinite if the replay did not end."""
        return 1 + self.recompute / self.base if self.outcome == "ok" else math.inf


def replay(
    schedule: Schedule,
    budget: float = math.inf,
    heuristic: str | Heuristic | Score = "dtr-eq",
    *,
    deallocation: Deallocation = "eager",
    max_slowdown: float = math.inf,
    simrd: bool = False,
) -> Replay:
    """Run a schedule on the runtime.

    Parameters
    ----------
    schedule:
        From ``read_log`` or ``networks``.
    budget:
        Bytes, constants included; ``schedule.peak`` is the whole of which the paper takes shares.
    heuristic, deallocation:
        As for ``Runtime``.  Heuristics that look at the next use are told it.
    max_slowdown:
        Total over base cost above which the run counts as thrashing and stops.
    simrd:
        By the rules of the original simulator (see ``simrd``).

    Raises
    ------
    ValueError
        ``simrd`` with another deallocation than eager: the rules are those of eager eviction.

    Examples
    --------
    >>> from dtr_fx.simulate import networks
    >>> replay(networks.linear(100), budget=20).slowdown
    1.4
    """
    if simrd and deallocation != "eager":
        raise ValueError(f"the original simulator's rules are for eager eviction, not {deallocation!r}")
    heuristic = resolve(heuristic)
    base = schedule.cost
    runtime = (SimrdRuntime if simrd else Runtime)(
        budget, heuristic, deallocation=deallocation, max_recompute=(max_slowdown - 1) * base
    )
    outcome: Outcome = "ok"
    with collector_paused():
        try:
            drive(runtime, schedule)
        except OutOfBudget:
            outcome = "out of memory"
        except Thrash:
            outcome = "thrash"
    recomputed = [event.op for event in runtime.events if event.kind == RECOMPUTE]
    allocated = [sum(output.size for output in call.outputs) for call in schedule.calls()]
    return Replay(
        schedule=schedule.name,
        heuristic=heuristic.name,
        deallocation=deallocation,
        budget=budget,
        whole=schedule.peak,
        outcome=outcome,
        base=base,
        recompute=runtime.recompute_cost,
        peak=runtime.peak,
        operators=len(allocated),
        rematerialized=len(recomputed),
        rematerialized_bytes=sum(allocated[op] for op in recomputed),
        scored=runtime.scored,
        maintained=runtime.maintained,
    )


def drive(runtime: Runtime, schedule: Schedule) -> dict[int, Tensor]:
    """Let the runtime do a schedule's steps; its tensors, by their numbers.

    Raises
    ------
    OutOfBudget, Thrash
        See ``Runtime.perform_op``.
    """
    tensors: dict[int, Tensor] = {}
    expectations = iter(_expectations(schedule) if runtime.heuristic.time == "next_use" else ())
    for step in schedule.steps:
        if isinstance(step, Call):
            outputs = runtime.perform_op(
                [tensors[number] for number in step.inputs],
                [out.size if out.alias is None else tensors[out.alias] for out in step.outputs],
                step.cost,
            )
            for output, tensor in zip(step.outputs, outputs):
                tensors[output.tensor] = tensor
            for number, time in next(expectations, ()):
                runtime.expect(tensors[number], time)
        elif isinstance(step, Release):
            runtime.release(tensors[step.tensor])
        elif isinstance(step, Constant):
            tensors[step.tensor] = runtime.constant(step.size)
        else:
            runtime.access(tensors[step.tensor])
            runtime.pin(tensors[step.tensor])
    return tensors


def _expectations(schedule: Schedule) -> list[list[tuple[int, float]]]:
    storages = schedule.storages
    uses: list[tuple[float, list[int], list[int]]] = [
        (
            call.cost,
            [storages[number] for number in call.inputs],
            [storages[output.tensor] for output in call.outputs],
        )
        for call in schedule.calls()
    ]
    kept = [storages[step.tensor] for step in schedule.steps if isinstance(step, Keep)]
    return next_uses([*uses, (0.0, kept, [])])
