"""Replay a program under a budget, and say what it came to (Appendix C.6 and D)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from dtr_fx.lab.simrd import SimrdRuntime
from dtr_fx.runtime import Deallocation, Heuristic, OutOfBudget, Runtime, Thrash, collector_paused, resolve
from dtr_fx.runtime.caching_allocator import CachingAllocator
from dtr_fx.runtime.driver import drive
from dtr_fx.runtime.heuristics import Score
from dtr_fx.runtime.program import Program
from dtr_fx.runtime.steps import RECOMPUTE, RELOAD

Outcome: TypeAlias = Literal["ok", "out of memory", "thrash"]


@dataclass(frozen=True)
class Replay:
    """The outcome of a replay, and its counts.

    ``budget``, ``whole`` (the program's own peak) and ``peak`` are bytes.  ``base`` is the cost of the
    program's operators, each once, and ``recompute`` that of the rematerialized ones, both in the program's
    unit of cost; ``rematerialized`` counts the latter, and ``rematerialized_bytes`` adds up what they
    allocated.  ``scored`` and ``maintained`` are the storages that were accessed to evaluate the heuristic
    and to keep its metadata (Appendix D.3).  A replay that ran ``"out of memory"`` or began to ``"thrash"``
    is counted as far as it came.  ``reserved`` are the bytes that PyTorch's CUDA caching allocator would
    reserve, with expandable segments, and ``fragmentation`` is the share of them that is never in use; None
    where that was not asked for.  ``waited`` is the time, in the unit of cost, that operators wait for
    transfers, and ``moved`` are the bytes that are brought back by transfers.
    """

    program: str
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
    reserved: int | None = None
    fragmentation: float | None = None
    waited: float = 0.0
    moved: int = 0

    @property
    def slowdown(self) -> float:
        """Total over base cost, 1 if nothing costs anything; infinite if the replay did not end."""
        if self.outcome != "ok":
            return math.inf
        return 1 + (self.recompute + self.waited) / self.base if self.base else 1.0


def replay(
    program: Program,
    budget: float = math.inf,
    heuristic: str | Heuristic | Score = "dtr-eq",
    *,
    deallocation: Deallocation = "eager",
    max_slowdown: float = math.inf,
    reserved: bool = False,
) -> Replay:
    """Run a program of ``read_log`` or ``networks`` on the runtime; see ``SimrdRuntime`` for
    ``program.simrd``.

    ``budget`` are bytes, constants included; ``program.peak`` is the whole of which the paper takes shares.
    ``heuristic`` and ``deallocation`` are as for ``Runtime``, which moves storages where the program has a
    tier (see ``with_offload``).  ``max_slowdown`` is total over base cost above
    which the run counts as thrashing and stops.  ``reserved`` adds what an allocator would reserve.

    Raises ``ValueError`` for a budget that is negative or no number, a policy that is unknown, a slowdown
    below 1; for ``simrd`` with another deallocation than eager.

    >>> from dtr_fx.lab import networks
    >>> replay(networks.linear(100), budget=20).slowdown
    1.4
    """
    check_limits(program, deallocation, max_slowdown)
    if isinstance(budget, bool) or not budget >= 0:
        raise ValueError(f"the budget is {budget!r}; give bytes, 0 or more, or math.inf for no limit")
    heuristic = resolve(heuristic)
    base = program.cost
    allocator = CachingAllocator(expandable_segments=True) if reserved else None
    runtime = (SimrdRuntime if program.simrd else Runtime)(
        budget,
        heuristic,
        deallocation=deallocation,
        max_recompute=(max_slowdown - 1) * base,
        allocator=allocator,
        tier=program.tier,
        moves=True,
    )
    outcome: Outcome = "ok"
    with collector_paused():
        try:
            drive(runtime, program)
        except OutOfBudget:
            outcome = "out of memory"
        except Thrash:
            outcome = "thrash"
    recomputed = [event.op for event in runtime.steps if event.kind == RECOMPUTE]
    allocated = [sum(output.size for output in call.outputs) for call in program.calls()]
    return Replay(
        program=program.name,
        heuristic=heuristic.name,
        deallocation=deallocation,
        budget=budget,
        whole=program.peak,
        outcome=outcome,
        base=base,
        recompute=runtime.recompute_cost,
        peak=runtime.peak,
        operators=len(allocated),
        rematerialized=len(recomputed),
        rematerialized_bytes=sum(allocated[op] for op in recomputed),
        scored=runtime.scored,
        maintained=runtime.maintained,
        reserved=None if allocator is None else allocator.reserved,
        fragmentation=None if allocator is None else allocator.fragmentation,
        waited=runtime.waited,
        moved=sum(program.sizes[event.storage] for event in runtime.steps if event.kind == RELOAD),
    )


def check_limits(program: Program, deallocation: Deallocation, max_slowdown: float) -> None:
    """Refuse, with a ``ValueError``, what a replay of the program cannot do."""
    if deallocation not in get_args(Deallocation):
        known = ", ".join(map(repr, get_args(Deallocation)))
        raise ValueError(f"unknown deallocation {deallocation!r}; choose one of {known}")
    if program.simrd and deallocation != "eager":
        raise ValueError(f"the original simulator's rules are for eager eviction, not {deallocation!r}")
    if not max_slowdown >= 1:
        raise ValueError(f"max_slowdown is {max_slowdown}; it is at least 1, the program's own time")
