"""Replay operator logs under byte budgets, without running a model.

LOG is a file of JSON lines in the format of the DTR paper (Appendix C.6), plain or gzip; dtr-fx record writes
one. Every log is replayed with every heuristic, deallocation policy and budget:

  dtr-fx simulate resnet.log
  dtr-fx simulate *.log.gz --heuristic dtr dtr-eq lru --budget 70% 50% 30% -o slowdown.png -o slowdown.csv

A budget in percent is of the log's own peak. The table shows how many times the time of the program a
replay takes ("slowdown"), what was rematerialized, the peak, and the storages accessed to evaluate the
heuristic and to keep its metadata. A replay that takes more than --max-slowdown is given up ("thrash").
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from dtr_fx.cli.arguments import (
    add_heuristics,
    add_jobs,
    add_outputs,
    budget,
    check_names_apart,
    read,
    slowdown,
)
from dtr_fx.cli.output import check_outputs, write_picture, write_text
from dtr_fx.cli.progress import progress
from dtr_fx.errors import CommandError
from dtr_fx.inspect.table import table
from dtr_fx.lab.figures.slowdowns import plot_slowdowns
from dtr_fx.lab.figures.style import require_matplotlib
from dtr_fx.lab.replay import Replay
from dtr_fx.lab.sweep import RATIOS, Sweep, to_csv, to_json
from dtr_fx.runtime import Deallocation
from dtr_fx.runtime.program import Program
from dtr_fx.units import format_bytes, format_percent

_PICTURES = (".png", ".svg", ".pdf")
_TABLES = {".csv": to_csv, ".json": to_json}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("logs", nargs="+", type=Path, metavar="LOG", help="an operator log, plain or gzip")
    add_heuristics(parser)
    parser.add_argument(
        "--budget",
        nargs="+",
        type=budget,
        default=list(RATIOS),
        metavar="BUDGET",
        help='shares of each log\'s peak ("60%%", 0.6) or bytes ("8GiB") (default: 90%%, 80%%, ... 10%%)',
    )
    parser.add_argument(
        "--deallocation",
        nargs="+",
        choices=get_args(Deallocation),
        default=["eager"],
        metavar="POLICY",
        help="what releasing a storage does: eager (evict it), banish (free it for good), ignore (nothing) "
        "(default: eager)",
    )
    parser.add_argument(
        "--max-slowdown",
        type=slowdown,
        default=2.0,
        metavar="X",
        help="give a replay up that takes more than X times the program's time (default: 2)",
    )
    parser.add_argument(
        "--simrd",
        action="store_true",
        help="by the rules of the paper's own simulator, where ours are others (see docs/paper.md)",
    )
    parser.add_argument("--json", action="store_true", help="print the results as a JSON list")
    add_outputs(parser, ".csv, .json, or a picture (.png, .svg, .pdf)")
    add_jobs(parser)


def run(arguments: argparse.Namespace) -> None:
    _check_outputs(arguments)
    programs = [read(path, simrd=arguments.simrd) for path in arguments.logs]
    if any(path.suffix in _PICTURES for path in arguments.output):
        check_names_apart(programs)
    sweep = Sweep(
        programs,
        arguments.heuristic,
        arguments.budget,
        arguments.deallocation,
        max_slowdown=arguments.max_slowdown,
    )
    with progress("replays", len(sweep)) as advance:
        results = sweep.run(processes=arguments.jobs, advance=advance)
    if arguments.json:
        sys.stdout.write(to_json(results))
    else:
        _print_tables(sweep, results)
    for path in arguments.output:
        _write(path, sweep, results, force=arguments.force)


def _print_tables(sweep: Sweep, results: Sequence[Replay]) -> None:
    each = len(sweep) // len(sweep.programs)
    for number, program in enumerate(sweep.programs):
        print(_title(program))
        print(_table(results[number * each : (number + 1) * each]), end="\n\n")


def _check_outputs(arguments: argparse.Namespace) -> None:
    if arguments.simrd and arguments.deallocation != ["eager"]:
        raise CommandError("--simrd: the original simulator's rules are for --deallocation eager")
    check_outputs(arguments, (*_TABLES, *_PICTURES))
    if any(path.suffix in _PICTURES for path in arguments.output):
        require_matplotlib()


def _title(program: Program) -> str:
    calls = sum(1 for _ in program.calls())
    peak, constants = format_bytes(program.peak), format_bytes(program.constants)
    return f"{program.name}: {calls} operators, peak {peak}, {constants} of it constants"


def _table(results: Sequence[Replay]) -> str:
    rows = [
        {
            "heuristic": result.heuristic,
            "deallocation": result.deallocation,
            "budget": format_percent(result.budget / result.whole),
            "slowdown": f"× {result.slowdown:.3f}" if result.outcome == "ok" else result.outcome,
            "rematerialized": result.rematerialized,
            "bytes": format_bytes(result.rematerialized_bytes),
            "peak": format_bytes(result.peak),
            "scored": result.scored,
            "maintained": result.maintained,
        }
        for result in results
    ]
    return table(rows, ["deallocation"])


def _write(path: Path, sweep: Sweep, results: Sequence[Replay], *, force: bool) -> None:
    if path.suffix in _TABLES:
        write_text(path, _TABLES[path.suffix](results), force=force)
    else:
        write_picture(path, plot_slowdowns(results, "Slowdown under a memory budget", sweep.programs))
