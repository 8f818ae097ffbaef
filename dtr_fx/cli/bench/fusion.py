"""Which costs tell how long Inductor's steps take: those of its kernels, or those of the operators in them.

TARGETs are those of dtr-fx diff. Plans are made under both costs, for some budgets, and every plan is run.
For each this prints what either expects of it, the extra compute, and the time of a step over that of plain
torch.compile, the median of pairs of steps. Below stand the rank correlations of the expected with the
measured: 1 where the costs put the plans into the right order.

  dtr-fx bench fusion examples/models.py:gpt --budgets 70% 50% 30%
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from tabulate import tabulate

from dtr_fx.cli.bench.inductor import add_step_arguments, bytes_of, measured_step, whole_step
from dtr_fx.cli.progress import progress
from dtr_fx.options import Options
from dtr_fx.passes.costs import apart, of_kernels, roofline
from dtr_fx.runtime.events import COMPUTE, DROP, RECOMPUTE
from dtr_fx.units import format_percent

if TYPE_CHECKING:
    from dtr_fx.cli.bench.inductor import Row
    from dtr_fx.report import Report

_BUDGETS = ("70%", "60%", "50%", "40%")
_KERNELS, _OPERATORS = "kernels", "operators"


@dataclass(frozen=True)
class Plan:
    """One plan: whose costs it was made under, the extra compute by either, and the measured time."""

    made_by: str
    asked: str
    by_kernels: float
    by_operators: float
    time_ratio: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_step_arguments(parser, _BUDGETS, pairs=41)


def run(arguments: argparse.Namespace) -> None:
    results = {target: _plans(target, arguments.budgets, arguments.pairs) for target in arguments.targets}
    if arguments.json:
        print(json.dumps({target: [asdict(plan) for plan in plans] for target, plans in results.items()}))
    else:
        print("\n\n".join(_table(target, plans) for target, plans in results.items()))


def _plans(target: str, budgets: Sequence[str], pairs: int) -> list[Plan]:
    device = torch.get_default_device()
    cost = roofline(device)
    models = {_KERNELS: of_kernels(cost, device), _OPERATORS: apart(cost)}
    steps: list[tuple[str, Row, Report]] = []
    with progress(target, len(models) * len(budgets)) as watch:
        whole = whole_step(target, pairs=1)
        for name, costs in models.items():
            for asked in budgets:
                watch(len(steps))
                options = Options(budget=bytes_of(asked, whole), executor="inductor", costs=costs)
                row, report = measured_step(target, asked, options, pairs)
                steps.append((name, row, report))
    seconds: dict[str, dict[str, float]] = {name: {} for name in models}
    for name, _, report in steps:
        seconds[name].update((event.origin, event.cost) for event in report.events if event.kind != DROP)
    return [
        Plan(
            name,
            row.asked,
            _extra(report, seconds[_KERNELS]),
            _extra(report, seconds[_OPERATORS]),
            row.time_ratio,
        )
        for name, row, report in steps
    ]


def _extra(report: Report, seconds: dict[str, float]) -> float:
    """The extra compute of a plan, with the operators at these seconds."""
    again = sum(seconds.get(event.origin, 0.0) for event in report.events if event.kind == RECOMPUTE)
    return again / sum(seconds.get(event.origin, 0.0) for event in report.events if event.kind == COMPUTE)


def _table(target: str, plans: Sequence[Plan]) -> str:
    cells = [
        {
            "made by costs of": plan.made_by,
            "budget": plan.asked,
            "extra by kernels": format_percent(plan.by_kernels),
            "by operators": format_percent(plan.by_operators),
            "time": f"× {plan.time_ratio:.3f}",
        }
        for plan in plans
    ]
    times = [plan.time_ratio for plan in plans]
    by_kernels = _rank_correlation([plan.by_kernels for plan in plans], times)
    by_operators = _rank_correlation([plan.by_operators for plan in plans], times)
    table = tabulate(cells, headers="keys", disable_numparse=True, colalign=["left", *["right"] * 4])
    return f"{target}\n{table}\nrank correlation: kernels {by_kernels:.2f}, operators {by_operators:.2f}"


def _rank_correlation(expected: Sequence[float], measured: Sequence[float]) -> float:
    """Spearman's: 1 if both are in the same order."""
    first, second = (np.argsort(np.argsort(values)) for values in (expected, measured))
    return float(np.corrcoef(first, second).item(0, 1))
