"""The adversary of Theorem 3.2, who grows a network against a heuristic's own choices.

The network has N unit operators, the budget is B units. This prints how many operators are executed for each
of the N that suffice in the best order, beside the (N/B + 1)/2 that the theorem's proof gives for every
heuristic that does not know the future:

  dtr-fx bench adversary --n 500 1000 --budget 8 32 --heuristic dtr-eq lru
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from tabulate import tabulate

from dtr_fx.cli.bench.linear import positive
from dtr_fx.runtime import HEURISTICS
from dtr_fx.simulate import AdversaryRun, run_adversary
from dtr_fx.simulate.adversary import LEAST_BUDGET

_ONLINE = tuple(name for name, heuristic in HEURISTICS.items() if heuristic.time != "next_use")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--n",
        type=positive,
        nargs="+",
        default=[125, 250, 500],
        metavar="N",
        help="operators of the network (default: 125 250 500)",
    )
    parser.add_argument(
        "--budget",
        type=_units,
        nargs="+",
        default=[8, 32],
        metavar="B",
        help=f"units of memory, {LEAST_BUDGET} at least (default: 8 32)",
    )
    parser.add_argument(
        "--heuristic",
        choices=_ONLINE,
        nargs="+",
        default=_ONLINE,
        metavar="NAME",
        help=f"{', '.join(_ONLINE)} (default: all of them)",
    )


def run(arguments: argparse.Namespace) -> None:
    runs = [
        run_adversary(n, budget, heuristic)
        for heuristic in arguments.heuristic
        for budget in arguments.budget
        for n in arguments.n
    ]
    print("network grown by an adversary, unit operators")
    print(_table(runs))


def _table(runs: Sequence[AdversaryRun]) -> str:
    rows = [
        [run.heuristic, run.n, run.budget, run.executed, run.optimum, run.ratio, run.least_ratio]
        for run in runs
    ]
    headers = ["heuristic", "N", "B", "executed", "optimum", "ratio", "(N/B + 1)/2"]
    return tabulate(rows, headers, floatfmt=".2f")


def _units(text: str) -> int:
    units = int(text)
    if units < LEAST_BUDGET:
        raise argparse.ArgumentTypeError(f"{text} units are too few; at least {LEAST_BUDGET} are needed")
    return units
