"""Which costs tell how long Inductor's steps take: those of its kernels, or those of the operators in them.

TARGETs are those of dtr-fx diff. For some budgets a plan is made under both costs, and one that counts the
operators that are computed again; then steps of all plans take turns. For each this prints the extra compute
by either costs, and the time of a step over that of plain torch.compile: the median of rounds, on a CPU of
processor time, which is time only with OMP_NUM_THREADS=1. Below stand the rank correlations of the expected
with the measured, over all plans: 1 where the costs put the plans into the right order. "In pairs" counts
two plans for the same budget, and how many of these are in the right order:

  OMP_NUM_THREADS=1 dtr-fx bench fusion examples/models.py:gpt --budgets 70% 50% 30%
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from tabulate import tabulate

from dtr_fx.cli.bench.inductor import add_step_arguments, bytes_of, whole_step
from dtr_fx.cli.progress import progress
from dtr_fx.cli.targets import load_target
from dtr_fx.errors import CommandError, InfeasibleBudgetError, OverBudgetError
from dtr_fx.options import Options
from dtr_fx.passes.costs import Cost, apart, of_kernels, roofline
from dtr_fx.runtime.events import DROP, RECOMPUTE
from dtr_fx.units import format_percent

if TYPE_CHECKING:
    from dtr_fx.bench import Trainee
    from dtr_fx.report import Report

_BUDGETS = ("70%", "60%", "50%", "40%")
_KERNELS, _OPERATORS, _COUNT = "kernels", "operators", "count"
_WARM_UPS = 3


@dataclass(frozen=True)
class Plan:
    """One plan: whose costs it was made under, the extra compute by either, and the measured time."""

    made_by: str
    asked: str
    by_kernels: float
    by_operators: float
    time_ratio: float


@dataclass(frozen=True)
class _Compiled:
    made_by: str
    asked: str
    forward: Callable[..., object]
    report: Report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_step_arguments(parser, _BUDGETS, pairs=41)


def run(arguments: argparse.Namespace) -> None:
    results = {}
    for target in arguments.targets:
        results[target] = plans = _plans(target, arguments.budgets, arguments.pairs)
        if not arguments.json:
            print(_table(target, plans), end="\n\n", flush=True)
    if arguments.json:
        print(json.dumps({target: [asdict(plan) for plan in plans] for target, plans in results.items()}))


def _plans(target: str, budgets: Sequence[str], rounds: int) -> list[Plan]:
    # Compilation machinery takes seconds to import, which --help need not wait for.
    from dtr_fx.bench import Trainee

    whole = whole_step(target, pairs=1)
    torch.manual_seed(0)
    model, inputs = load_target(target)
    assert isinstance(model, torch.nn.Module)  # else there would be no step without a budget
    trainee = Trainee(model, inputs)
    accounts = _accounts(trainee.device)
    cases = list(itertools.product(budgets, accounts))
    torch._dynamo.reset()
    with (
        progress(target, len(cases) + rounds) as watch,
        torch._dynamo.config.patch(recompile_limit=2 * len(cases) + 2),
    ):
        plain = torch.compile(trainee.model)
        compiled = []
        for done, (asked, name) in enumerate(cases):
            watch(done)
            options = Options(budget=bytes_of(asked, whole), executor="inductor", costs=accounts[name])
            try:
                compiled.append(_Compiled(name, asked, *_compile(trainee, options, f"{target} at {asked}")))
            except OverBudgetError as error:
                print(f"left out: the plan by {name} at {asked}: {error}", file=sys.stderr)
        forwards = [plan.forward for plan in compiled]
        ratios = _time_ratios(trainee, plain, forwards, rounds, lambda done: watch(len(cases) + done))
    seconds = {name: _seconds(plan.report for plan in compiled if plan.made_by == name) for name in accounts}
    return [
        Plan(
            plan.made_by,
            plan.asked,
            _extra(plan.report, seconds[_KERNELS]),
            _extra(plan.report, seconds[_OPERATORS]),
            ratio,
        )
        for plan, ratio in zip(compiled, ratios)
    ]


def _accounts(device: torch.device) -> dict[str, Cost]:
    cost = roofline(device)
    return {_KERNELS: of_kernels(cost, device), _OPERATORS: apart(cost), _COUNT: lambda node: 1.0}


def _compile(trainee: Trainee, options: Options, what: str) -> tuple[Callable[..., object], Report]:
    from dtr_fx.backend import dtr

    reports: list[Report] = []
    given = {**vars(options), "on_report": reports.append}
    forward = torch.compile(trainee.model, backend=functools.partial(dtr, options=given))
    try:
        trainee.step(forward)
    except InfeasibleBudgetError as error:
        raise CommandError(f"{what}: {error}") from None
    if len(reports) != 1:
        raise CommandError(f"{what}: {len(reports)} graphs were traced; only a step of one can be measured")
    return forward, reports[0]


def _time_ratios(
    trainee: Trainee,
    plain: Callable[..., object],
    plans: Sequence[Callable[..., object]],
    rounds: int,
    watch: Callable[[int], None],
) -> list[float]:
    """The median time of each plan's step over that of a plain one; all take turns, in any order."""
    from dtr_fx.bench import time_of_step

    clock = time.process_time if trainee.device.type == "cpu" else time.perf_counter
    steps = [plain, *plans]
    shuffled = random.Random(0)
    found: list[list[float]] = [[] for _ in plans]
    for number in range(_WARM_UPS + rounds):
        order = shuffled.sample(range(len(steps)), len(steps))
        times = {which: time_of_step(trainee, steps[which], clock) for which in order}
        if number >= _WARM_UPS:
            for which, ratios in enumerate(found, start=1):
                ratios.append(times[which] / times[0])
            watch(number - _WARM_UPS)
    return list(map(statistics.median, found))


