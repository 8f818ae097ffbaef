"""The linear feedforward network of Theorem 3.1: operators executed, and the runtime's time for each.

N unit operators forward and N backward run under a budget of 2⌈√N⌉ units. This prints how many operators are
executed for each of the 2N of the program, which the theorem bounds by a constant:

  dtr-fx bench linear --n 4000 50000 --heuristic dtr-eq
  dtr-fx bench linear --n 4000 50000 --heuristic dtr dtr-eq --deallocation banish

The theorem's proof banishes what the program needs no more. With eager eviction, as in the paper's
experiments, the time of dtr grows at least with the square of N.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import get_args

from tabulate import tabulate

from dtr_fx.cli.arguments import add_heuristics, positive
from dtr_fx.errors import CommandError
from dtr_fx.lab.linear import LinearRun, run_linear
from dtr_fx.runtime import Deallocation, Thrash

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
    add_heuristics(parser)
    parser.add_argument(
        "--deallocation",
        choices=get_args(Deallocation),
        default="eager",
        metavar="POLICY",
        help="what releasing a storage does: eager (evict it), banish (free it for good), ignore (nothing) "
        "(default: %(default)s)",
    )


def run(arguments: argparse.Namespace) -> None:
    deallocation = arguments.deallocation
    runs = [
        (heuristic, _fastest(n, heuristic, deallocation))
        for heuristic in arguments.heuristic
        for n in arguments.n
    ]
    print(f"linear network, forward and backward, deallocation {deallocation}, best of {_REPEATS}")
    print(_table(runs))


def _fastest(n: int, heuristic: str, deallocation: Deallocation) -> LinearRun:
    try:
        runs = [
            run_linear(n, heuristic, deallocation=deallocation, max_ratio=_MAX_RATIO) for _ in range(_REPEATS)
        ]
    except Thrash:
        raise CommandError(
            f"{heuristic} executes more than {_MAX_RATIO:g} × 2N operators at N = {n}"
        ) from None
    return min(runs, key=lambda run: run.seconds)


def _table(runs: Sequence[tuple[str, LinearRun]]) -> str:
    rows = [
        [heuristic, run.n, run.budget, run.ratio, run.seconds_per_operator * 1e6] for heuristic, run in runs
    ]
    headers = ["heuristic", "N", "budget", "executed / 2N", "µs per executed operator"]
    return tabulate(rows, headers, floatfmt=("", "", "", ".3f", ".1f"))
