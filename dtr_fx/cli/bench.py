"""Measure what budgets cost: in the training steps of models, or the planner alone.

models takes TARGETs as dtr-fx diff does, and runs the training step of each under a number of budgets. For
every budget that works it prints the peak above inputs and parameters, planned and as the allocator measured
it; the extra compute planned, and the time of a step over that of the unrewritten one (median of 5); whether
outputs, gradients, buffers and random generators came out the same, bit for bit; and the time that planning
took, with the share of the verify pass:

  dtr-fx bench models examples/models.py:gpt examples/models.py:lstm
  dtr-fx bench models train.py:make_gpt --budgets 60% 8GiB smallest

linear runs the linear feedforward network of Theorem 3.1 in the DTR paper, forward and backward: N unit
operators each way under a budget of 2⌈√N⌉ units. It prints how many operators are executed for each of the
2N of the program, which the theorem bounds by a constant, and the planner's time for each of them:

  dtr-fx bench linear --n 4000 50000 --heuristic dtr-eq
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from tabulate import tabulate

from dtr_fx.cli.targets import load_target
from dtr_fx.errors import CommandError
from dtr_fx.options import Options
from dtr_fx.runtime import HEURISTICS, Thrash
from dtr_fx.simulate import LinearRun, run_linear
from dtr_fx.units import format_bytes, format_percent

if TYPE_CHECKING:
    from dtr_fx.bench import Row

_REPEATS = 3
_MAX_RATIO = 20.0  # heuristics for which the theorem does not hold need up to N/4


def add_arguments(parser: argparse.ArgumentParser) -> None:
    benchmarks = parser.add_subparsers(metavar="BENCHMARK", required=True)
    _add_models(benchmarks.add_parser("models", help="training steps of models under budgets"))
    _add_linear(benchmarks.add_parser("linear", help="the linear network of Theorem 3.1"))


def run(arguments: argparse.Namespace) -> None:
    """Carry out the command.

    Raises
    ------
    DTRError
        In ``models``, a user's error in an option or a target; in ``linear``, a heuristic that does not get
        through the network.
    """
    arguments.benchmark(arguments)


def _add_models(models: argparse.ArgumentParser) -> None:
    models.add_argument(
        "targets", nargs="+", metavar="TARGET", help="package.module:factory or path/to/file.py:factory"
    )
    models.add_argument(
        "--budgets",
        nargs="+",
        metavar="BUDGET",
        help='such as 60%%, 8GiB, or "smallest" (default: 90%%, 80%%, ... and the smallest that works)',
    )
    models.add_argument(
        "--heuristic",
        choices=tuple(HEURISTICS),
        default=Options.heuristic,
        metavar="NAME",
        help=f"how values to drop are chosen: {', '.join(HEURISTICS)} (default: %(default)s)",
    )
    models.add_argument(
        "--json", action="store_true", help="print a JSON list with an object for each target"
    )
    models.set_defaults(benchmark=_models)


def _models(arguments: argparse.Namespace) -> None:
    options = Options(heuristic=arguments.heuristic)
    results = []
    for target in arguments.targets:
        rows = _sweep(target, options, arguments.budgets)
        if arguments.json:
            results.append({"target": target, "rows": [_as_json(row) for row in rows]})
        else:
            print(_models_table(target, rows), end="\n\n", flush=True)
    if arguments.json:
        print(json.dumps(results, indent=1))


def _sweep(target: str, options: Options, budgets: Sequence[str] | None) -> list[Row]:
    # Compilation machinery takes seconds to import, which --help need not wait for.
    from dtr_fx.bench import PERCENTS, SMALLEST, Trainee, sweep

    asked = budgets or (*PERCENTS, SMALLEST)
    torch.manual_seed(0)
    model, inputs = load_target(target)
    if not isinstance(model, torch.nn.Module):
        raise CommandError(f"{target}: a function has no parameters to train; give a module")
    return list(sweep(Trainee(model, inputs), options, asked, watch=_progress(target)))


def _progress(target: str) -> Callable[[str], None]:
    def show(asked: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\033[K{target}: {asked}" if asked else "\r\033[K", end="", file=sys.stderr, flush=True)

    return show


def _as_json(row: Row) -> dict[str, Any]:
    return {**asdict(row), "identical": row.identical}


def _models_table(target: str, rows: Sequence[Row]) -> str:
    if not rows:
        return f"{target}: none of these budgets works"
    peak, bound, constants = rows[0].baseline_peak, rows[0].lower_bound, rows[0].constants
    title = (
        f"{target}: peak {format_bytes(peak)}, {format_bytes(constants)} of it inputs and parameters; "
        f"no plan can do with less than {format_percent(bound / peak)}"
    )
    cells = [
        {
            "budget": row.asked,
            "of peak": format_percent(row.budget / peak),
            "allowed": format_bytes(row.allowed),
            "planned": format_bytes(row.planned),
            "measured": format_bytes(row.measured),
            "off by": f"{100 * row.deviation:+.2f}%",
            "extra compute": format_percent(row.overhead),
            "time": f"× {row.time_ratio:.2f}",
            "identical": "yes" if row.identical else f"no: {len(row.differing)}, {row.differing[0]}",
            "planning": f"{1e3 * row.planning:.0f} ms",
            "verify": format_percent(row.verify_share),
        }
        for row in rows
    ]
    alignment = ["left", *["right"] * (len(cells[0]) - 1)]
    return f"{title}\n{tabulate(cells, headers='keys', disable_numparse=True, colalign=alignment)}"


def _add_linear(linear: argparse.ArgumentParser) -> None:
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
