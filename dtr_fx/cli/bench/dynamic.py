"""Models on batches of many shapes, or of many paths, inside one budget in bytes."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch import nn

from dtr_fx.cli.bench.targets import Rows
from dtr_fx.cli.progress import progress
from dtr_fx.cli.targets import load_target
from dtr_fx.compiler.dispatch import plans
from dtr_fx.compiler.retrace import LivePlan
from dtr_fx.costs.measure import measure_peak
from dtr_fx.errors import CommandError
from dtr_fx.inspect.table import table
from dtr_fx.planning.options import Options
from dtr_fx.torch_private import dynamo_config, dynamo_counters
from dtr_fx.units import format_percent, parse_percent

if TYPE_CHECKING:
    from dtr_fx.lab.trainee import Trainee

_LIMIT = 10_000  # of Dynamo's recompilations
_CALLS = 2000

Batch: TypeAlias = "tuple[Any, ...]"


def rows(
    target: str, settings: Mapping[str, Any], options: Options, shares: Sequence[str], count: int | None
) -> Rows:
    """A row for each share; sizes are bytes, and ``over`` is the largest peak over the budget."""
    torch.manual_seed(0)
    model, batches = load_target(target, **settings)
    if not isinstance(model, nn.Module) or not all(isinstance(batch, tuple) for batch in batches):
        raise CommandError(f"{target}: give a module and a list of batches, each a tuple of arguments")
    chosen = [batch for batch in batches if isinstance(batch, tuple)][:count]
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
    microseconds = found[0]["look_up_us"]
    return (
        f"{target}\n{table(cells)}\n"
        f"a known plan is found in {microseconds:.0f} µs more than a compiled call takes"
    )


def _row(
    label: str, model: nn.Module, batches: Sequence[Batch], share: str, given: Options
) -> dict[str, Any]:
    # Compilation machinery takes seconds to import, which --help need not wait for.
    from dtr_fx.lab.trainee import Trainee, bytes_held

    budget = _budget(model, batches, parse_percent(share))
    _forget()
    options: Any = {
        "budget": budget,
        "planner": given.planner,
        "heuristic": given.heuristic,
        "plans_kept": max(64, len(batches)),
    }
    made: list[LivePlan] = []
    identical, peak, seconds = 0, 0, 0.0
    with dynamo_config.patch(recompile_limit=_LIMIT, accumulated_recompile_limit=_LIMIT):
        ours = torch.compile(model, backend="dtr", options=options)
        with progress(label, 2 * len(batches)) as watch:
            for number, batch in enumerate(batches, 1):
                seconds += _first_steps(Trainee(model, batch), ours, made)
                watch(number)
            compilations = dynamo_counters["stats"]["unique_graphs"]
            plain = torch.compile(model, backend="aot_eager")
            for number, batch in enumerate(batches, len(batches) + 1):
                trainee = Trainee(model, batch)
                peak = max(peak, bytes_held(model, batch) + _peak(trainee, ours))
                identical += _same(trainee, ours, plain)
                watch(number)
    reports = [report for plan in plans() for report in plan.reports]
    planning = sum(plan.planning_seconds for plan in made)
    return {
        "share": share,
        "batches": len(batches),
        "compilations": compilations,
        "plans": len(made),
        "budget": budget,
        "over": peak / budget,
        "overhead": max(report.overhead for report in reports),
        "identical": identical,
        "tracing": seconds - planning,
        "planning": planning,
        "look_up_us": 1e6 * _look_up(),
    }


def _forget() -> None:
    torch.compiler.reset()
    dynamo_counters.clear()


def _budget(model: nn.Module, batches: Sequence[Batch], share: float) -> int:
    from dtr_fx.lab.trainee import Trainee, bytes_held

    largest = max(batches, key=lambda batch: _peak(Trainee(model, batch), model))
    return bytes_held(model, largest) + int(share * _peak(Trainee(model, largest), model))


def _peak(trainee: Trainee, forward: Callable[..., Any]) -> int:
    trainee.restart()
    return measure_peak(lambda: trainee.step(forward))


def _first_steps(trainee: Trainee, forward: Callable[..., Any], made: list[LivePlan]) -> float:
    """The seconds of two steps, after which a budget is divided; ``made`` takes their plans."""
    known = set(map(id, plans()))
    started = time.perf_counter()
    for _ in range(2):
        trainee.restart()
        trainee.step(forward)
    made += [plan for plan in plans() if id(plan) not in known]
    return time.perf_counter() - started


def _same(trainee: Trainee, ours: Callable[..., Any], plain: Callable[..., Any]) -> bool:
    results = []
    for forward in (ours, plain):
        trainee.restart()
        results.append(trainee.results(trainee.step(forward)))
    return all(torch.equal(results[0][name], results[1][name]) for name in results[1])


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
    medians = [sorted(times)[_CALLS // 2] for times in seconds.values()]
    return medians[0] - medians[1]
