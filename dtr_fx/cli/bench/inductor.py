"""Steps that Inductor compiles, under budgets: planned and measured peak, and time beside plain Inductor.

TARGETs are those of dtr-fx diff. Without a budget and for each of some this prints the peak above inputs and
parameters, allowed, planned and measured (60% is 60% of these bytes); the extra compute planned; the time of
a step over that of plain torch.compile (the median of pairs of steps); and how far the gradients are from
plain Inductor's: the norm of the difference over that of the gradient, for the parameter where that is most.
Without a budget Inductor's own peak may be above that of the graph as it is traced. Gradients that differ by
more than rounding end it with an error:

  dtr-fx bench inductor zoo:gpt
  dtr-fx bench inductor train.py:make_model --arg layers=4 --budgets 60% 8GiB
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from tabulate import tabulate
from torch import Tensor

from dtr_fx.cli.plans import add_settings
from dtr_fx.cli.progress import progress
from dtr_fx.cli.targets import load_trainee
from dtr_fx.costs.measure import measure_peak
from dtr_fx.errors import CommandError
from dtr_fx.planning.options import Options, parse_budget
from dtr_fx.units import format_bytes, format_percent

if TYPE_CHECKING:
    from dtr_fx.lab.trainee import Trainee

_WHOLE = "100%"
_BUDGETS = ("80%", "60%", "40%")
# Batch norms over few numbers make some per cent of single precision's rounding; a wrong graph makes 100.
_TOLERANCE = 0.1


@dataclass(frozen=True)
class Row:
    """What one budget came to, in bytes above the ``constants``; ``plain`` is the peak of plain Inductor.

    ``difference`` is between the gradients and plain Inductor's (see ``_difference``).
    """

    asked: str
    constants: int
    allowed: int
    planned: int
    measured: int
    plain: int
    overhead: float
    time_ratio: float
    difference: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_step_arguments(parser, _BUDGETS, pairs=21)


def add_step_arguments(parser: argparse.ArgumentParser, budgets: Sequence[str], *, pairs: int) -> None:
    """Whose steps are measured, under which budgets, and how often."""
    parser.add_argument(
        "targets", nargs="+", metavar="TARGET", help="package.module:factory or path/to/file.py:factory"
    )
    add_settings(parser)
    parser.add_argument(
        "--budgets", nargs="+", default=budgets, metavar="BUDGET", help="default: %(default)s"
    )
    parser.add_argument(
        "--pairs", type=int, default=pairs, metavar="N", help="steps timed (default: %(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object with rows for each target")


def run(arguments: argparse.Namespace) -> None:
    results: dict[str, list[dict[str, Any]]] = {}
    for target in arguments.targets:
        trainee = load_trainee(target, **dict(arguments.arg))
        with progress(target, 1 + len(arguments.budgets)) as watch:
            rows = _rows(trainee, arguments.budgets, arguments.pairs, watch)
        if arguments.json:
            results[target] = [asdict(row) for row in rows]
        else:
            print(_table(target, rows), end="\n\n", flush=True)
    if arguments.json:
        print(json.dumps(results, indent=1))


def _rows(trainee: Trainee, budgets: Iterable[str], pairs: int, watch: Callable[[int], None]) -> list[Row]:
    """One without a budget, then one for each."""
    whole = _row(trainee, _WHOLE, 1.0, pairs)
    rows = [whole]
    for asked in budgets:
        watch(len(rows))
        rows.append(_row(trainee, asked, bytes_of(asked, whole.constants, whole.allowed), pairs))
    return rows


def bytes_of(asked: str, constants: int, above: int) -> int:
    """A budget in bytes; a share is one of what a step without a budget may keep above its constants."""
    spec = parse_budget(asked)
    if spec.kind == "auto":
        raise CommandError("a budget here is a share or bytes, not auto")
    return int(spec.value) if spec.kind == "bytes" else constants + int(spec.value * above)


def _row(trainee: Trainee, asked: str, budget: float | int, pairs: int) -> Row:
    """Steps under a budget, held against plain Inductor's."""
    # Compilation machinery takes seconds to import, which --help need not wait for.
    from dtr_fx.lab.trainee import measure, time_of_step

    ours = measure(trainee, Options(budget=budget, executor="inductor"))
    plain = torch.compile(trainee.model)
    trainee.restart()
    plain_results = trainee.results(trainee.step(plain))
    trainee.clear_gradients()
    plain_peak = measure_peak(lambda: trainee.step(plain), device=trainee.device)
    difference = _difference(ours.results[0], plain_results)
    if not difference <= _TOLERANCE:
        raise CommandError(
            f"at {asked} a gradient is {format_percent(difference)} off plain Inductor's, "
            "which is more than rounding makes; please report it"
        )
    return Row(
        asked=asked,
        constants=ours.report.constants,
        allowed=ours.allowed,
        planned=ours.planned,
        measured=ours.peak,
        plain=plain_peak,
        overhead=ours.report.overhead,
        time_ratio=statistics.median(
            time_of_step(trainee, ours.forward) / time_of_step(trainee, plain) for _ in range(pairs)
        ),
        difference=difference,
    )


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
            "within": "yes" if row.measured <= row.allowed else "NO" if row.asked != _WHOLE else "no limit",
            "plain Inductor": format_bytes(row.plain),
            "extra compute": format_percent(row.overhead),
            "time": f"× {row.time_ratio:.3f}",
            "difference": f"{row.difference:.1e}",
        }
        for row in rows
    ]
    alignment = ["left", *["right"] * (len(cells[0]) - 1)]
    return f"{target}\n{tabulate(cells, headers='keys', disable_numparse=True, colalign=alignment)}"
