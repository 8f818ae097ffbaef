"""Models on batches of many shapes, or of many paths, inside one budget in bytes.

A TARGET returns a model and a list of its batches, each a tuple of arguments.  The budget is the parameters,
the largest batch and a share of the largest peak that a step has above them in eager mode.  Every batch takes
two steps, by which it is traced and planned, and others, which are measured and held against aot_eager, bit
for bit.  Printed are Dynamo's compilations, the plans, the largest peak over the budget, the extra compute of
the most expensive plan, the seconds of first steps but for planning, those of planning, and at last what it
takes to find a known plan again:

  dtr-fx bench dynamic examples/dynamic.py:gpt_batches examples/dynamic.py:broken_batches --shares 70% 50%
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch
from tabulate import tabulate
from torch import Tensor, nn

from dtr_fx.cli.progress import progress
from dtr_fx.cli.targets import load_target
from dtr_fx.compiler.registry import LivePlan, plans
from dtr_fx.costs.measure import measure_peak
from dtr_fx.errors import CommandError
from dtr_fx.units import format_percent, parse_percent

if TYPE_CHECKING:
    from dtr_fx.lab.trainee import Trainee

_LIMIT = 10_000  # of Dynamo's recompilations
_CALLS = 2000


@dataclass(frozen=True)
class Row:
    """What one share came to; sizes are bytes, and ``over`` is the largest peak over the budget."""

    share: str
    batches: int
    compilations: int
    plans: int
    budget: int
    over: float
    overhead: float
    identical: int
    tracing: float
    planning: float

    def cells(self) -> tuple[str, ...]:
        return (
            self.share,
            str(self.batches),
            str(self.compilations),
            str(self.plans),
            format_percent(self.over),
            format_percent(self.overhead),
            f"{self.identical} of {self.batches}",
            f"{self.tracing:.1f} s",
            f"{self.planning:.1f} s, {format_percent(self.planning / max(self.tracing, 1e-9))}",
        )


_HEADERS = (
    "share", "batches", "compilations", "plans", "peak / budget", "extra compute", "identical", "tracing",
    "planning",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "targets", nargs="+", metavar="TARGET", help="package.module:factory or path/to/file.py:factory"
    )
    parser.add_argument("--shares", nargs="+", default=("70%",), metavar="SHARE", help="default: %(default)s")
    parser.add_argument("--batches", type=int, metavar="N", help="the first so many (default: all)")
    parser.add_argument("--planner", choices=("search", "online"), default="search")
    parser.add_argument("--json", action="store_true", help="print a JSON object with rows for each target")


def run(arguments: argparse.Namespace) -> None:
    results: dict[str, list[dict[str, Any]]] = {}
    for target in arguments.targets:
        rows = [_row(target, share, arguments) for share in arguments.shares]
        results[target] = [asdict(row) for row in rows]
        if not arguments.json:
            print(f"{target}\n")
            print(
                tabulate([row.cells() for row in rows], headers=_HEADERS, disable_numparse=True), end="\n\n"
            )
    microseconds = 1e6 * _look_up()
    if arguments.json:
        print(json.dumps({"targets": results, "look_up_us": microseconds}, indent=1))
    else:
        print(f"a known plan is found in {microseconds:.0f} µs more than a compiled call takes")


def _row(target: str, share: str, arguments: argparse.Namespace) -> Row:
    model, batches = _load(target)
    batches = batches[: arguments.batches]
    budget = _budget(model, batches, parse_percent(share))
    _forget()
    options: Any = {"budget": budget, "planner": arguments.planner, "plans_kept": max(64, len(batches))}
    made: list[LivePlan] = []
    identical, peak, seconds = 0, 0, 0.0
    with torch._dynamo.config.patch(recompile_limit=_LIMIT, accumulated_recompile_limit=_LIMIT):
        ours = torch.compile(model, backend="dtr", options=options)
        with progress(f"{target} at {share}", 2 * len(batches)) as watch:
            for number, batch in enumerate(batches, start=1):
                seconds += _first_steps(_trainee(model, batch), ours, made)
                watch(number)
            compilations = torch._dynamo.utils.counters["stats"]["unique_graphs"]
            plain = torch.compile(model, backend="aot_eager")
            for number, batch in enumerate(batches, start=len(batches) + 1):
                trainee = _trainee(model, batch)
                peak = max(peak, _held(model, batch) + _peak(trainee, ours))
                identical += _same(trainee, ours, plain)
                watch(number)
    reports = [report for plan in plans() for report in plan.reports]
    planning = sum(plan.planning_seconds for plan in made)
    return Row(
        share=share,
        batches=len(batches),
        compilations=compilations,
        plans=len(made),
        budget=budget,
        over=peak / budget,
        overhead=max(report.overhead for report in reports),
        identical=identical,
        tracing=seconds - planning,
        planning=planning,
    )


def _load(target: str) -> tuple[nn.Module, Sequence[tuple[Any, ...]]]:
    torch.manual_seed(0)
    model, batches = load_target(target)
    if not isinstance(model, nn.Module) or not all(isinstance(batch, tuple) for batch in batches):
        raise CommandError(f"{target}: give a module and a list of batches, each a tuple of arguments")
    return model, [batch for batch in batches if isinstance(batch, tuple)]


def _trainee(model: nn.Module, batch: tuple[Any, ...]) -> Trainee:
    # Compilation machinery takes seconds to import, which --help need not wait for.
    from dtr_fx.lab.trainee import Trainee

    return Trainee(model, batch)


def _forget() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()


def _budget(model: nn.Module, batches: Sequence[tuple[Any, ...]], share: float) -> int:
    largest = max(batches, key=lambda batch: _peak(_trainee(model, batch), model))
    return _held(model, largest) + int(share * _peak(_trainee(model, largest), model))


def _held(model: nn.Module, batch: tuple[Any, ...]) -> int:
    given = (value for value in batch if isinstance(value, Tensor))
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers(), *given))


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
