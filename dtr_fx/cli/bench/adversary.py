"""The adversary of Theorem 3.2, who grows a network against a heuristic's own choices.

The network has N unit operators, the budget is B units. For each heuristic this prints how many operators
are executed for each of the N that suffice in the best order, beside the (N/B + 1)/2 that the theorem's proof
gives for every heuristic that does not know the future:

  dtr-fx bench adversary --n 500 1000 --budget 8 32 --heuristic dtr-eq lru
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from tabulate import tabulate

from dtr_fx.cli.arguments import positive
from dtr_fx.lab.adversary import LEAST_BUDGET, AdversaryRun, run_adversary
from dtr_fx.runtime import HEURISTICS

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
    rows = [
        [run_adversary(n, budget, heuristic) for heuristic in arguments.heuristic]
        for budget in arguments.budget
        for n in arguments.n
    ]
    print("network grown by an adversary: operators executed for each of the N that suffice")
    print(_table(rows, arguments.heuristic))


def _table(rows: Sequence[Sequence[AdversaryRun]], heuristics: Sequence[str]) -> str:
    cells = [[row[0].budget, row[0].n, row[0].least_ratio, *(run.ratio for run in row)] for row in rows]
    return tabulate(cells, ["B", "N", "(N/B + 1)/2", *heuristics], floatfmt=".2f")


def _units(text: str) -> int:
    units = positive(text)
    if units < LEAST_BUDGET:
        raise argparse.ArgumentTypeError(f"{text} units are too few; at least {LEAST_BUDGET} are needed")
    return units
