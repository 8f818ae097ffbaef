"""The paper's theorems on the runtime, and replays of operator logs.

"linear": the network of Theorem 3.1. N unit operators forward and N backward run under a budget of 2⌈√N⌉
units. This prints how many operators are executed for each of the 2N of the program, which the theorem bounds
by a constant, and the runtime's time for each. The theorem's proof banishes what the program needs no more.
With eager eviction, as in the paper's experiments, the time of dtr grows at least with the square of N:

  dtr-fx bench paper --only linear --n 4000 50000 --heuristic dtr dtr-eq --deallocation banish

"adversary": that of Theorem 3.2, who grows a network against a heuristic's own choices. The network has N
unit operators, the budget is B units. For each heuristic this prints how many operators are executed for each
of the N that suffice in the best order, beside the (N/B + 1)/2 that the theorem's proof gives for every
heuristic that does not know the future:

  dtr-fx bench paper --only adversary --n 500 1000 --budget 8 32 --heuristic dtr-eq lru

"logs": LOGs are replayed. This prints the slowdown of each replay, and the CPU time that the runtime took for
each operator that it executed. With --reference they are replayed by the rules of the original simulator at
every budget for which the reference has a number, "OOM" or "thrash" (more than twice the time); this prints
how far off the slowdowns are, and which verdicts differ:

  dtr-fx bench paper lstm.log.gz --heuristic dtr-eq dtr --budget 50%
  dtr-fx bench paper *.log.gz --reference simrd_slowdown.json
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Mapping
from pathlib import Path
from typing import get_args

from dtr_fx.cli.arguments import budget, positive, read
from dtr_fx.cli.bench.reference import THRASH, VERDICTS, read_reference
from dtr_fx.cli.progress import tracked
from dtr_fx.errors import CommandError
from dtr_fx.inspect.table import table
from dtr_fx.lab.replay import replay
from dtr_fx.lab.theorems import LEAST_BUDGET, LinearRun, run_adversary, run_linear
from dtr_fx.runtime import HEURISTICS, Deallocation, Thrash
from dtr_fx.runtime.program import Program
from dtr_fx.units import format_percent

_REPEATS = 3
_MAX_RATIO = 20.0  # heuristics for which the theorem does not hold need up to N/4
_ONLINE = tuple(name for name, heuristic in HEURISTICS.items() if heuristic.time != "next_use")
_COMPARED = ("dtr", "dtr-eq", "dtr-local", "msps")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("logs", nargs="*", type=Path, metavar="LOG", help="an operator log, plain or gzip")
    parser.add_argument(
        "--only",
        nargs="+",
        choices=tuple(_PARTS),
        metavar="PART",
        help="linear, adversary, logs (default: logs if there are LOGs, else the two others)",
    )
    parser.add_argument(
        "--n",
        type=positive,
        nargs="+",
        metavar="N",
        help="operators (default: 4000 50000 of the linear network, 125 250 500 of the adversary's)",
    )
    parser.add_argument(
        "--budget",
        type=budget,
        nargs="+",
        metavar="B",
        help=f"units of the adversary's network, {LEAST_BUDGET} at least (default: 8 32); of logs shares of "
        "the peak, or bytes (default: 50%%)",
    )
    parser.add_argument(
        "--heuristic",
        choices=tuple(HEURISTICS),
        nargs="+",
        metavar="NAME",
        help=f"{', '.join(HEURISTICS)} (default: dtr-eq; of the adversary all that do not know the future; "
        f"with --reference {' '.join(_COMPARED)})",
    )
    parser.add_argument(
        "--deallocation",
        choices=get_args(Deallocation),
        default="eager",
        metavar="POLICY",
        help="what releasing a storage of the linear network does: eager (evict it), banish (free it for "
        "good), ignore (nothing) (default: %(default)s)",
    )
    parser.add_argument(
        "--reference",
        type=Path,
        metavar="FILE",
        help='JSON: {"slowdown": {log: {heuristic: {ratio: slowdown}}}}',
    )


def run(arguments: argparse.Namespace) -> None:
    """Carry out the command."""
    parts = arguments.only or (("logs",) if arguments.logs else ("linear", "adversary"))
    if ("logs" in parts) != bool(arguments.logs):
        raise CommandError("give LOGs for the part logs, and for no other")
    print("\n\n".join(_PARTS[part](arguments) for part in parts))


def _linear(arguments: argparse.Namespace) -> str:
    policy = arguments.deallocation
    cases = itertools.product(arguments.heuristic or ("dtr-eq",), arguments.n or (4000, 50000))
    rows = [
        {
            "heuristic": heuristic,
            "N": n,
            "budget": run.budget,
            "executed / 2N": f"{run.ratio:.3f}",
            "µs per executed operator": f"{1e6 * run.seconds_per_operator:.1f}",
        }
        for heuristic, n in cases
        for run in [_fastest(n, heuristic, policy)]
    ]
    title = f"linear network, forward and backward, deallocation {policy}, best of {_REPEATS}"
    return f"{title}\n{table(rows)}"


def _fastest(n: int, heuristic: str, policy: Deallocation) -> LinearRun:
    try:
        runs = [run_linear(n, heuristic, deallocation=policy, max_ratio=_MAX_RATIO) for _ in range(_REPEATS)]
    except Thrash:
        raise CommandError(
            f"{heuristic} executes more than {_MAX_RATIO:g} × 2N operators at N = {n}"
        ) from None
    return min(runs, key=lambda run: run.seconds)


def _adversary(arguments: argparse.Namespace) -> str:
    budgets, heuristics = arguments.budget or (8, 32), arguments.heuristic or _ONLINE
    for units in budgets:
        if units < LEAST_BUDGET:
            raise CommandError(f"--budget: {units:g} units are too few; at least {LEAST_BUDGET} are needed")
    for heuristic in heuristics:
        if heuristic not in _ONLINE:
            raise CommandError(f"--heuristic: {heuristic} knows the future, as the adversary does not")
    rows = []
    for units, n in itertools.product(budgets, arguments.n or (125, 250, 500)):
        runs = {heuristic: run_adversary(n, units, heuristic) for heuristic in heuristics}
        least = next(iter(runs.values())).least_ratio
        ratios = {heuristic: f"{run.ratio:.2f}" for heuristic, run in runs.items()}
        rows.append({"B": units, "N": n, "(N/B + 1)/2": f"{least:.2f}", **ratios})
    return f"network grown by an adversary: operators executed for each of the N that suffice\n{table(rows)}"


def _logs(arguments: argparse.Namespace) -> str:
    if arguments.reference is None:
        return _speeds(arguments)
    if arguments.budget is not None:
        raise CommandError("--budget: with --reference the budgets are those that it has results for")
    return _deviations(arguments)


def _speeds(arguments: argparse.Namespace) -> str:
    programs = map(read, arguments.logs)
    cases = itertools.product(programs, arguments.heuristic or ("dtr-eq",), arguments.budget or (0.5,))
    rows = [_speed(*case) for case in cases]
    return f"CPU time, best of {_REPEATS}\n{table(rows, text=('heuristic',))}"


def _speed(program: Program, heuristic: str, asked: float | int) -> dict[str, object]:
    times = []
    for _ in range(_REPEATS):
        started = time.process_time()
        result = replay(program, program.budget(asked), heuristic)
        times.append(time.process_time() - started)
    executed = result.operators + result.rematerialized
    return {
        "log": program.name,
        "heuristic": heuristic,
        "budget": format_percent(result.budget / result.whole),
        "executed": executed,
        "slowdown": f"{result.slowdown:.4f}" if result.outcome == "ok" else result.outcome,
        "µs per executed operator": f"{1e6 * min(times) / executed:.1f}",
    }


def _deviations(arguments: argparse.Namespace) -> str:
    reference = read_reference(arguments.reference)
    programs = [read(path, simrd=True) for path in arguments.logs]
    tasks = [
        (program, heuristic, known)
        for program in programs
        for heuristic in arguments.heuristic or _COMPARED
        if (known := reference.get(program.name, {}).get(heuristic, {}))
    ]
    if not tasks:
        raise CommandError(f"{arguments.reference} has none of these logs under these heuristics")
    rows = [_deviation(*task) for task in tracked("replays", tasks)]
    return table(rows, text=("heuristic", "other verdicts"))


def _deviation(program: Program, heuristic: str, known: Mapping[str, float | str]) -> dict[str, object]:
    """How far our slowdowns are from those of the reference, and the verdicts that differ."""
    deviations, differing = [0.0], []
    for ratio, expected in known.items():
        result = replay(program, int(float(ratio) * program.peak), heuristic, max_slowdown=THRASH)
        found = VERDICTS.get(result.outcome, result.slowdown)
        if not isinstance(expected, str) and not isinstance(found, str):
            deviations.append(abs(found - expected))
        elif found != expected:
            differing.append(f"{ratio}: {found}, not {expected}")
    return {
        "log": program.name,
        "heuristic": heuristic,
        "budgets": len(known),
        "largest deviation": f"{max(deviations):.4f}",
        "other verdicts": "; ".join(differing) or "none",
    }


_PARTS = {"linear": _linear, "adversary": _adversary, "logs": _logs}