def _seconds(reports: Iterable[Report]) -> dict[str, float]:
    """Seconds of every operator, by name, as those plans count them that were made under the same costs."""
    return {event.origin: event.cost for report in reports for event in report.events if event.kind != DROP}


def _extra(report: Report, seconds: Mapping[str, float]) -> float:
    """The extra compute of a plan, with the operators at these seconds."""
    again = sum(seconds[event.origin] for event in report.events if event.kind == RECOMPUTE)
    return again / sum(seconds.values())


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
    alignment = ["left", *["right"] * (len(cells[0]) - 1)]
    table = tabulate(cells, headers="keys", disable_numparse=True, colalign=alignment)
    accounts = {
        _KERNELS: [plan.by_kernels for plan in plans],
        _OPERATORS: [plan.by_operators for plan in plans],
    }
    return "\n".join([target, table, *(_verdict(name, plans, found) for name, found in accounts.items())])


def _verdict(account: str, plans: Sequence[Plan], expected: Sequence[float]) -> str:
    ranks = _rank_correlation(expected, [plan.time_ratio for plan in plans])
    return f"{account}: rank correlation {ranks:.2f}, in pairs {_right_pairs(plans, expected)}"


def _right_pairs(plans: Sequence[Plan], expected: Sequence[float]) -> str:
    """How many pairs of plans for one budget are in the right order, of those that differ."""
    pairs = [
        (one_expected - other_expected) * (one.time_ratio - other.time_ratio)
        for (one, one_expected), (other, other_expected) in itertools.combinations(zip(plans, expected), 2)
        if one.asked == other.asked and one.time_ratio != other.time_ratio
    ]
    return f"{sum(product > 0 for product in pairs)} of {len(pairs)}"


def _rank_correlation(expected: Sequence[float], measured: Sequence[float]) -> float:
    """Spearman's: 1 if both are in the same order."""
    first, second = (np.argsort(np.argsort(values)) for values in (expected, measured))
    return float(np.corrcoef(first, second).item(0, 1))
