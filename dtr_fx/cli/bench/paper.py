"""The paper's theorems on the runtime, and replays of operator logs.

"linear": the network of Theorem 3.1. N unit operators forward and N backward run under a budget of 2⌈√N⌉
units. This prints how many operators are executed for each of the 2N of the program, which the theorem bounds
by a constant, and the runtime's time for each. The theorem's proof banishes what the program needs no more;
with eager eviction, as in the paper's experiments, the time of dtr grows at least with the square of N:

  dtr-fx bench paper --only linear --n 4000 50000 --heuristic dtr dtr-eq --deallocation banish

"adversary": that of Theorem 3.2, who grows a network of N unit operators against a heuristic's own choices
under a budget of B units. This prints how many operators each heuristic executes for each of the N that
suffice in the best order, beside (N/B + 1)/2, the proof's bound for all that do not know the future:

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
from pathlib import Path

from dtr_fx.cli.arguments import add_deallocation, add_heuristic, budget, positive, read
from dtr_fx.cli.bench.logs import THRASH, VERDICTS, read_reference
from dtr_fx.cli.output import tracked
from dtr_fx.errors import CommandError
from dtr_fx.inspect.table import table
from dtr_fx.lab.replay import replay
from dtr_fx.lab.theorems import LEAST_BUDGET, run_adversary, run_linear
from dtr_fx.runtime import HEURISTICS, Thrash
from dtr_fx.units import format_percent

_REPEATS = 3
_MAX_RATIO = 20.0  # heuristics for which the theorem does not hold need up to N/4
_ONLINE = tuple(name for name, heuristic in HEURISTICS.items() if heuristic.time != "next_use")
_COMPARED = ("dtr", "dtr-eq", "dtr-local", "msps", "lru", "size")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("logs", nargs="*", type=Path, metavar="LOG", help="an operator log, plain or gzip")
    about = "linear, adversary, logs (default: logs if there are LOGs, else the two others)"
    add("--only", nargs="+", choices=tuple(_PARTS), metavar="PART", help=about)
    about = "operators (default: 4000 50000 of the linear network, 125 250 500 of the adversary's)"
    add("--n", type=positive, nargs="+", metavar="N", help=about)
    about = (
        f"units of the adversary, {LEAST_BUDGET} at least (default: 8 32); of logs shares, or bytes (50%%)"
    )
    add("--budget", type=budget, nargs="+", metavar="B", help=about)
    usual = f"dtr-eq; of the adversary all online ones; with --reference {' '.join(_COMPARED)}"
    add_heuristic(parser, usual, nargs="+")
    add_deallocation(parser, default="eager")
    about = 'JSON: {"slowdown": {log: {heuristic: {ratio: slowdown}}}}'
    add("--reference", type=Path, metavar="FILE", help=about)


def run(arguments: argparse.Namespace) -> None:
    parts = arguments.only or (("logs",) if arguments.logs else ("linear", "adversary"))
    if ("logs" in parts) != bool(arguments.logs):
        raise CommandError("give LOGs for the part logs, and for no other")
    print("\n\n".join(_PARTS[part](arguments) for part in parts))


def _linear(arguments: argparse.Namespace) -> str:
    policy, rows = arguments.deallocation, []
    for heuristic, n in itertools.product(arguments.heuristic or ("dtr-eq",), arguments.n or (4000, 50000)):
        limits = {"deallocation": policy, "max_ratio": _MAX_RATIO}
        try:
            runs = [run_linear(n, heuristic, **limits) for _ in range(_REPEATS)]
        except Thrash:
            many = f"more than {_MAX_RATIO:g} × 2N operators at N = {n}"
            raise CommandError(f"{heuristic} executes {many}") from None
        run = min(runs, key=lambda run: run.seconds)
        rows.append(
            {
                "heuristic": heuristic,
                "N": n,
                "budget": run.budget,
                "executed / 2N": f"{run.ratio:.3f}",
                "µs per executed operator": f"{1e6 * run.seconds / run.executed:.1f}",
            }
        )
    title = f"linear network, forward and backward, deallocation {policy}, best of {_REPEATS}"
    return f"{title}\n{table(rows)}"


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
    if arguments.reference is not None:
        return _deviations(arguments)
    programs = map(read, arguments.logs)
    cases = itertools.product(programs, arguments.heuristic or ("dtr-eq",), arguments.budget or (0.5,))
    rows = []
    for program, heuristic, asked in cases:
        times = []
        for _ in range(_REPEATS):
            started = time.process_time()
            result = replay(program, program.budget(asked), heuristic)
            times.append(time.process_time() - started)
        executed = result.operators + result.rematerialized
        rows.append(
            {
                "log": program.name,
                "heuristic": heuristic,
                "budget": format_percent(result.budget / result.whole),
                "executed": executed,
                "slowdown": f"{result.slowdown:.4f}" if result.outcome == "ok" else result.outcome,
                "µs per executed operator": f"{1e6 * min(times) / executed:.1f}",
            }
        )
    return f"CPU time, best of {_REPEATS}\n{table(rows, text=('heuristic',))}"


def _deviations(arguments: argparse.Namespace) -> str:
    """How far our slowdowns are from those of the reference, and the verdicts that differ."""
    if arguments.budget is not None:
        raise CommandError("--budget: with --reference the budgets are those that it has results for")
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
    rows = []
    for program, heuristic, known in tracked("replays", tasks):
        deviations, differing = [0.0], []
        for ratio, expected in known.items():
            result = replay(program, int(float(ratio) * program.peak), heuristic, max_slowdown=THRASH)
            found = VERDICTS.get(result.outcome, result.slowdown)
            if not isinstance(expected, str) and not isinstance(found, str):
                deviations.append(abs(found - expected))
            elif found != expected:
                differing.append(f"{ratio}: {found}, not {expected}")
        rows.append(
            {
                "log": program.name,
                "heuristic": heuristic,
                "budgets": len(known),
                "largest deviation": f"{max(deviations):.4f}",
                "other verdicts": "; ".join(differing) or "none",
            }
        )
    return table(rows, text=("heuristic", "other verdicts"))


_PARTS = {"linear": _linear, "adversary": _adversary, "logs": _logs}
