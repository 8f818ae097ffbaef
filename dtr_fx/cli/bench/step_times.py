"""The time of a step as plans tell it, held against steps that are run, all in turns."""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from dtr_fx.cli.bench import Rows
from dtr_fx.cli.output import tracked
from dtr_fx.cli.targets import load_trainee
from dtr_fx.errors import InfeasibleBudgetError
from dtr_fx.inspect.table import table
from dtr_fx.lab.trainee import first_step, time_of_step
from dtr_fx.planning.options import Options, parse_budget
from dtr_fx.torch_private import dynamo_config
from dtr_fx.units import format_percent, format_seconds

_ROUNDS = 3  # that come before those that are timed


def rows(target: str, arguments: argparse.Namespace) -> Rows:
    """A row for each budget that works: told and measured seconds, and the time over that of aot_eager."""
    trainee = load_trainee(target, **dict(arguments.arg))
    clock = time.process_time if trainee.device.type == "cpu" else time.perf_counter
    torch.compiler.reset()
    steps: dict[str, Callable[..., Any]] = {"": torch.compile(trainee.model, backend="aot_eager")}
    found: dict[str, dict[str, Any]] = {}
    # Each plan is a compilation, and Dynamo runs what was compiled eight times uncompiled.
    with dynamo_config.patch(recompile_limit=len(arguments.budgets) + 2):
        trainee.fresh_step(steps[""])
        for asked in tracked(target, list(arguments.budgets)):
            try:
                forward, report, _ = first_step(trainee, Options(budget=parse_budget(asked), costs="profile"))
            except InfeasibleBudgetError:
                continue
            steps[asked] = forward
            found[asked] = {"told": report.step_after, "overhead": report.overhead}
        times: dict[str, list[float]] = {asked: [] for asked in steps}
        for _ in tracked(f"{target}, timed", range(_ROUNDS + arguments.pairs)):
            for asked, forward in steps.items():
                times[asked].append(time_of_step(trainee, forward, clock))
    timed = {asked: taken[_ROUNDS:] for asked, taken in times.items()}
    return [
        {
            "asked": asked,
            **row,
            "measured": statistics.median(timed[asked]),
            "time_ratio": statistics.median(ours / other for ours, other in zip(timed[asked], timed[""])),
        }
        for asked, row in found.items()
    ]


def off_by(row: dict[str, Any]) -> float:
    """How far what was told is from what was measured: 0.1 is 10% above."""
    return float(row["told"] / row["measured"] - 1)


def text(target: str, rows: Rows) -> str:
    cells = [
        {
            target: row["asked"],
            "extra compute": format_percent(row["overhead"]),
            "told": format_seconds(row["told"]),
            "measured": format_seconds(row["measured"]),
            "off by": f"{100 * off_by(row):+.1f}%",
            "of aot_eager": f"× {row['time_ratio']:.3f}",
        }
        for row in rows
    ]
    off = [abs(off_by(row)) for row in rows]
    last = (
        f"off by {format_percent(statistics.median(off))} in the median, {format_percent(max(off))} at most"
    )
    return f"{table(cells)}\n{last}" if rows else f"{target}: none of these budgets works"
