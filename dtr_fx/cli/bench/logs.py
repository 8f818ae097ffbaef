"""Operator logs with their future known: a search's plans against the original simulator's best heuristic."""

from __future__ import annotations

import contextlib
import json
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from dtr_fx.cli.arguments import read
from dtr_fx.cli.bench.goals import Goal, no_exception
from dtr_fx.cli.output import tracked
from dtr_fx.errors import CommandError
from dtr_fx.inspect.table import table
from dtr_fx.runtime import HEURISTICS
from dtr_fx.runtime.program import Program
from dtr_fx.search import Infeasible, Policy, find_plan, lower_bound
from dtr_fx.units import format_percent, format_seconds

FOLDER = Path("../shared/dtr_logs")
REFERENCE = "simrd_slowdown.json"
# More of its base time no replay takes: the original stops there.
THRASH = 2.0
# How the reference calls what a replay comes to.
VERDICTS = {"out of memory": "OOM", "thrash": "thrash"}
# How much lower than the original's lowest ratio the plans' is to be.
_LOWER = 0.05
# The digits that the reference has; ours are compared as they are shown.
_DIGITS = 4

Slowdowns: TypeAlias = "dict[str, dict[str, float | str]]"
Originals: TypeAlias = "Mapping[float, Original | None]"


@dataclass(frozen=True)
class Original:
    """The lowest slowdown of the original at one ratio, and the heuristic that reaches it."""

    slowdown: float
    heuristic: str


@dataclass(frozen=True)
class PlannedRatio:
    """A budget in bytes, a ``ratio`` of the peak, and the slowdown of our plan, infinite without one."""

    ratio: float
    budget: int
    slowdown: float
    seconds: float


@dataclass(frozen=True)
class LogResult:
    """One log: the original's best at each ratio, None where no heuristic works, and our plans.

    ``bound`` are the bytes that no plan can do without, ``peak`` those of the program as it is.
    """

    log: str
    operators: int
    peak: int
    bound: int
    original: Originals
    ours: tuple[PlannedRatio, ...]

    @property
    def lowest(self) -> float | None:
        """The lowest ratio at which our plan works."""
        return min((plan.ratio for plan in self.ours if plan.slowdown <= THRASH), default=None)


def read_reference(path: Path) -> dict[str, Slowdowns]:
    """Of each log the original's slowdown, "OOM" or "thrash", by heuristic and ratio of the peak."""
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
        return {verdict.lower(): verdict for verdict in VERDICTS.values()}[value.lower()]
    if isinstance(value, bool) or not value >= 1:
        raise ValueError
    return float(value)


def known(given: Sequence[Path], reference: Path | None) -> list[tuple[Program, Originals]]:
    """The logs with what the reference knows of each, the smallest first; none where the default has none."""
    folders = [path for path in given or [FOLDER] if path.is_dir()]
    inside = [log for folder in folders for log in folder.glob("*.log.gz")]
    paths = [*inside, *(path for path in given if path not in folders)]
    if not paths and given:
        raise CommandError(f"--logs {given[0]}: there are no logs (*.log.gz)")
    if not paths:
        return []
    paths.sort(key=lambda path: path.stat().st_size if path.is_file() else 0)
    reference = reference or paths[0].parent / REFERENCE
    slowdowns = read_reference(reference)
    programs = [read(path) for path in paths]
    for program in programs:
        if not slowdowns.get(program.name):
            raise CommandError(f"{reference} knows no log named {program.name}")
    return [(program, _best(slowdowns[program.name])) for program in programs]


def _best(slowdowns: Slowdowns) -> dict[float, Original | None]:
    found: dict[float, Original | None] = {}
    for heuristic, ratios in slowdowns.items():
        for ratio, value in ratios.items():
            best = found.setdefault(float(ratio), None)
            if not isinstance(value, str) and (best is None or value < best.slowdown):
                found[float(ratio)] = Original(value, heuristic)
    return found


