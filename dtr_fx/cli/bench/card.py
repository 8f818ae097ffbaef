"""The parts of ``dtr-fx bench device --all`` but for the largest sizes: what is to be known of a card."""

from __future__ import annotations

import concurrent.futures
import functools
import itertools
import multiprocessing
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from dtr_fx.cli.bench import Rows, costs, steps
from dtr_fx.cli.bench.cells import Cell, Cells, Part, instead
from dtr_fx.compiler.backend import dtr
from dtr_fx.errors import CommandError, InfeasibleBudgetError
from dtr_fx.inspect.table import table
from dtr_fx.inspect.views import Report
from dtr_fx.lab import methods, snapshots
from dtr_fx.lab.trainee import Trainee
from dtr_fx.lab.zoo.sized import Subject
from dtr_fx.planning.options import Options, parse_budget
from dtr_fx.units import format_bytes, format_percent, format_seconds

# Of the models so many are looked at more closely, from the first on.
_CLOSER = 4
_BUDGETS = ("100%", "60%", "40%")
_QUALITY_AT = "60%"
_REPEATS = 5
_LIMIT = 600.0  # seconds of the tests
TESTS = Path(__file__).parents[3] / "tests"  # where it runs from a checkout
# What PyTorch reads from the environment, and the requests of a random trace under it.
_SETTINGS = ("", "expandable_segments:True", "max_split_size_mb:32")
_REQUESTS = 2000
_PLANNERS: dict[str, Options] = {
    "online, dtr-eq": Options(planner="online", heuristic="dtr-eq"),
    "online, dtr": Options(planner="online", heuristic="dtr"),
    "online": Options(planner="online"),
    "search, 0.05 s": Options(plan_seconds=0.05),
    "search": Options(),
}


def parts(subjects: Sequence[Subject], device: torch.device) -> list[Part]:
    """In the order in which they are measured."""
    closer = {subject.name: subject for subject in subjects[:_CLOSER]}
    traces = ("random", "step") if device.type == "cuda" else ("random",)
    counts = "allocated", "reserved"

    def trainee(model: str) -> Trainee:
        return Trainee(*methods.made(closer[model], closer[model].start, device))

    models = [(model,) for model in closer]
    return [
        _part("tests", [("gpu",)], _tests, _as_it_is),
        _part("allocator", list(itertools.product(_SETTINGS, traces)), _allocator, _agreement),
        _part(
            "peaks",
            list(itertools.product(closer, _BUDGETS, counts)),
            lambda model, asked, count: _peaks(closer[model], asked, count, device),
            _peak,
        ),
        _part("steps", models, lambda model: _steps(trainee(model), model), _step),
        _part("costs", models, lambda model: [_costs(trainee(model), model)], _cost),
        _part(
            "quality",
            list(itertools.product(closer, _PLANNERS)),
            lambda model, planner: _quality(trainee(model), model, planner),
            _step,
        ),
    ]


def _part(
    name: str,
    cases: Sequence[tuple[str, ...]],
    measure: Callable[..., Rows],
    shown: Callable[[Mapping[str, Any]], Mapping[str, object]],
) -> Part:
    """A part whose text is one table, with a row for each of its cells' rows."""

    def lines(case: tuple[str, ...], cell: Cell | None) -> Iterator[dict[str, object]]:
        label = {"case": ", ".join(filter(None, case)) or "default"}
        rows: Rows = [] if cell is None else cell.rows
        yield from ({**label, **shown(row)} for row in rows)
        if not rows:
            yield {**label, "": instead(cell) or "no plan fits"}

    def text(cells: Cells) -> str:
        found = [line for case in cases for line in lines(case, cells.get((name, *case)))]
        heads = sorted(dict.fromkeys(head for line in found for head in line), key=lambda head: head == "")
        return f"{name}\n{table([{head: line.get(head, '') for head in heads} for line in found])}"

    return Part(name, cases, lambda case, _: measure(*case), text)


def _as_it_is(row: Mapping[str, Any]) -> Mapping[str, object]:
    return row


# Tests


