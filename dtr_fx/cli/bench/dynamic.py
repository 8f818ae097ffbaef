"""Models on batches of many shapes, or of many paths, inside one budget in bytes."""

from __future__ import annotations

import argparse
import functools
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from dtr_fx.cli.bench import Rows
from dtr_fx.cli.output import tracked
from dtr_fx.cli.targets import load_target
from dtr_fx.compiler.dispatch import plans
from dtr_fx.compiler.retrace import LivePlan
from dtr_fx.costs.measure import measure_peak
from dtr_fx.errors import CommandError
from dtr_fx.inspect.table import table
from dtr_fx.lab.trainee import Trainee, bytes_held
from dtr_fx.torch_private import dynamo_config, dynamo_counters
from dtr_fx.units import format_percent, parse_percent

_LIMIT = 10_000  # of Dynamo's recompilations
_CALLS = 2000


def rows(target: str, arguments: argparse.Namespace) -> Rows:
    """A row for each share; sizes are bytes, and ``over`` is the largest peak over the budget."""
    torch.manual_seed(0)
    model, batches = load_target(target, **dict(arguments.arg))
    if not isinstance(model, nn.Module) or not all(isinstance(batch, tuple) for batch in batches):
        raise CommandError(f"{target}: give a module and a list of batches, each a tuple of arguments")
    chosen = [batch for batch in batches if isinstance(batch, tuple)]
    kept = max(64, len(chosen))
    options = {"planner": arguments.planner, "heuristic": arguments.heuristic, "plans_kept": kept}
    shares = arguments.budgets or ["70%"]
    return [_row(f"{target} at {share}", model, chosen, share, options) for share in shares]


def text(target: str, found: Rows) -> str:
    cells = [
        {
            "share": row["share"],
            **{what: str(row[what]) for what in ("batches", "compilations", "plans")},
            "peak / budget": format_percent(row["over"]),
            "extra compute": format_percent(row["overhead"]),
            "identical": f"{row['identical']} of {row['batches']}",
            "tracing": f"{row['tracing']:.1f} s",
            "planning": f"{row['planning']:.1f} s, "
            f"{format_percent(row['planning'] / max(row['tracing'], 1e-9))}",
        }
        for row in found
    ]
    look_up = f"a known plan is found in {found[0]['look_up_us']:.0f} µs more than a compiled call takes"
    return f"{target}\n{table(cells)}\n{look_up}"


def _row(
    label: str, model: nn.Module, batches: Sequence[tuple[Any, ...]], share: str, given: dict[str, Any]
) -> dict[str, Any]:
    largest = max(batches, key=lambda batch: _peak(Trainee(model, batch), model))
    above = _peak(Trainee(model, largest), model)
    budget = bytes_held(model, largest) + int(parse_percent(share) * above)
    _forget()
    with dynamo_config.patch(recompile_limit=_LIMIT, accumulated_recompile_limit=_LIMIT):
        ours = torch.compile(model, backend="dtr", options={"budget": budget, **given})
        made, seconds = _first_steps(model, ours, tracked(f"{label}, first steps", batches))
        compilations = dynamo_counters["stats"]["unique_graphs"]
        plain = torch.compile(model, backend="aot_eager")
        peak, identical = _compared(model, ours, plain, tracked(f"{label}, measured", batches))
    planning = sum(plan.planning_seconds for plan in made)
    return {
        "share": share,
        "batches": len(batches),
        "compilations": compilations,
        "plans": len(made),
        "budget": budget,
        "over": peak / budget,
        "overhead": max(report.overhead for plan in plans() for report in plan.reports),
        "identical": identical,
        "tracing": seconds - planning,
        "planning": planning,
        "look_up_us": 1e6 * _look_up(),
    }


def _first_steps(
    model: nn.Module, ours: Callable[..., Any], batches: Iterable[tuple[Any, ...]]
) -> tuple[list[LivePlan], float]:
    """The plans that the first two steps on each batch make, and the seconds that these steps take."""
    made: list[LivePlan] = []
    seconds = 0.0
    for batch in batches:
        trainee, known = Trainee(model, batch), set(map(id, plans()))
        started = time.perf_counter()
        for _ in range(2):  # after which a budget is divided
            trainee.restart()
            trainee.step(ours)
        seconds += time.perf_counter() - started
        made += [plan for plan in plans() if id(plan) not in known]
    return made, seconds


def _compared(
    model: nn.Module,
    ours: Callable[..., Any],
    plain: Callable[..., Any],
    batches: Iterable[tuple[Any, ...]],
) -> tuple[int, int]:
    """The largest peak of ours, in bytes, and the number of batches with the results of plain steps."""
    peak = identical = 0
    for batch in batches:
        trainee = Trainee(model, batch)
        peak = max(peak, bytes_held(model, batch) + _peak(trainee, ours))
        results, expected = (trainee.fresh_step(forward) for forward in (ours, plain))
        identical += all(torch.equal(results[name], expected[name]) for name in expected)
    return peak, identical


def _forget() -> None:
    torch.compiler.reset()
    dynamo_counters.clear()


def _peak(trainee: Trainee, forward: Callable[..., Any]) -> int:
    trainee.restart()
    return measure_peak(trainee.step, forward)


@functools.cache
def _look_up() -> float:
    """Seconds that a call with known sizes takes more than with aot_eager, on the smallest of models."""
    _forget()
    layer, inputs = nn.Linear(2, 2), [torch.randn(rows, 2) for rows in (3, 4, 5)]
    ours = torch.compile(layer, backend="dtr", dynamic=True, options={"budget": 10**6})
    plain = torch.compile(layer, backend="aot_eager", dynamic=True)
    seconds: dict[Any, list[float]] = {ours: [], plain: []}
    for number in range(_CALLS):
        for forward, times in seconds.items():
            started = time.perf_counter()
            forward(inputs[number % 3])
            times.append(time.perf_counter() - started)
    return statistics.median(seconds[ours]) - statistics.median(seconds[plain])
