"""Steps that Inductor compiles, under budgets: planned and measured peak, and time beside plain Inductor.

TARGETs are those of dtr-fx diff. For every budget this prints the peak above inputs and parameters, allowed,
planned and measured; the extra compute planned; the time of a step over that of plain torch.compile (the
median of pairs of steps); and how far the gradients are from plain Inductor's: the norm of the difference
over that of the gradient, for the parameter where that is most.  100% sets no limit: Inductor's own peak may
be above that of the graph as it is traced.  Gradients that differ by more than rounding end it with an error:

  dtr-fx bench inductor examples/models.py:gpt
  dtr-fx bench inductor train.py:make_model --budgets 100% 60% 8GiB
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from tabulate import tabulate
from torch import Tensor
from torch._dynamo.exc import BackendCompilerFailed

from dtr_fx.cli.progress import progress
from dtr_fx.cli.targets import load_target
from dtr_fx.errors import CommandError, DTRError
from dtr_fx.measure import measure_peak
from dtr_fx.options import Options
from dtr_fx.report import Report
from dtr_fx.units import format_bytes, format_percent

if TYPE_CHECKING:
    from dtr_fx.bench import Trainee

_BUDGETS = ("100%", "80%", "60%", "40%")
# Batch norms over few numbers make some per cent of single precision's rounding; a wrong graph makes 100.
_TOLERANCE = 0.1


@dataclass(frozen=True)
class Row:
    """What one budget came to, in bytes above inputs and parameters; ``plain`` is the peak without a budget.

    ``difference`` is between the gradients and plain Inductor's (see ``_difference``).
    """

    asked: str
    allowed: int
    planned: int
    measured: int
    plain: int
    overhead: float
    time_ratio: float
    difference: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "targets", nargs="+", metavar="TARGET", help="package.module:factory or path/to/file.py:factory"
    )
    parser.add_argument(
        "--budgets", nargs="+", default=_BUDGETS, metavar="BUDGET", help="default: %(default)s"
    )
    parser.add_argument(
        "--pairs", type=int, default=21, metavar="N", help="steps timed (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object with rows for each target")


def run(arguments: argparse.Namespace) -> None:
    results: dict[str, list[dict[str, Any]]] = {}
    for target in arguments.targets:
        rows = []
        with progress(target, len(arguments.budgets)) as watch:
            for number, budget in enumerate(arguments.budgets, start=1):
                rows.append(_row(target, budget, arguments.pairs))
                watch(number)
        if arguments.json:
            results[target] = [asdict(row) for row in rows]
        else:
            print(_table(target, rows), end="\n\n", flush=True)
    if arguments.json:
        print(json.dumps(results, indent=1))


def _row(target: str, budget: str, pairs: int) -> Row:
    # Compilation machinery takes seconds to import, which --help need not wait for.
    from dtr_fx.backend import dtr
    from dtr_fx.bench import Trainee, time_of_step

    torch.manual_seed(0)
    model, inputs = load_target(target)
    if not isinstance(model, torch.nn.Module):
        raise CommandError(f"{target}: a function has no parameters to train; give a module")
    trainee = Trainee(model, inputs)
    reports: list[Report] = []
    options = vars(Options(budget=budget, executor="inductor", on_report=reports.append))
    torch._dynamo.reset()
    plain, ours = torch.compile(model), torch.compile(model, backend=functools.partial(dtr, options=options))
    plain_results, plain_peak = _measure(trainee, plain)
    try:
        results, peak = _measure(trainee, ours)
    except BackendCompilerFailed as failure:
        if isinstance(failure.inner_exception, DTRError):
            raise CommandError(f"{target} at {budget}: {failure.inner_exception}") from None
        raise
    if len(reports) != 1:
        raise CommandError(
            f"{target}: {len(reports)} graphs were traced; only the step of a single one can be measured"
        )
    [report] = reports
    difference = _difference(results, plain_results)
    if not difference <= _TOLERANCE:
        raise CommandError(
            f"{target} at {budget}: a gradient is {format_percent(difference)} off plain Inductor's, "
            "which is more than rounding makes; please report it"
        )
    return Row(
        asked=budget,
        allowed=report.budget - report.constants,
        planned=report.planned_peak - report.constants,
        measured=peak,
        plain=plain_peak,
        overhead=report.overhead,
        time_ratio=statistics.median(
            time_of_step(trainee, ours) / time_of_step(trainee, plain) for _ in range(pairs)
        ),
        difference=difference,
    )


def _measure(trainee: Trainee, forward: Callable[..., Any]) -> tuple[Mapping[str, Tensor], int]:
    """What a step leaves behind, and the peak of a second one."""
    trainee.restart()
    results = trainee.results(trainee.step(forward))
    trainee.clear_gradients()
    peak = measure_peak(lambda: trainee.step(forward), device=trainee.device)
    return results, peak


def _difference(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> float:
    """The norm of the difference over that of the gradient, of the parameter where that is most.

    A gradient that is next to nothing counts as a thousandth of the largest: what it has is rounding.
    """
    norms = {name: float(theirs[name].norm()) for name in theirs if name.startswith("gradient")}
    least = max(norms.values(), default=0.0) / 1000
    return max(
        (
            float((ours[name] - theirs[name]).norm()) / max(norm, least)
            for name, norm in norms.items()
            if norm
        ),
        default=0.0,
    )


def _table(target: str, rows: list[Row]) -> str:
    cells = [
        {
            "budget": row.asked,
            "allowed": format_bytes(row.allowed),
            "planned": format_bytes(row.planned),
            "measured": format_bytes(row.measured),
            "within": "yes" if row.measured <= row.allowed else "NO" if row.asked != "100%" else "no limit",
            "plain Inductor": format_bytes(row.plain),
            "extra compute": format_percent(row.overhead),
            "time": f"× {row.time_ratio:.3f}",
            "difference": f"{row.difference:.1e}",
        }
        for row in rows
    ]
    alignment = ["left", *["right"] * (len(cells[0]) - 1)]
    return f"{target}\n{tabulate(cells, headers='keys', disable_numparse=True, colalign=alignment)}"