def _tests(_: str) -> Rows:
    """How many of the tests that are marked for a GPU passed, failed and were skipped."""
    marked = [file for file in sorted(TESTS.glob("test_*.py")) if "mark.gpu" in file.read_text("utf-8")]
    if not marked:
        raise CommandError(f"there are no tests in {TESTS}")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "gpu", *map(str, marked)]
    done = subprocess.run(command, cwd=TESTS.parent, capture_output=True, text=True, timeout=_LIMIT)
    lines = (done.stdout.strip() or done.stderr.strip() or "pytest said nothing").splitlines()
    counts = {
        word: int(count) for count, word in re.findall(r"(\d+) (passed|failed|skipped|errors?)", lines[-1])
    }
    if not counts:
        raise CommandError(lines[-1])
    names = [line.split()[1].rpartition("/")[2] for line in lines if line.startswith(("FAILED ", "ERROR "))]
    return [{**dict.fromkeys(("passed", "failed", "skipped"), 0), **counts, "which": ", ".join(names)}]


# The allocator


def _allocator(settings: str, trace: str) -> Rows:
    """PyTorch's allocator against ours on one trace, in a process that has nothing else in it."""
    names = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"  # an older torch knows the second alone
    with mock.patch.dict(os.environ, dict.fromkeys(names, settings) if settings else {}):
        if not settings:
            for name in names:
                os.environ.pop(name, None)
        spawn = multiprocessing.get_context("spawn")
        with concurrent.futures.ProcessPoolExecutor(1, mp_context=spawn) as pool:
            return [asdict(pool.submit(snapshots.trace_of, trace, _REQUESTS).result())]


def _agreement(row: Mapping[str, Any]) -> Mapping[str, object]:
    theirs, ours = row["reserved"]
    return {
        "requests": row["requests"],
        "elsewhere": row["misplaced"],
        "blocks": row["blocks"],
        "differing": row["differing"],
        "reserved": format_bytes(theirs),
        "by our rules": format_bytes(ours),
    }


# Peaks


def _peaks(subject: Subject, asked: str, count: str, device: torch.device) -> Rows:
    """Planned and measured peaks of a step whose budget is of allocated or of reserved bytes, if one fits."""
    reports: list[Report] = []
    options = {"budget": asked, "count": count, "executor": "eager", "on_report": reports.append}
    model, inputs = methods.made(subject, subject.start, device)
    forward = torch.compile(model, backend=functools.partial(dtr, options=options), dynamic=False)
    try:
        trial = methods.tried(model, forward, inputs, subject.start, device)
    except InfeasibleBudgetError:
        return []
    [report] = reports
    planned, measured = [report.planned_peak, report.reserved_peak], [trial.peak, trial.reserved]
    return [{"budget": report.budget, "planned": planned, "measured": measured}]


def _peak(row: Mapping[str, Any]) -> Mapping[str, object]:
    shown = {"budget": format_bytes(row["budget"])}
    for number, what in enumerate(("allocated", "reserved")):
        planned, measured = row["planned"][number], row["measured"][number]
        shown[what] = format_bytes(planned)
        shown[f"{what}, measured"] = format_bytes(measured) if measured else "-"
        shown[f"{what}, off by"] = f"{100 * (measured / planned - 1):+.2f}%" if measured else "-"
    return shown


# Steps, costs and plans


def _steps(trainee: Trainee, model: str) -> Rows:
    budgets = {asked: parse_budget(asked) for asked in _BUDGETS[1:]}
    return steps.rows(trainee, Options(), {**budgets, "smallest": None}, _REPEATS, model)


def _quality(trainee: Trainee, model: str, planner: str) -> Rows:
    budget = {_QUALITY_AT: parse_budget(_QUALITY_AT)}
    return steps.rows(trainee, _PLANNERS[planner], budget, _REPEATS, model)


def _step(row: Mapping[str, Any]) -> Mapping[str, object]:
    return {
        "budget": row["asked"],
        "planned": format_bytes(row["planned"]),
        "measured": format_bytes(row["measured"]),
        "extra compute": format_percent(row["overhead"]),
        "time": f"× {row['time_ratio']:.3f}",
        "identical": "yes" if row["identical"] else f"no: {len(row['differing'])}",
    }


def _costs(trainee: Trainee, model: str) -> dict[str, Any]:
    found = costs.step_costs(model, trainee)
    seconds = {name: found[name] for name in ("roofline", "profile", "graph", "eager")}
    return {**seconds, **asdict(found["fit"])}


def _cost(row: Mapping[str, Any]) -> Mapping[str, object]:
    return {
        **{name: format_seconds(row[name]) for name in ("roofline", "profile", "graph", "eager")},
        "factor": f"× {row['factor']:.2f}",
        "median": f"±{format_percent(row['median'])}",
        "90%": f"±{format_percent(row['ninetieth'])}",
    }
