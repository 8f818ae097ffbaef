"""Replays over schedules × heuristics × deallocation policies × budgets, side by side on all cores."""

from __future__ import annotations

import csv
import io
import json
import math
import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields
from typing import Any

from dtr_fx.runtime import Deallocation, Heuristic

from .replay import Replay, replay
from .schedule import Schedule

RATIOS = tuple(tenths / 10 for tenths in range(9, 0, -1))


@dataclass(frozen=True)
class Sweep:
    """What to replay: every schedule with every heuristic, policy and budget.

    A budget is a share of the schedule's own peak if it is a float, bytes if it is an int.
    ``max_slowdown`` and ``simrd`` are as in ``replay``.
    """

    schedules: Sequence[Schedule]
    heuristics: Sequence[str | Heuristic]
    budgets: Sequence[float | int] = RATIOS
    deallocations: Sequence[Deallocation] = ("eager",)
    max_slowdown: float = 2.0
    simrd: bool = False

    def __len__(self) -> int:
        return len(self.schedules) * len(self.heuristics) * len(self.deallocations) * len(self.budgets)

    def replay(self, number: int) -> Replay:
        """The replay of that number: budgets vary fastest, then policies, then heuristics."""
        number, budget = divmod(number, len(self.budgets))
        number, deallocation = divmod(number, len(self.deallocations))
        number, heuristic = divmod(number, len(self.heuristics))
        schedule = self.schedules[number]
        asked = self.budgets[budget]
        return replay(
            schedule,
            int(asked * schedule.peak) if isinstance(asked, float) else asked,
            self.heuristics[heuristic],
            deallocation=self.deallocations[deallocation],
            max_slowdown=self.max_slowdown,
            simrd=self.simrd,
        )

    def run(
        self, *, processes: int | None = None, watch: Callable[[int], None] = lambda done: None
    ) -> list[Replay]:
        """All replays, in the order of their numbers.

        Parameters
        ----------
        processes:
            How many at a time; None for one per core.
        watch:
            Told how many are done, after each.
        """
        processes = min(processes or _cores(), len(self))
        if processes > 1 and "fork" in multiprocessing.get_all_start_methods():
            return self._run_in(processes, watch)
        results = []
        for number in range(len(self)):
            results.append(self.replay(number))
            watch(number + 1)
        return results

    def _run_in(self, processes: int, watch: Callable[[int], None]) -> list[Replay]:
        # Forked processes share the schedules as they are; sending them would take longer than a replay.
        context = multiprocessing.get_context("fork")
        with ProcessPoolExecutor(processes, context, initializer=_adopt, initargs=(self,)) as pool:
            results = []
            for done, result in enumerate(pool.map(_replay, range(len(self))), 1):
                results.append(result)
                watch(done)
        return results


_adopted: Sweep


def _adopt(sweep: Sweep) -> None:
    global _adopted
    _adopted = sweep


def _replay(number: int) -> Replay:
    return _adopted.replay(number)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
    text = io.StringIO()
    names = [*(field.name for field in fields(Replay)), "slowdown"]
    writer = csv.DictWriter(text, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(as_rows(replays))
    return text.getvalue()
