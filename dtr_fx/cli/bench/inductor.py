"""Steps that Inductor compiles, under budgets, beside those of plain Inductor."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from dtr_fx.cli.bench.targets import Rows
from dtr_fx.costs.measure import measure_peak
from dtr_fx.errors import CommandError
from dtr_fx.inspect.table import table
from dtr_fx.planning.options import Options, parse_budget
from dtr_fx.units import format_bytes, format_percent

if TYPE_CHECKING:
    from dtr_fx.lab.trainee import Trainee

_WHOLE = "100%"
# Batch norms over few numbers make some per cent of single precision's rounding; a wrong graph makes 100.
_TOLERANCE = 0.1


def rows(
    trainee: Trainee, options: Options, budgets: Sequence[str], pairs: int, watch: Callable[[int], None]
) -> Rows:
    """A row without a budget, then one for each, in bytes above the ``constants``."""
    whole = _row(trainee, options, _WHOLE, 1.0, pairs)
    found = [whole]
    for asked in budgets:
        watch(len(found) - 1)
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
    # Compilation machinery takes seconds to import, which --help need not wait for.
    from dtr_fx.lab.trainee import measure, time_of_step

    ours = measure(trainee, replace(options, budget=budget, executor="inductor"))
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
    least = max(norms.values(), default=0.0) / 1000
    return max(
        (
            float((ours[name] - theirs[name]).norm()) / max(norm, least)
            for name, norm in norms.items()
            if norm
        ),
        default=0.0,
    )


def text(target: str, found: Rows) -> str:
    cells = [
        {
            "budget": row["asked"],
            **{size: format_bytes(row[size]) for size in ("allowed", "planned", "measured")},
            "within": _within(row),
            "plain Inductor": format_bytes(row["plain"]),
            "extra compute": format_percent(row["overhead"]),
            "time": f"× {row['time_ratio']:.3f}",
            "difference": f"{row['difference']:.1e}",
        }
        for row in found
    ]
    return f"{target}\n{table(cells)}"


def _within(row: dict[str, Any]) -> str:
    if row["measured"] <= row["allowed"]:
        return "yes"
    return "no limit" if row["asked"] == _WHOLE else "NO"
