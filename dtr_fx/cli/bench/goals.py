"""Goals of plans and of planning, and the table that says which are met."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from dtr_fx.inspect.table import table

ROUNDING = 1e-9
"""Shares of a cost that differ by no more are equal."""


@dataclass(frozen=True)
class Goal:
    """A goal, the worst that was found, and ``met``: True if that is good enough."""

    goal: str
    worst: str
    met: bool


@dataclass(frozen=True)
class Allowance:
    """Seconds of planning: a straight line between two sizes of a graph, level before the first."""

    few: int
    least: float
    many: int
    most: float

    def __call__(self, nodes: int) -> float:
        """Seconds allowed for a graph of so many nodes."""
        return self.least + max(0, nodes - self.few) * (self.most - self.least) / (self.many - self.few)

    def __str__(self) -> str:
        return f"{self.least:g} s for {self.few:,} nodes to {self.most:g} s for {self.many:,}"


SEARCH = Allowance(2_000, 1.0, 20_000, 8.0)
ONLINE = Allowance(2_000, 0.05, 20_000, 0.8)


def worst(goal: str, ratios: Iterable[tuple[str, float]], limit: float) -> Goal:
    """The goal that the largest of some named ratios is at most ``limit``."""
    name, ratio = max(ratios, key=lambda item: item[1], default=("none", 0.0))
    return Goal(goal, f"{format_ratio(ratio)} ({name})", ratio <= limit)


def no_exception(goal: str, exceptions: Sequence[str], total: int, what: str) -> Goal:
    """The goal that none of ``total`` cases is an exception; ``what`` says what an exception is."""
    names = f": {', '.join(exceptions)}" if exceptions else ""
    return Goal(goal, f"{len(exceptions)} of {total} {what}{names}", not exceptions)


def format_ratio(ratio: float) -> str:
    """A factor; one that is infinite stands for a plan that was not found."""
    return f"× {ratio:.3f}" if math.isfinite(ratio) else "no plan"


def goal_table(found: Iterable[Goal]) -> str:
    rows = [{"goal": goal.goal, "met": "yes" if goal.met else "NO", "worst": goal.worst} for goal in found]
    return table(rows, text=("met", "worst"), widths=[90, None, 60])
