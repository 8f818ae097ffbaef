"""Tasks side by side on all cores."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar

_Result = TypeVar("_Result")


def run_tasks(
    task: Callable[[int], _Result],
    count: int,
    *,
    processes: int | None = None,
    advance: Callable[[int], None] = lambda done: None,
) -> list[_Result]:
    """The results of ``task`` for 0, 1, … ``count - 1``; ``advance`` is called with how many are done.

    Of ``processes`` there is one per core if None is given.
    """
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
