"""Operator logs with their future known: a search's plans against the original simulator's best heuristic.

The original decides online, from the past; a plan is made once, from all of a log. At each ratio of a log's
peak this prints the lowest slowdown (total over base time) that any heuristic of the original reaches, by the
reference, and that of the plan that a search finds. Then come the lowest ratios that work: of the original,
of the plans, which are tried there and at 0.05 below, too, and of the lower bound, which is what an operator
needs alone, or the results at the end. As in the original, more than twice the time is "thrash" and
does not work. At the end stands which of the goals are met:

  dtr-fx bench futures *.log.gz --reference simrd_slowdown.json
  dtr-fx bench futures lstm.log.gz --reference simrd_slowdown.json --ratios 50% 30%
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from dtr_fx.cli.arguments import read, share
from dtr_fx.cli.bench.goals import Goal, goal_table, no_exception, table
from dtr_fx.cli.bench.logs import read_reference
from dtr_fx.cli.progress import progress
from dtr_fx.errors import CommandError
from dtr_fx.runtime import HEURISTICS
from dtr_fx.runtime.program import Call, Keep, Program
from dtr_fx.search import Infeasible, Policy, search
from dtr_fx.units import format_percent, format_seconds

_THRASH = 2.0
# How much lower than the original's lowest ratio the plans' is to be.
_LOWER = 0.05
# The digits that the reference has; ours are compared as they are shown.
_DIGITS = 4

Slowdowns: TypeAlias = "Mapping[float, Best | None]"


@dataclass(frozen=True)
class Best:
    """The lowest slowdown of the original at one ratio, and the heuristic that reaches it."""

    slowdown: float
    heuristic: str


@dataclass(frozen=True)
class Case:
    """A log, and the original's best on it."""

    program: Program
    original: Slowdowns


@dataclass(frozen=True)
class Trial:
    """A budget in bytes, a ``ratio`` of the peak, and the slowdown of our plan, infinite without one."""

    ratio: float
    budget: int
    slowdown: float
    seconds: float

    @property
    def works(self) -> bool:
        return self.slowdown <= _THRASH


@dataclass(frozen=True)
class Result:
    """One log: the original's best at each ratio, None where nothing works, and our trials.

    ``bound`` are the bytes that no plan can do without, ``peak`` those of the program as it is.  ``lower`` is
    the ratio by which ours is to work: ``_LOWER`` below the original's lowest.
    """

    log: str
    operators: int
    peak: int
    bound: int
    original: Slowdowns
    trials: tuple[Trial, ...]

    @property
    def original_lowest(self) -> float | None:
        return _original_lowest(self.original)

    @property
    def lowest(self) -> float | None:
        """The lowest ratio at which our plan works."""
        return min((trial.ratio for trial in self.trials if trial.works), default=None)

    @property
    def lower(self) -> float | None:
        return _lower(self.original)

    @property
    def can_be_lower(self) -> bool:
        """Whether the lower bound lets any plan work at the ratio ``lower``."""
        return self.lower is not None and int(self.peak * self.lower) >= self.bound

    @property
    def is_lower(self) -> bool:
        return self.lower is not None and self.lowest is not None and self.lowest <= self.lower

    @property
    def pairs(self) -> Iterator[tuple[Best, Trial]]:
        """Of each ratio at which the original works, its best and our plan."""
        for trial in self.trials:
            best = self.original.get(trial.ratio)
            if best is not None:
                yield best, trial


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("logs", nargs="+", type=Path, metavar="LOG", help="an operator log, plain or gzip")
    parser.add_argument(
        "--reference",
        type=Path,
        required=True,
        metavar="FILE",
        help='JSON: {"slowdown": {log: {heuristic: {ratio: slowdown, "OOM" or "thrash"}}}}',
    )
    parser.add_argument(
        "--ratios",
        nargs="+",
        type=share,
        metavar="RATIO",
        help="budgets, of each log's peak (default: all that the reference has)",
    )


def run(arguments: argparse.Namespace) -> None:
    """Carry out the command.

    Raises
    ------
    DTRError
        A user's error in a log or the reference.
    """
    print(goal_table(show(load(arguments.logs, arguments.reference), arguments.ratios)))


def load(logs: Iterable[Path], reference: Path) -> list[Case]:
    """The logs with what the reference knows of each.

    Raises
    ------
    DTRError
        A user's error in a log or the reference.
    """
    known = read_reference(reference)
    cases = []
    for path in logs:
        program = read(path)
        original = _best(known.get(program.name, {}))
        if not original:
            raise CommandError(f"{reference} knows no log named {program.name}")
        cases.append(Case(program, original))
    return cases


def show(cases: Iterable[Case], ratios: Sequence[float] | None = None) -> list[Goal]:
    """Print the tables of some logs and return the goals; see ``compare``."""
    results = []
    for case in cases:
        results.append(compare(case.program, case.original, ratios))
        print(_slowdown_table(results[-1]), end="\n\n", flush=True)
    print(_lowest_table(results), end="\n\n", flush=True)
    return goals(results)


def _best(slowdowns: Mapping[str, Mapping[str, float | str]]) -> dict[float, Best | None]:
    """The original's best at each ratio; None where no heuristic works."""
    found: dict[float, Best | None] = {}
    for heuristic, ratios in slowdowns.items():
        for ratio, value in ratios.items():
            best = found.setdefault(float(ratio), None)
            if not isinstance(value, str) and (best is None or value < best.slowdown):
                found[float(ratio)] = Best(value, heuristic)
    return found


