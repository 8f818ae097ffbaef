"""Training steps of models under a number of budgets: planned and measured peak, extra compute, time.

For every budget that works this prints the peak above inputs and parameters, planned and as the allocator
measured it; the extra compute planned, and the time of a step over that of the unrewritten one (the median);
whether outputs, gradients, buffers and random generators came out the same, bit for bit; and the time that
planning took, with the share of the verify pass:

  dtr-fx bench steps zoo:gpt zoo:lstm_cell
  dtr-fx bench steps train.py:make_gpt --arg layers=4 --budgets 60% 8GiB smallest

With --executor inductor the steps are held against those of plain torch.compile: 60% is 60% of the bytes that
Inductor's step may keep above inputs and parameters; the time is the median of pairs of steps; and
"difference" is how far the gradients are from plain Inductor's, the norm of the difference over that of the
gradient, for the parameter where that is most. Without a budget Inductor's own peak may be above that of the
graph as it is traced. Gradients that differ by more than rounding end it with an error.

With --dynamic a TARGET returns a model and a list of its batches, of many shapes or paths, each a tuple of
arguments. The budget is the parameters, the largest batch and a share of the largest peak that a step has
above them in eager mode. Every batch takes two steps, by which it is traced and planned, and others, which
are measured and held against aot_eager, bit for bit. Printed are Dynamo's compilations, the plans, the
largest peak over the budget, the extra compute of the most expensive plan, the seconds of first steps but for
planning, those of planning, and at last what it takes to find a known plan again:

  dtr-fx bench steps examples/dynamic.py:gpt_batches --dynamic --budgets 70% 50%
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from dtr_fx.cli.bench.targets import Rows, add_targets, each_target
from dtr_fx.cli.progress import tracked
from dtr_fx.cli.targets import load_trainee
from dtr_fx.inspect.table import table
from dtr_fx.planning.options import Options, parse_budget, resolve_budget
from dtr_fx.runtime import HEURISTICS
from dtr_fx.units import format_bytes, format_percent

if TYPE_CHECKING:
    from dtr_fx.lab.trainee import Measurement

_BUDGETS = {
    "eager": (*(f"{percent}%" for percent in range(90, 0, -10)), "smallest"),
    "inductor": ("80%", "60%", "40%"),
    "dynamic": ("70%",),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_targets(parser)
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument(
        "--executor", choices=("eager", "inductor"), default="eager", help="who runs it (default: eager)"
    )
    mode.add_argument("--dynamic", action="store_true", help="TARGETs return lists of batches")
    parser.add_argument(
        "--budgets",
        nargs="+",
        metavar="BUDGET",
        help='such as 60%%, 8GiB, or "smallest" (default: 90%%, 80%%, ... and the smallest that works; with '
        "Inductor 80%% 60%% 40%%; of batches 70%%)",
    )
    parser.add_argument(
        "--heuristic",
        choices=tuple(HEURISTICS),
        default=Options.heuristic,
        metavar="NAME",
        help=f"how values to drop are chosen: {', '.join(HEURISTICS)} (default: %(default)s)",
    )
    parser.add_argument("--planner", choices=("search", "online"), default="search", help="default: search")
    parser.add_argument("--pairs", type=int, metavar="N", help="steps timed (default: 5, with Inductor 21)")


def run(arguments: argparse.Namespace) -> None:
    """Carry out the command."""
    # Compilation machinery takes seconds to import, which --help need not wait for.
    from dtr_fx.cli.bench import dynamic, inductor

    settings = dict(arguments.arg)
    options = Options(heuristic=arguments.heuristic, planner=arguments.planner)
    mode = "dynamic" if arguments.dynamic else arguments.executor
    budgets = arguments.budgets or _BUDGETS[mode]
    modes: dict[str, tuple[Callable[..., Rows], Callable[[str, Rows], str]]] = {
        "eager": (partial(_rows, repeats=arguments.pairs or 5), _text),
        "inductor": (partial(inductor.rows, pairs=arguments.pairs or 21), inductor.text),
        "dynamic": (partial(dynamic.rows, count=None), dynamic.text),
    }
    rows, text = modes[mode]
    each_target(arguments, lambda target: rows(target, settings, options, budgets), text)


def _rows(
    target: str, settings: Mapping[str, Any], options: Options, budgets: Sequence[str], *, repeats: int
) -> Rows:
    """A row for every budget that works."""
    from dtr_fx.lab.trainee import SMALLEST, measure, smallest_budget

    specs = [(asked, None if asked == SMALLEST else parse_budget(asked)) for asked in budgets]
    trainee = load_trainee(target, **settings)
    base = measure(trainee, replace(options, budget=1.0), repeats=repeats)
    smallest = smallest_budget(trainee, options).smallest
    rows = []
    for asked, spec in tracked(target, specs):
        budget = smallest if spec is None else resolve_budget(spec, base.report.baseline_peak, trainee.device)
        if budget >= smallest:
            ours = measure(trainee, replace(options, budget=budget), repeats=repeats)
            rows.append({"asked": asked, **_row(ours, base)})
    return rows


def _row(ours: Measurement, base: Measurement) -> dict[str, object]:
    """One budget beside the unrewritten graph; ``allowed``, ``planned``, ``measured`` leave constants out."""
    from dtr_fx.lab.trainee import differing

    report, names = ours.report, differing(ours.results, base.results)
    planning = sum(report.seconds.values())
    return {
        "budget": report.budget,
        "baseline_peak": report.baseline_peak,
        "lower_bound": report.lower_bound,
        "constants": report.constants,
        "allowed": ours.allowed,
        "planned": ours.planned,
        "measured": ours.peak,
        "deviation": ours.deviation,
        "overhead": report.overhead,
        "time_ratio": ours.seconds / base.seconds if base.seconds else 0.0,
        "differing": names,
        "identical": not names,
        "planning": planning,
        "verify_share": report.seconds.get("verify", 0.0) / planning if planning else 0.0,
    }


def _text(target: str, rows: Rows) -> str:
    if not rows:
        return f"{target}: none of these budgets works"
    peak, bound, constants = (rows[0][name] for name in ("baseline_peak", "lower_bound", "constants"))
    title = (
        f"{target}: peak {format_bytes(peak)}, {format_bytes(constants)} of it inputs and parameters; "
        f"no plan can do with less than {format_percent(bound / peak)}"
    )
    cells = [
        {
            "budget": row["asked"],
            "of peak": format_percent(row["budget"] / peak),
            **{size: format_bytes(row[size]) for size in ("allowed", "planned", "measured")},
            "off by": f"{100 * row['deviation']:+.2f}%",
            "extra compute": format_percent(row["overhead"]),
            "time": f"× {row['time_ratio']:.2f}",
            "identical": "yes" if row["identical"] else f"no: {len(row['differing'])}, {row['differing'][0]}",
            "planning": f"{1e3 * row['planning']:.0f} ms",
            "verify": format_percent(row["verify_share"]),
        }
        for row in rows
    ]
    return f"{title}\n{table(cells)}"
