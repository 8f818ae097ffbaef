"""Replay operator logs under byte budgets, without running a model.

LOG is a file of JSON lines in the format of the DTR paper (Appendix C.6), plain or gzip; dtr-fx record writes
one. Every log is replayed with every heuristic, deallocation policy and budget:

  dtr-fx simulate resnet.log
  dtr-fx simulate *.log.gz --heuristic dtr dtr-eq lru --budget 70% 50% 30% -o slowdown.png -o slowdown.csv

A budget in percent is of the log's own peak. The table shows how many times the time of the program a
replay takes ("slowdown"), what was rematerialized, the peak, and the storages accessed to evaluate the
heuristic and to keep its metadata. A replay that takes more than --max-slowdown is given up ("thrash").

With --offload 50GB, bytes per second, the heuristic may also move a storage to the host's memory and back,
where that is cheaper than to recompute it (docs/offload.md); the table shows what came back, and the time
that operators waited for it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from dtr_fx.cli import arguments as shared
from dtr_fx.cli.arguments import check_names_apart, read
from dtr_fx.cli.output import check_outputs, progress, write_picture, write_text
from dtr_fx.errors import CommandError
from dtr_fx.inspect.table import table
from dtr_fx.lab.figures.slowdowns import plot_slowdowns
from dtr_fx.lab.figures.style import require_matplotlib
from dtr_fx.lab.log import with_offload
from dtr_fx.lab.replay import Replay
from dtr_fx.lab.sweep import RATIOS, Sweep, to_csv, to_json
from dtr_fx.units import format_bytes, format_percent, parse_bytes

_PICTURES = (".png", ".svg", ".pdf")
_TABLES = {".csv": to_csv, ".json": to_json}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("logs", nargs="+", type=Path, metavar="LOG", help="an operator log, plain or gzip")
    shared.add_heuristic(parser, "dtr-eq", nargs="+", default=["dtr-eq"])
    about = 'shares of each log\'s peak ("60%%", 0.6) or bytes ("8GiB") (default: 90%%, 80%%, ... 10%%)'
    add("--budget", nargs="+", type=shared.budget, default=list(RATIOS), metavar="BUDGET", help=about)
    shared.add_deallocation(parser, nargs="+", default=["eager"])
    about = "give a replay up that takes more than X times the program's time (default: 2)"
    add("--max-slowdown", type=shared.slowdown, default=2.0, metavar="X", help=about)
    about = "show what PyTorch's CUDA allocator would reserve, with expandable segments, and how fragmented"
    add("--reserved", action="store_true", help=about)
    about = "move storages, too, at so many bytes per second: 50GB, or 50GB,20GB out and back"
    add("--offload", type=_bandwidths, metavar="BANDWIDTH", help=about)
    add("--simrd", action="store_true", help="by the rules of the paper's own simulator (see docs/paper.md)")
    add("--json", action="store_true", help="print the results as a JSON list")
    shared.add_outputs(parser, ".csv, .json, or a picture (.png, .svg, .pdf)")
    shared.add_jobs(parser)


def run(arguments: argparse.Namespace) -> None:
    if arguments.simrd and arguments.deallocation != ["eager"]:
        raise CommandError("--simrd: the original simulator's rules are for --deallocation eager")
    check_outputs(arguments, (*_TABLES, *_PICTURES))
    if arguments.simrd and arguments.offload:
        raise CommandError("--simrd: the original simulator moves nothing; leave --offload out")
    is_drawn = any(path.suffix in _PICTURES for path in arguments.output)
    if is_drawn:
        require_matplotlib()
    programs = [read(path, simrd=arguments.simrd) for path in arguments.logs]
    if arguments.offload:
        programs = [with_offload(program, *arguments.offload) for program in programs]
    if is_drawn:
        check_names_apart(programs)
    axes = arguments.heuristic, arguments.budget, arguments.deallocation
    sweep = Sweep(programs, *axes, max_slowdown=arguments.max_slowdown, reserved=arguments.reserved)
    with progress("replays", len(sweep)) as advance:
        results = sweep.run(processes=arguments.jobs, advance=advance)
    if arguments.json:
        sys.stdout.write(to_json(results))
    else:
        each = len(sweep) // len(programs)
        for number, program in enumerate(programs):
            calls = sum(1 for _ in program.calls())
            peak, constants = format_bytes(program.peak), format_bytes(program.constants)
            print(f"{program.name}: {calls} operators, peak {peak}, {constants} of it constants")
            rows = results[number * each : (number + 1) * each]
            print(_table(rows, is_moving=bool(arguments.offload)), end="\n\n")
    for path in arguments.output:
        if path.suffix in _TABLES:
            write_text(path, _TABLES[path.suffix](results), force=arguments.force)
        else:
            write_picture(path, plot_slowdowns(results, "Slowdown under a memory budget", programs))


def _bandwidths(text: str) -> tuple[int, int]:
    """Bytes per second out and back."""
    try:
        out, _, back = text.partition(",")
        found = parse_bytes(out), parse_bytes(back or out)
    except ValueError:
        found = 0, 0
    if not all(found):
        raise argparse.ArgumentTypeError(
            f"{text!r}: write bytes per second, as in 50GB, or 50GB,20GB out and back"
        )
    return found


def _table(results: Sequence[Replay], *, is_moving: bool) -> str:
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
    for row, result in zip(rows, results):
        if result.reserved is not None and result.fragmentation is not None:
            row["reserved"] = format_bytes(result.reserved)
            row["fragmentation"] = format_percent(result.fragmentation)
        if is_moving:
            row["brought back"] = format_bytes(result.moved)
            row["waited"] = f"× {result.waited / result.base:.3f}"
    return table(rows, ["deallocation"])
