"""Training steps of models under a number of budgets: planned and measured peak, extra compute, time.

TARGETs are those of dtr-fx diff. For every budget that works this prints the peak above inputs and
parameters, planned and as the allocator measured it; the extra compute planned, and the time of a step over
that of the unrewritten one (median of 5); whether outputs, gradients, buffers and random generators came out
the same, bit for bit; and the time that planning took, with the share of the verify pass:

  dtr-fx bench models zoo:gpt zoo:lstm_cell
  dtr-fx bench models train.py:make_gpt --budgets 60% 8GiB smallest
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tabulate import tabulate

from dtr_fx.cli.targets import load_trainee
from dtr_fx.planning.options import Options
from dtr_fx.runtime import HEURISTICS
from dtr_fx.units import format_bytes, format_percent

if TYPE_CHECKING:
    from dtr_fx.lab.trainee import Row


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "targets", nargs="+", metavar="TARGET", help="package.module:factory or path/to/file.py:factory"
    )
    parser.add_argument(
        "--budgets",
        nargs="+",
        metavar="BUDGET",
        help='such as 60%%, 8GiB, or "smallest" (default: 90%%, 80%%, ... and the smallest that works)',
    )
    parser.add_argument(
        "--heuristic",
        choices=tuple(HEURISTICS),
        default=Options.heuristic,
        metavar="NAME",
        help=f"how values to drop are chosen: {', '.join(HEURISTICS)} (default: %(default)s)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print a JSON list with an object for each target"
    )


def run(arguments: argparse.Namespace) -> None:
    options = Options(heuristic=arguments.heuristic)
    results = []
    for target in arguments.targets:
        rows = _sweep(target, options, arguments.budgets)
        if arguments.json:
            results.append({"target": target, "rows": [_as_json(row) for row in rows]})
        else:
            print(_table(target, rows), end="\n\n", flush=True)
    if arguments.json:
        print(json.dumps(results, indent=1))


def _sweep(target: str, options: Options, budgets: Sequence[str] | None) -> list[Row]:
    # Compilation machinery takes seconds to import, which --help need not wait for.
    from dtr_fx.lab.trainee import PERCENTS, SMALLEST, sweep

    asked = budgets or (*PERCENTS, SMALLEST)
    return list(sweep(load_trainee(target), options, asked, watch=_progress(target)))


def _progress(target: str) -> Callable[[str], None]:
    def show(asked: str) -> None:
        if sys.stderr.isatty():
            print(f"\r\033[K{target}: {asked}" if asked else "\r\033[K", end="", file=sys.stderr, flush=True)

    return show


def _as_json(row: Row) -> dict[str, Any]:
    return {**asdict(row), "identical": row.identical}


def _table(target: str, rows: Sequence[Row]) -> str:
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
