"""Replays of operator logs: the runtime's time per executed operator, or a comparison with known results.

Without --reference this prints the slowdown of each replay, and the CPU time that the runtime took for each
operator that it executed. With it the logs are replayed by the rules of the original simulator at every
budget for which the reference has a number, "OOM" or "thrash" (more than twice the time); it prints how far
off the slowdowns are, and which verdicts differ:

  dtr-fx bench logs lstm.log.gz --heuristic dtr-eq dtr --budget 50%
  dtr-fx bench logs *.log.gz --reference simrd_slowdown.json
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tabulate import tabulate

from dtr_fx.cli.arguments import budget, read
from dtr_fx.cli.progress import progress
from dtr_fx.errors import CommandError
from dtr_fx.lab.replay import Replay, replay
from dtr_fx.runtime import HEURISTICS
from dtr_fx.runtime.program import Program
from dtr_fx.units import format_percent

_REPEATS = 3
_THRASH = 2.0
_VERDICTS = {"out of memory": "OOM", "thrash": "thrash"}
_COMPARED = ("dtr", "dtr-eq", "dtr-local", "msps")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("logs", nargs="+", type=Path, metavar="LOG", help="an operator log, plain or gzip")
    parser.add_argument(
        "--heuristic",
        nargs="+",
        choices=tuple(HEURISTICS),
        metavar="NAME",
        help=f"default: dtr-eq, with --reference {' '.join(_COMPARED)}",
    )
    parser.add_argument(
        "--budget",
        nargs="+",
        type=budget,
        metavar="BUDGET",
        help="shares of a log's peak, or bytes (default: 50%%)",
    )
    parser.add_argument(
        "--reference",
        type=Path,
        metavar="FILE",
        help='JSON: {"slowdown": {log: {heuristic: {ratio: slowdown}}}}',
    )


def run(arguments: argparse.Namespace) -> None:
    """Carry out the command.

    Raises
    ------
    DTRError
        A user's error in a log or the reference.
    """
    if arguments.reference is None:
        _speed(arguments)
    elif arguments.budget is not None:
        raise CommandError("--budget: with --reference the budgets are those that it has results for")
    else:
        _compare(arguments)


def _speed(arguments: argparse.Namespace) -> None:
    rows = []
    for path in arguments.logs:
        program = read(path)
        for heuristic in arguments.heuristic or ("dtr-eq",):
            for asked in arguments.budget or (0.5,):
                seconds, result = _timed(program, heuristic, asked)
                executed = result.operators + result.rematerialized
                rows.append(
                    {
                        "log": program.name,
                        "heuristic": heuristic,
                        "budget": format_percent(result.budget / result.whole),
                        "executed": executed,
                        "slowdown": f"{result.slowdown:.4f}" if result.outcome == "ok" else result.outcome,
                        "µs per executed operator": f"{1e6 * seconds / executed:.1f}",
                    }
                )
    print(f"CPU time, best of {_REPEATS}")
    print(tabulate(rows, headers="keys", disable_numparse=True))


def _timed(program: Program, heuristic: str, asked: float | int) -> tuple[float, Replay]:
    nbytes = program.budget(asked)
    best = float("inf")
    for _ in range(_REPEATS):
        started = time.process_time()
        result = replay(program, nbytes, heuristic)
        best = min(best, time.process_time() - started)
    return best, result


@dataclass(frozen=True)
class _Comparison:
    log: str
    heuristic: str
    ratio: str
    expected: float | str
    found: float | str

    @property
    def deviation(self) -> float | None:
        """Ours minus theirs where both are numbers."""
        if isinstance(self.expected, str) or isinstance(self.found, str):
            return None
        return self.found - self.expected

    @property
    def agrees(self) -> bool:
        return self.deviation is not None or self.found == self.expected


def _compare(arguments: argparse.Namespace) -> None:
    reference = read_reference(arguments.reference)
    heuristics = arguments.heuristic or _COMPARED
    programs = [read(path, simrd=True) for path in arguments.logs]
    tasks = [
        (program, heuristic, ratio, expected)
        for program in programs
        for heuristic in heuristics
        for ratio, expected in reference.get(program.name, {}).get(heuristic, {}).items()
    ]
    if not tasks:
        raise CommandError(f"{arguments.reference} has none of these logs under these heuristics")
    compared = []
    with progress("replays", len(tasks)) as watch:
        for number, task in enumerate(tasks, 1):
            compared.append(_compared(*task))
            watch(number)
    print(tabulate(_summaries(compared), headers="keys", disable_numparse=True))


def _compared(program: Program, heuristic: str, ratio: str, expected: float | str) -> _Comparison:
    result = replay(program, int(float(ratio) * program.peak), heuristic, max_slowdown=_THRASH)
    found = _VERDICTS.get(result.outcome, result.slowdown)
    return _Comparison(program.name, heuristic, ratio, expected, found)


def _summaries(compared: list[_Comparison]) -> Iterator[dict[str, Any]]:
    groups: dict[tuple[str, str], list[_Comparison]] = {}
    for item in compared:
        groups.setdefault((item.log, item.heuristic), []).append(item)
    for (log, heuristic), items in groups.items():
        deviations = [abs(item.deviation) for item in items if item.deviation is not None]
        differing = [f"{item.ratio}: {item.found}, not {item.expected}" for item in items if not item.agrees]
        yield {
            "log": log,
            "heuristic": heuristic,
            "budgets": len(items),
            "largest deviation": f"{max(deviations, default=0):.4f}",
            "other verdicts": "; ".join(differing) or "none",
        }


def read_reference(path: Path) -> dict[str, dict[str, dict[str, float | str]]]:
    try:
        slowdowns = json.loads(path.read_text(encoding="utf-8"))["slowdown"]
        return {
            log: {
                heuristic: {ratio: _expected(ratio, value) for ratio, value in ratios.items()}
                for heuristic, ratios in heuristics.items()
            }
            for log, heuristics in slowdowns.items()
        }
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise CommandError(
            f'{path} is no reference: expected {{"slowdown": {{log: {{heuristic: {{ratio: slowdown}}}}}}}}, '
            'where a slowdown is a number, "OOM" or "thrash"'
        ) from None


def _expected(ratio: str, value: Any) -> float | str:
    if not 0 < float(ratio) <= 1:
        raise ValueError
    if isinstance(value, str):
        return {verdict.lower(): verdict for verdict in _VERDICTS.values()}[value.lower()]
    if isinstance(value, bool) or not value >= 1:
        raise ValueError
    return float(value)
