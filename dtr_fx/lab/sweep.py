"""Replays over programs × heuristics × deallocation policies × budgets, side by side on all cores."""

from __future__ import annotations

import csv
import functools
import io
import itertools
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from dtr_fx.lab.parallel import run_tasks
from dtr_fx.lab.replay import Replay, check_limits, replay
from dtr_fx.runtime import Deallocation, Heuristic, resolve
from dtr_fx.runtime.program import Program

RATIOS = tuple(tenths / 10 for tenths in range(9, 0, -1))


@dataclass(frozen=True)
class Sweep:
    """Replays of every program with every heuristic, policy and budget.

    A budget is a share of the program's own peak if it is a float, bytes if it is an int; ``max_slowdown``
    is as in ``replay``.  Budgets vary fastest, then policies, then heuristics.
    """

    programs: Sequence[Program]
    heuristics: Sequence[str | Heuristic]
    budgets: Sequence[float | int] = RATIOS
    deallocations: Sequence[Deallocation] = ("eager",)
    max_slowdown: float = 2.0

    def __post_init__(self) -> None:
        for program, heuristic, deallocation, asked in self._cases:
            program.budget(asked)
            check_limits(program, deallocation, self.max_slowdown)
            resolve(heuristic)

    @functools.cached_property
    def _cases(self) -> list[tuple[Program, str | Heuristic, Deallocation, float | int]]:
        return list(itertools.product(self.programs, self.heuristics, self.deallocations, self.budgets))

    def __len__(self) -> int:
        return len(self._cases)

    def replay(self, number: int) -> Replay:
        program, heuristic, deallocation, asked = self._cases[number]
        nbytes = program.budget(asked)
        return replay(program, nbytes, heuristic, deallocation=deallocation, max_slowdown=self.max_slowdown)

    def run(
        self, *, processes: int | None = None, advance: Callable[[int], None] = lambda done: None
    ) -> list[Replay]:
        """All replays; the arguments are those of ``run_tasks``."""
        return run_tasks(self.replay, len(self), processes=processes, advance=advance)


def as_rows(replays: Sequence[Replay]) -> list[dict[str, Any]]:
    """The fields of each replay, and its slowdown: None if it did not end."""
    return [
        {**asdict(result), "slowdown": result.slowdown if math.isfinite(result.slowdown) else None}
        for result in replays
    ]


def to_json(replays: Sequence[Replay]) -> str:
    """A JSON list with an object for each replay."""
    return json.dumps(as_rows(replays), indent=1) + "\n"


def to_csv(replays: Sequence[Replay]) -> str:
    """A line of column names, and one for each replay."""
    return as_csv([*(field.name for field in fields(Replay)), "slowdown"], as_rows(replays))


def as_csv(names: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """A line of column names, and one for each row."""
    text = io.StringIO()
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