def results(
    cases: Iterable[tuple[Program, Originals]], ratios: Sequence[float] | None
) -> Iterator[LogResult]:
    """Plans at some ratios of each peak (None: the reference's), at the original's lowest, and below."""
    for program, original in cases:
        ends = (_lowest(original), _lower(original))
        wanted = {*(original if ratios is None else ratios), *(end for end in ends if end is not None)}
        bound = lower_bound(program).nbytes
        tried = tracked(program.name, sorted(wanted, reverse=True))
        plans = tuple(_planned(program, ratio, bound) for ratio in tried)
        operators = sum(1 for _ in program.calls())
        yield LogResult(program.name, operators, program.peak, bound, original, plans)


def _planned(program: Program, ratio: float, bound: int) -> PlannedRatio:
    budget = int(program.peak * ratio)
    started = time.perf_counter()
    slowdown = math.inf
    if budget >= bound:
        with contextlib.suppress(Infeasible):
            slowdown = 1 + find_plan(program, budget, Policy(HEURISTICS["next-use"])).cost / program.cost
    return PlannedRatio(ratio, budget, slowdown, time.perf_counter() - started)


def _lowest(original: Originals) -> float | None:
    return min((ratio for ratio, best in original.items() if best is not None), default=None)


def _lower(original: Originals) -> float | None:
    """The ratio by which ours is to work: ``_LOWER`` below the original's lowest."""
    lowest = _lowest(original)
    # 0.2 - 0.05 is not 0.15 in binary.
    return None if lowest is None or lowest <= _LOWER else round(lowest - _LOWER, _DIGITS)


def _is_lower(ours: float, theirs: float) -> bool:
    """True if our slowdown is lower to the digits of the reference, or none where theirs is none."""
    return ours == theirs == 1 or (math.isfinite(ours) and round(ours, _DIGITS) < theirs)


def goals(results: Sequence[LogResult]) -> list[Goal]:
    """The goals, over all logs; none without logs."""
    if not results:
        return []
    works = [
        (f"{result.log} at {format_percent(plan.ratio)}", _is_lower(plan.slowdown, best.slowdown))
        for result in results
        for plan in result.ours
        if (best := result.original.get(plan.ratio))
    ]
    lower = [(result, ratio) for result in results if (ratio := _lower(result.original)) is not None]
    possible = [(result, ratio) for result, ratio in lower if int(result.peak * ratio) >= result.bound]
    not_lower = [case for case, is_lower in works if not is_lower]
    do_not = [result.log for result, ratio in possible if result.lowest is None or result.lowest > ratio]
    overhead = "logs: overhead lower than the original's best at every ratio"
    lowest = f"logs: works {_LOWER:g} of the peak lower where the bound allows it"
    return [
        no_exception(overhead, not_lower, len(works), "not lower"),
        no_exception(lowest, do_not, len(possible), "do not"),
    ]


def each(result: LogResult) -> str:
    rows = []
    for plan in result.ours:
        best = result.original.get(plan.ratio)
        none = "none works" if plan.ratio in result.original else "not known"
        rows.append(
            {
                "budget": format_percent(plan.ratio),
                "original": f"× {best.slowdown:.{_DIGITS}f}" if best else none,
                "by": best.heuristic if best else "",
                "ours": _ours(plan, result.bound),
                "planning": format_seconds(plan.seconds) if plan.budget >= result.bound else "",
            }
        )
    return f"{result.log}: {result.operators} operators, future known\n{table(rows)}"


def _ours(plan: PlannedRatio, bound: int) -> str:
    if plan.budget < bound:
        return "below the bound"
    if not math.isfinite(plan.slowdown):
        return "no plan"
    return f"× {plan.slowdown:.{_DIGITS}f}{'' if plan.slowdown <= THRASH else ', thrash'}"


def summary(results: Sequence[LogResult]) -> str:
    if not results:
        return f"operator logs are left out: {FOLDER} has none"
    rows = [
        {
            "lowest ratio": result.log,
            "original": _ratio(_lowest(result.original)),
            "ours": _ratio(result.lowest),
            "lower bound": format_percent(result.bound / result.peak),
        }
        for result in results
    ]
    return table(rows)


def _ratio(ratio: float | None) -> str:
    return "none works" if ratio is None else format_percent(ratio)