def compare(program: Program, original: Slowdowns, ratios: Sequence[float] | None = None) -> Result:
    """Plan for a log at some ratios of its peak, all of the original's if None, at its lowest and below."""
    ends = (_original_lowest(original), _lower(original))
    wanted = {*(original if ratios is None else ratios), *(end for end in ends if end is not None)}
    bound = lower_bound(program)
    trials = []
    with progress(program.name, len(wanted)) as watch:
        for ratio in sorted(wanted, reverse=True):
            trials.append(_trial(program, ratio, bound))
            watch(len(trials))
    operators = sum(1 for _ in program.calls())
    return Result(program.name, operators, program.peak, bound, original, tuple(trials))


def _trial(program: Program, ratio: float, bound: int) -> Trial:
    budget = int(program.peak * ratio)
    started = time.perf_counter()
    slowdown = _slowdown(program, budget) if budget >= bound else math.inf
    return Trial(ratio, budget, slowdown, time.perf_counter() - started)


def _slowdown(program: Program, budget: int) -> float:
    try:
        return 1 + search(program, budget, Policy(HEURISTICS["next-use"])).cost / program.cost
    except Infeasible:
        return math.inf


def lower_bound(program: Program) -> int:
    """Bytes that no plan can do without.

    The constants, and with them what an operator reads, returns and works in, or the results at the end.

    Examples
    --------
    >>> from dtr_fx.runtime.program import Constant, Output
    >>> calls = Call("f", (0,), (Output(1, 4),), 1.0), Call("g", (1,), (Output(2, 3),), 1.0)
    >>> lower_bound(Program("two", (Constant(0, 10), *calls, Keep(2))))
    17
    """
    storages = program.storages
    sizes = {
        output.tensor: output.size
        for call in program.calls()
        for output in call.outputs
        if output.alias is None
    }

    def nbytes(tensors: Iterator[int]) -> int:
        return sum(sizes.get(storage, 0) for storage in {storages[tensor] for tensor in tensors})

    needs = (call.workspace + nbytes(_touched(call)) for call in program.calls())
    kept = nbytes(step.tensor for step in program.instructions if isinstance(step, Keep))
    return program.constants + max(kept, max(needs, default=0))


def _touched(call: Call) -> Iterator[int]:
    yield from call.inputs
    yield from (output.tensor for output in call.outputs)


def _original_lowest(original: Slowdowns) -> float | None:
    return min((ratio for ratio, best in original.items() if best is not None), default=None)


def _lower(original: Slowdowns) -> float | None:
    lowest = _original_lowest(original)
    # 0.2 - 0.05 is not 0.15 in binary.
    return None if lowest is None or lowest <= _LOWER else round(lowest - _LOWER, _DIGITS)


# --- goals -------------------------------------------------------------------------------------------------


def goals(results: Sequence[Result]) -> list[Goal]:
    """The goals, over all logs."""
    pairs = [(result.log, best, trial) for result in results for best, trial in result.pairs]
    not_lower = [
        f"{log} at {format_percent(trial.ratio)}"
        for log, best, trial in pairs
        if not _is_lower(trial.slowdown, best.slowdown)
    ]
    possible = [result for result in results if result.can_be_lower]
    late = [result.log for result in possible if not result.is_lower]
    return [
        no_exception(
            "logs: overhead lower than the original's best at every ratio",
            not_lower,
            len(pairs),
            "not lower",
        ),
        no_exception(
            f"logs: works {_LOWER:g} of the peak lower where the bound allows it",
            late,
            len(possible),
            "do not",
        ),
    ]


def _is_lower(ours: float, theirs: float) -> bool:
    """Whether our slowdown is lower to the digits of the reference, or none where theirs is none."""
    return ours == theirs == 1 or (math.isfinite(ours) and round(ours, _DIGITS) < theirs)


# --- output ------------------------------------------------------------------------------------------------


def _slowdown_table(result: Result) -> str:
    title = f"{result.log}: {result.operators} operators, future known"
    rows = [
        {
            "budget": format_percent(trial.ratio),
            **_original_cells(result, trial.ratio),
            "ours": _ours(trial, result.bound),
            "planning": format_seconds(trial.seconds) if trial.budget >= result.bound else "",
        }
        for trial in result.trials
    ]
    return f"{title}\n{table(rows)}"


def _original_cells(result: Result, ratio: float) -> dict[str, str]:
    best = result.original.get(ratio)
    if best is None:
        return {"original": "none works" if ratio in result.original else "not known", "by": ""}
    return {"original": f"× {best.slowdown:.{_DIGITS}f}", "by": best.heuristic}


def _ours(trial: Trial, bound: int) -> str:
    if trial.budget < bound:
        return "below the bound"
    if not math.isfinite(trial.slowdown):
        return "no plan"
    return f"× {trial.slowdown:.{_DIGITS}f}{'' if trial.works else ', thrash'}"


def _lowest_table(results: Sequence[Result]) -> str:
    return table(
        [
            {
                "lowest ratio": result.log,
                "original": _ratio(result.original_lowest),
                "ours": _ratio(result.lowest),
                "lower bound": format_percent(result.bound / result.peak),
            }
            for result in results
        ]
    )


def _ratio(ratio: float | None) -> str:
    return "none works" if ratio is None else format_percent(ratio)
