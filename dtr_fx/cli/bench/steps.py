"""Training steps of models under a number of budgets: planned and measured peak, extra compute, time.

For every budget that works this prints the peak above inputs and parameters, planned and as the allocator
measured it; the extra compute planned, and the time of a step over that of the unrewritten one (the median);
whether outputs, gradients, buffers and random generators came out the same, bit for bit; and the time that
planning took, with the share of the verify pass:

  dtr-fx bench steps zoo:gpt zoo:lstm_cell
  dtr-fx bench steps train.py:make_gpt --arg layers=4 --budgets 60% 8GiB smallest

With --executor inductor the steps are held against those of plain torch.compile: 60% is 60% of the bytes that
Inductor's step may keep above inputs and parameters; the time is the median of pairs of steps; "difference"
is how far the gradients are from plain Inductor's, as a share of their norm, for the parameter where that is
most. Without a budget Inductor's own peak may be above that of the graph as it is traced. Gradients that
differ by more than rounding end it with an error.

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
import statistics
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dtr_fx.cli.arguments import add_heuristic
from dtr_fx.cli.bench import Rows, add_targets, each_target
from dtr_fx.cli.output import tracked
from dtr_fx.cli.targets import load_trainee
from dtr_fx.costs.measure import measure_peak
from dtr_fx.errors import CommandError
from dtr_fx.inspect.table import table
from dtr_fx.planning.options import Budget, Options, parse_budget, resolve_budget
from dtr_fx.units import format_bytes, format_percent

if TYPE_CHECKING:
    from dtr_fx.lab.trainee import Measurement, Trainee

_EAGER = (*(f"{percent}%" for percent in range(90, 0, -10)), "smallest")
_INDUCTOR = ("80%", "60%", "40%")
_WHOLE = "100%"
_SIZES = ("allowed", "planned", "measured")
_REPORTED = ("budget", "baseline_peak", "lower_bound", "constants", "overhead")
# Batch norms over few numbers make some per cent of single precision's rounding; a wrong graph makes 100.
_TOLERANCE = 0.1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_targets(parser)
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument(
        "--executor", choices=("eager", "inductor"), default="eager", help="who runs it (default: eager)"
    )
    mode.add_argument("--dynamic", action="store_true", help="TARGETs return lists of batches")
    about = 'such as 60%%, 8GiB, or "smallest" (default: 90%%, 80%%, ... smallest; each mode has its own)'
    parser.add_argument("--budgets", nargs="+", metavar="BUDGET", help=about)
    add_heuristic(parser, Options.heuristic, default=Options.heuristic)
    parser.add_argument("--planner", choices=("search", "online"), default="search", help="default: search")
    parser.add_argument("--pairs", type=int, metavar="N", help="steps timed (default: 5, with Inductor 21)")


def run(arguments: argparse.Namespace) -> None:
    from dtr_fx.cli.bench import dynamic

    if arguments.dynamic:
        each_target(arguments, dynamic.rows, dynamic.text)
    elif arguments.executor == "inductor":
        each_target(arguments, _beside_inductor, _inductor_text)
    else:
        each_target(arguments, _rows, text)


def _row(asked: str, ours: Measurement, time_ratio: float, **more: object) -> dict[str, Any]:
    """A step under one budget; ``allowed``, ``planned``, ``measured`` leave constants out."""
    report = ours.report
    planning = sum(report.seconds.values())
    return {
        "asked": asked,
        **{name: getattr(report, name) for name in _REPORTED},
        **{name: getattr(ours, name) for name in ("allowed", "planned", "deviation")},
        "measured": ours.peak,
        "time_ratio": time_ratio,
        "planning": planning,
        "verify_share": report.seconds.get("verify", 0.0) / planning if planning else 0.0,
        **more,
    }


def _rows(target: str, arguments: argparse.Namespace) -> Rows:
    from dtr_fx.lab.trainee import SMALLEST

    specs = {
        asked: None if asked == SMALLEST else parse_budget(asked) for asked in arguments.budgets or _EAGER
    }
    trainee = load_trainee(target, **dict(arguments.arg))
    options = Options(heuristic=arguments.heuristic, planner=arguments.planner)
    return rows(trainee, options, specs, arguments.pairs or 5, target)


def rows(
    trainee: Trainee, options: Options, specs: Mapping[str, Budget | None], repeats: int, label: str
) -> Rows:
    """A row for every budget that works, None for the smallest, beside the unrewritten graph."""
    from dtr_fx.lab.trainee import differing, measure, smallest_budget

    base = measure(trainee, options, repeats=repeats)
    smallest = smallest_budget(trainee, options).smallest
    rows = []
    for asked, spec in tracked(label, list(specs.items())):
        budget = smallest if spec is None else resolve_budget(spec, base.report.baseline_peak, trainee.device)
        if budget >= smallest:
            ours = measure(trainee, replace(options, budget=budget), repeats=repeats)
            names = differing(ours.results, base.results)
            ratio = ours.seconds / base.seconds if base.seconds else 0.0
            rows.append(_row(asked, ours, ratio, differing=names, identical=not names))
    return rows


def text(target: str, rows: Rows) -> str:
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
            **{size: format_bytes(row[size]) for size in _SIZES},
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


# Inductor


def _beside_inductor(target: str, arguments: argparse.Namespace) -> Rows:
    """A row without a budget, then one for each in bytes above the ``constants``; beside plain Inductor."""
    from dtr_fx.lab.trainee import measure, time_of_step

    trainee = load_trainee(target, **dict(arguments.arg))
    options = Options(heuristic=arguments.heuristic, planner=arguments.planner, executor="inductor")
    found: Rows = []
    for asked in tracked(target, [_WHOLE, *(arguments.budgets or _INDUCTOR)]):
        budget = bytes_of(asked, found[0]["constants"], found[0]["allowed"]) if found else _WHOLE
        ours, plain = measure(trainee, replace(options, budget=budget)), torch.compile(trainee.model)
        difference = _difference(ours.results[0], trainee.fresh_step(plain))
        trainee.clear_gradients()
        plain_peak = measure_peak(trainee.step, plain, device=trainee.device)
        if not difference <= _TOLERANCE:
            raise CommandError(
                f"at {asked} a gradient is {format_percent(difference)} off plain Inductor's, "
                "which is more than rounding makes; please report it"
            )
        pairs = range(arguments.pairs or 21)
        ratios = [time_of_step(trainee, ours.forward) / time_of_step(trainee, plain) for _ in pairs]
        row = _row(asked, ours, statistics.median(ratios), plain=plain_peak, difference=difference)
        found.append(row)
    return found


def bytes_of(asked: str, constants: int, above: int) -> int:
    """A budget in bytes; a share is one of what a step without a budget may keep above its constants."""
    spec = parse_budget(asked)
    if spec.kind == "auto":
        raise CommandError("a budget here is a share or bytes, not auto")
    return int(spec.value) if spec.kind == "bytes" else constants + int(spec.value * above)


def _difference(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> float:
    """The norm of the difference over that of the gradient, of the parameter where that is most.

    A gradient that is next to nothing counts as a thousandth of the largest: what it has is rounding.
    """
    norms = {name: float(theirs[name].norm()) for name in theirs if name.startswith("gradient")}
    largest = max(norms.values(), default=0.0)
    off = {name: float((ours[name] - theirs[name]).norm()) for name, norm in norms.items() if norm}
    return max((off[name] / max(norms[name], largest / 1000) for name in off), default=0.0)


def _inductor_text(target: str, rows: Rows) -> str:
    over = {_WHOLE: "no limit"}
    cells = [
        {
            "budget": row["asked"],
            **{size: format_bytes(row[size]) for size in _SIZES},
            "within": "yes" if row["measured"] <= row["allowed"] else over.get(row["asked"], "NO"),
            "plain Inductor": format_bytes(row["plain"]),
            "extra compute": format_percent(row["overhead"]),
            "time": f"× {row['time_ratio']:.3f}",
            "difference": f"{row['difference']:.1e}",
        }
        for row in rows
    ]
    return f"{target}\n{table(cells)}"
