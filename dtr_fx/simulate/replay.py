"""Replay a schedule under a budget, and say what it came to (Appendix C.6 and D)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

from dtr_fx.runtime import Deallocation, Heuristic, OutOfBudget, Runtime, Tensor, Thrash
from dtr_fx.runtime.heuristics import Score

from .schedule import Call, Constant, Keep, Release, Retain, Schedule, Step
from .simrd import SimrdRuntime

Outcome: TypeAlias = Literal["ok", "out of memory", "thrash"]


@dataclass(frozen=True)
class Replay:
    """What a replay came to.

    ``cost`` is what all its operators cost and ``base`` what the program's own do, each once, in the unit of
    the schedule.  ``recomputed`` counts the rematerialized operators and ``recomputed_bytes`` the bytes of
    their outputs.  ``scored`` are the storages that a heuristic looked at to choose victims, ``maintained``
    those that were visited to keep its metadata (Appendix D.3).  After ``"out of memory"`` and ``"thrash"``
    they tell how far it came.
    """

    schedule: str
    heuristic: str
    deallocation: Deallocation
    budget: float
    outcome: Outcome
    cost: float
    base: float
    peak: int
    operators: int
    recomputed: int
    recomputed_bytes: int
    scored: int
    maintained: int

    @property
    def slowdown(self) -> float:
        """Total over base cost; infinite for a replay that did not end."""
        return self.cost / self.base if self.outcome == "ok" and self.base else math.inf
