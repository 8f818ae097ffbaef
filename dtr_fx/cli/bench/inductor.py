"""Steps that Inductor compiles, under budgets, beside those of plain Inductor."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from dtr_fx.cli.bench.targets import Rows
from dtr_fx.cli.progress import tracked
from dtr_fx.cli.targets import load_trainee
from dtr_fx.costs.measure import measure_peak
from dtr_fx.errors import CommandError
from dtr_fx.inspect.table import table
from dtr_fx.lab.trainee import Trainee, measure, time_of_step
from dtr_fx.planning.options import Options, parse_budget
from dtr_fx.units import format_bytes, format_percent

_WHOLE = "100%"
_OVER = {_WHOLE: "no limit"}
# Batch norms over few numbers make some per cent of single precision's rounding; a wrong graph makes 100.
_TOLERANCE = 0.1


def rows(
    target: str, settings: Mapping[str, Any], options: Options, budgets: Sequence[str], *, pairs: int
) -> Rows:
    """A row without a budget, then one for each, in bytes above the ``constants``."""
    trainee = load_trainee(target, **settings)
    whole = _row(trainee, options, _WHOLE, 1.0, pairs)
    found = [whole]
    for asked in tracked(target, budgets):
        budget = bytes_of(asked, whole["constants"], whole["allowed"])
        found.append(_row(trainee, options, asked, budget, pairs))
    return found


def bytes_of(asked: str, constants: int, above: int) -> int:
    """A budget in bytes; a share is one of what a step without a budget may keep above its constants."""
    spec = parse_budget(asked)
    if spec.kind == "auto":
        raise CommandError("a budget here is a share or bytes, not auto")
    return int(spec.value) if spec.kind == "bytes" else constants + int(spec.value * above)


def _row(trainee: Trainee, options: Options, asked: str, budget: float | int, pairs: int) -> dict[str, Any]:
    """Steps under a budget, held against plain Inductor's."""
    ours = measure(trainee, replace(options, budget=budget, executor="inductor"))
    plain = torch.compile(trainee.model)
    plain_results = trainee.fresh_step(plain)
    trainee.clear_gradients()
    plain_peak = measure_peak(lambda: trainee.step(plain), device=trainee.device)
    difference = _difference(ours.results[0], plain_results)
    if not difference <= _TOLERANCE:
        raise CommandError(
            f"at {asked} a gradient is {format_percent(difference)} off plain Inductor's, "
            "which is more than rounding makes; please report it"
        )
    return {
        "asked": asked,
        "constants": ours.report.constants,
        "allowed": ours.allowed,
        "planned": ours.planned,
        "measured": ours.peak,
        "plain": plain_peak,
        "overhead": ours.report.overhead,
        "time_ratio": statistics.median(
            time_of_step(trainee, ours.forward) / time_of_step(trainee, plain) for _ in range(pairs)
        ),
        "difference": difference,
    }


def _difference(ours: Mapping[str, Tensor], theirs: Mapping[str, Tensor]) -> float:
    """The norm of the difference over that of the gradient, of the parameter where that is most.

    A gradient that is next to nothing counts as a thousandth of the largest: what it has is rounding.
    """
    norms = {name: float(theirs[name].norm()) for name in theirs if name.startswith("gradient")}
    largest = max(norms.values(), default=0.0)
    off = {name: float((ours[name] - theirs[name]).norm()) for name, norm in norms.items() if norm}
    return max((off[name] / max(norms[name], largest / 1000) for name in off), default=0.0)


def text(target: str, found: Rows) -> str:
    cells = [
        {
            "budget": row["asked"],
            **{size: format_bytes(row[size]) for size in ("allowed", "planned", "measured")},
            "within": "yes" if row["measured"] <= row["allowed"] else _OVER.get(row["asked"], "NO"),
            "plain Inductor": format_bytes(row["plain"]),
            "extra compute": format_percent(row["overhead"]),
            "time": f"× {row['time_ratio']:.3f}",
            "difference": f"{row['difference']:.1e}",
        }
        for row in found
    ]
    return f"{target}\n{table(cells)}"
