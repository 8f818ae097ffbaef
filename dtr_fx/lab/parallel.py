"""Tasks side by side on all cores."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, TypeVar

_Result = TypeVar("_Result")


def run_tasks(
    task: Callable[[int], _Result],
    count: int,
    *,
    processes: int | None = None,
    watch: Callable[[int], None] = lambda done: None,
) -> list[_Result]:
    """What ``task`` returns for 0, 1, … ``count - 1``.

    Parameters
    ----------
    processes:
        How many at a time; None for one per core.
    watch:
        Told how many are done, after each.
    """
    if processes is not None and processes < 1:
        raise ValueError(f"processes is {processes}; it is at least 1, or None for one per core")
    processes = min(processes or _cores(), count)
    if processes > 1 and "fork" in multiprocessing.get_all_start_methods():
        return _run_forked(task, count, processes, watch)
    results = []
    for number in range(count):
        results.append(task(number))
        watch(number + 1)
    return results


def _run_forked(
    task: Callable[[int], _Result], count: int, processes: int, watch: Callable[[int], None]
) -> list[_Result]:
    # Forked processes share what the task works on as it is; sending it would take longer than most tasks.
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(processes, context, initializer=_adopt, initargs=(task,)) as pool:
        results: list[_Result] = []
        for result in pool.map(_run_adopted, range(count)):
            results.append(result)
            watch(len(results))
    return results


_adopted: Callable[[int], Any]


def _adopt(task: Callable[[int], Any]) -> None:
    global _adopted
    _adopted = task


def _run_adopted(number: int) -> Any:
    return _adopted(number)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
