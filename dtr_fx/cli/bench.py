"""Time the planner itself, without a model.

linear runs the linear feedforward network of Theorem 3.1 in the DTR paper, forward and backward: N unit
operators each way under a budget of 2⌈√N⌉ units. It prints how many operators are executed for each of the
2N of the program, which the theorem bounds by a constant, and the planner's time for each of them:

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
    benchmarks = parser.add_subparsers(metavar="BENCHMARK", required=True)
    linear = benchmarks.add_parser("linear", help="the linear network of Theorem 3.1")
    linear.add_argument(
        "--n",
        type=_positive,
        nargs="+",
        default=[4000, 50000],
        metavar="N",
        help="forward operators (default: 4000 50000)",
    )
    linear.add_argument(
        "--heuristic",
        choices=tuple(HEURISTICS),
        default="dtr-eq",
        metavar="NAME",
        help=f"how values to drop are chosen: {', '.join(HEURISTICS)} (default: %(default)s)",
    )
    linear.set_defaults(benchmark=_linear)


def run(arguments: argparse.Namespace) -> None:
    """Carry out the command.

    Raises
    ------
    CommandError
        The heuristic does not get through the network.
    """
    arguments.benchmark(arguments)


def _linear(arguments: argparse.Namespace) -> None:
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


def _positive(text: str) -> int:
    n = int(text)
    if n < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number of operators")
    return n
