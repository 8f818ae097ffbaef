"""The linear feedforward network of Theorem 3.1: operators executed, and the runtime's time for each.

N unit operators forward and N backward run under a budget of 2⌈√N⌉ units. This prints how many operators are
executed for each of the 2N of the program, which the theorem bounds by a constant:

  dtr-fx bench linear --n 4000 50000 --heuristic dtr-eq
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from tabulate import tabulate

from dtr_fx.errors import CommandError
from dtr_fx.runtime import HEURISTICS, Thrash
from dtr_fx.simulate import LinearRun, run_linear

_REPEATS = 3
_MAX_RATIO = 20.0  # heuristics for which the theorem does not hold need up to N/4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--n",
        type=positive,
        nargs="+",
        default=[4000, 50000],
        metavar="N",
        help="forward operators (default: 4000 50000)",
    )
    parser.add_argument(
        "--heuristic",
        choices=tuple(HEURISTICS),
        default="dtr-eq",
        metavar="NAME",
        help=f"how values to drop are chosen: {', '.join(HEURISTICS)} (default: %(default)s)",
    )


def run(arguments: argparse.Namespace) -> None:
    runs = [_fastest(n, arguments.heuristic) for n in arguments.n]
    print(f"linear network, forward and backward, {arguments.heuristic}, best of {_REPEATS}")
    print(_table(runs))


def _fastest(n: int, heuristic: str) -> LinearRun:
    try:
        runs = [run_linear(n, heuristic, max_ratio=_MAX_RATIO) for _ in range(_REPEATS)]
    except Thrash:
        raise CommandError(
            f"{heuristic} executes more than {_MAX_RATIO:g} × 2N operators at N = {n}"
        ) from None
    return min(runs, key=lambda run: run.seconds)


def _table(runs: Sequence[LinearRun]) -> str:
    rows = [[run.n, run.budget, run.ratio, run.seconds_per_operator * 1e6] for run in runs]
    headers = ["N", "budget", "executed / 2N", "µs per executed operator"]
    return tabulate(rows, headers, floatfmt=("", "", ".3f", ".1f"))


def positive(text: str) -> int:
    """A number of operators, from the command line."""
    n = int(text)
    if n < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number of operators")
    return n
