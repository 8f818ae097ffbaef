"""Costs of kernels and of the operators in them, held against the time of Inductor's steps."""

from __future__ import annotations

import argparse
import itertools
import random
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch

from dtr_fx.cli.bench import Rows
from dtr_fx.cli.bench.steps import bytes_of
from dtr_fx.cli.output import tracked
from dtr_fx.cli.targets import load_trainee
from dtr_fx.costs.kernels import apart, of_kernels
from dtr_fx.costs.roofline import Cost, roofline
from dtr_fx.errors import CommandError, OverBudgetError
from dtr_fx.inspect.table import table
from dtr_fx.lab.trainee import Trainee, first_step, time_of_step
from dtr_fx.planning.options import Options
from dtr_fx.report import Report
from dtr_fx.runtime.steps import DROP
from dtr_fx.torch_private import dynamo_config
from dtr_fx.units import format_percent

_ACCOUNTS = "kernels", "operators"
_WARM_UPS = 3


def rows(target: str, arguments: argparse.Namespace) -> Rows:
    """Plans, whose costs each was made under, the extra compute by either, and the measured time."""
    trainee = load_trainee(target, **dict(arguments.arg))
    cost = roofline(trainee.device)
    costs: dict[str, Cost] = {
        "kernels": of_kernels(cost, trainee.device),
        "operators": apart(cost),
        "count": lambda node: 1.0,
    }
    cases = list(itertools.product(arguments.budgets, costs))
    torch.compiler.reset()
    with dynamo_config.patch(recompile_limit=2 * len(cases) + 4):
        plain = torch.compile(trainee.model)
        plans = list(_plans(trainee, costs, tracked(target, cases)))
        if not plans:
            raise CommandError("no plan is within its budget as Inductor compiles it")
        rounds = tracked(f"{target}, timed", range(_WARM_UPS + arguments.pairs))
        ratios = _ratios(trainee, [plain, *(plan.forward for plan in plans)], rounds)
    seconds = {account: _seconds(account, plans) for account in _ACCOUNTS}
    return [
        {
            "made_by": plan.made_by,
            "asked": plan.asked,
            **{f"by_{account}": _extra(plan.report, seconds[account]) for account in _ACCOUNTS},
            "time_ratio": ratio,
        }
        for plan, ratio in zip(plans, ratios)
    ]


class _Compiled(NamedTuple):
    """A step that Inductor compiled for a budget, and the name of the costs that its plan was made by."""

    made_by: str
    asked: str
    report: Report
    forward: Callable[..., object]


def _plans(
    trainee: Trainee, costs: Mapping[str, Cost], cases: Iterable[tuple[str, str]]
) -> Iterator[_Compiled]:
    """The plans for budgets by the costs of a name that keep their budgets as Inductor compiles them."""
    _, whole, _ = first_step(trainee, Options(executor="inductor"))
    for asked, name in cases:
        budget = bytes_of(asked, whole.constants, whole.budget - whole.constants)
        try:
            options = Options(budget=budget, executor="inductor", costs=costs[name])
            forward, report, _ = first_step(trainee, options)
        except OverBudgetError as error:
            print(f"left out: the plan by {name} at {asked}: {error}", file=sys.stderr)
        else:
            yield _Compiled(name, asked, report, forward)


def _seconds(account: str, plans: Sequence[_Compiled]) -> dict[str, float]:
    """Of every operator, by name, as the plans count them that were made under these costs."""
    events = (event for plan in plans if plan.made_by == account for event in plan.report.events)
    return {event.origin: event.cost for event in events if event.kind != DROP}


def _ratios(trainee: Trainee, steps: Sequence[Callable[..., object]], rounds: Iterable[int]) -> list[float]:
    """The median time of each step over that of the first, which is plain; all take turns, in any order."""
    clock = time.process_time if trainee.device.type == "cpu" else time.perf_counter
    shuffled = random.Random(0)
    found: list[list[float]] = []
    for _ in rounds:
        order = shuffled.sample(range(len(steps)), len(steps))
        times = {which: time_of_step(trainee, steps[which], clock) for which in order}
        found.append([times[which] / times[0] for which in range(1, len(steps))])
    return list(map(statistics.median, zip(*found[_WARM_UPS:])))


def _extra(report: Report, seconds: Mapping[str, float]) -> float:
    """The extra compute of a plan, with the operators at these seconds."""
    runs = Counter(event.origin for event in report.events if event.kind != DROP)
    once = sum(seconds[name] for name in runs)
    return sum(seconds[name] * count for name, count in runs.items()) / once - 1


def text(target: str, plans: Rows) -> str:
    cells = [
        {
            "made by costs of": plan["made_by"],
            "budget": plan["asked"],
            "extra by kernels": format_percent(plan["by_kernels"]),
            "by operators": format_percent(plan["by_operators"]),
            "time": f"× {plan['time_ratio']:.3f}",
        }
        for plan in plans
    ]
    return "\n".join([target, table(cells), *(_verdict(account, plans) for account in _ACCOUNTS)])


def _verdict(account: str, plans: Rows) -> str:
    """How well the expected order of the plans is that of the measured times, in all, and for one budget."""
    by = f"by_{account}"
    expected, measured = ([plan[value] for plan in plans] for value in (by, "time_ratio"))
    if len(set(expected)) == 1:
        return f"{account}: all plans are expected to take the same time"
    ranks = np.corrcoef(_ranks(expected), _ranks(measured)).item(0, 1)
    pairs = [
        (one[by] - other[by]) * (one["time_ratio"] - other["time_ratio"]) > 0
        for one, other in itertools.combinations(plans, 2)
        if one["asked"] == other["asked"] and one[by] != other[by]
    ]
    return f"{account}: rank correlation {ranks:.2f}, in pairs {sum(pairs)} of {len(pairs)}"


def _ranks(values: Sequence[float]) -> np.ndarray:
    """Twice the ranks; equal values share theirs."""
    column = np.array(values)[:, None]
    return np.asarray((column > values).sum(1) + (column >= values).sum(1))
