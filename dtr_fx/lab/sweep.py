"""Replays over programs × heuristics × deallocation policies × budgets, side by side on all cores."""

from __future__ import annotations

import csv
import functools
import io
import itertools
import json
import math
import multiprocessing
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeAlias, TypeVar

from dtr_fx.lab.replay import Replay, check_limits, replay
from dtr_fx.runtime import Deallocation, Heuristic, resolve
from dtr_fx.runtime.program import Program

RATIOS = tuple(tenths / 10 for tenths in range(9, 0, -1))

Case: TypeAlias = tuple[Program, str | Heuristic, Deallocation, float | int]
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Sweep:
    """Replays of every program with every heuristic, policy and budget.

    A budget is a share of the program's own peak if it is a float, bytes if it is an int; ``max_slowdown``
    and ``reserved`` are as in ``replay``.  Budgets vary fastest, then policies, then heuristics.
    """

    programs: Sequence[Program]
    heuristics: Sequence[str | Heuristic]
    budgets: Sequence[float | int] = RATIOS
    deallocations: Sequence[Deallocation] = ("eager",)
    max_slowdown: float = 2.0
    reserved: bool = False

    def __post_init__(self) -> None:
        for program, heuristic, deallocation, asked in self._cases:
            program.budget(asked)
            check_limits(program, deallocation, self.max_slowdown)
            resolve(heuristic)

    @functools.cached_property
    def _cases(self) -> list[Case]:
        return list(itertools.product(self.programs, self.heuristics, self.deallocations, self.budgets))

    def __len__(self) -> int:
        return len(self._cases)

    def run(
        self, *, processes: int | None = None, advance: Callable[[int], None] = lambda done: None
    ) -> list[Replay]:
        """All replays; the arguments are those of ``run_tasks``."""
        return run_cases(self._cases, self.max_slowdown, processes, advance, reserved=self.reserved)


def run_cases(
    cases: Sequence[Case],
    max_slowdown: float,
    processes: int | None,
    advance: Callable[[int], None],
    *,
    reserved: bool = False,
) -> list[Replay]:
    """The replay of each case; budgets and ``reserved`` are as in ``Sweep``."""

    def run(number: int) -> Replay:
        program, heuristic, deallocation, asked = cases[number]
        budget = program.budget(asked)
        return replay(
            program,
            budget,
            heuristic,
            deallocation=deallocation,
            max_slowdown=max_slowdown,
            reserved=reserved,
        )

    return run_tasks(run, len(cases), processes, advance)


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


def run_tasks(
    task: Callable[[int], _Result], count: int, processes: int | None, advance: Callable[[int], None]
) -> list[_Result]:
    """``task(0)`` … ``task(count - 1)``, on all cores if ``processes`` is None; ``advance`` counts them."""
    if processes is not None and processes < 1:
        raise ValueError(f"processes is {processes}; it is at least 1, or None for one per core")
    processes = min(processes or _cores(), count)
    if processes > 1 and "fork" in multiprocessing.get_all_start_methods():
        # Forked processes share what the task works on; sending it would take longer than most tasks.
        context = multiprocessing.get_context("fork")
        with ProcessPoolExecutor(processes, context, initializer=_adopt, initargs=(task,)) as pool:
            return _collect(pool.map(_run_adopted, range(count)), advance)
    return _collect(map(task, range(count)), advance)


def _collect(coming: Iterable[_Result], advance: Callable[[int], None]) -> list[_Result]:
    results: list[_Result] = []
    for result in coming:
        results.append(result)
        advance(len(results))
    return results


_adopted: Callable[[int], Any]


def _adopt(task: Callable[[int], Any]) -> None:
    global _adopted
    _adopted = task


def _run_adopted(number: int) -> Any:
    return _adopted(number)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
