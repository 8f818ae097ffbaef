"""Times of planning, by both planners, over GPTs of growing depth."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from dtr_fx.cli.bench import Rows
from dtr_fx.cli.bench.goals import ONLINE, ROUNDING, SEARCH, Goal, worst
from dtr_fx.cli.output import tracked
from dtr_fx.cli.targets import load_target
from dtr_fx.inspect.table import table
from dtr_fx.lab.baselines import Joint, plan, trace
from dtr_fx.planning.options import Options
from dtr_fx.torch_private import FakeTensorMode
from dtr_fx.units import format_percent, format_seconds

# How often each planner runs: the first plan in a process imports what later ones find there.
_RUNS: dict[Literal["online", "search"], int] = {"online": 2, "search": 1}
_GROWTH = 2.0


def results(
    models: Mapping[str, tuple[str, dict[str, Any]]], shares: Sequence[float]
) -> Iterator[dict[str, Any]]:
    """Seconds of planning for models, at budgets that are shares of their peaks.

    Each model has a name, a target, and the arguments of its factory. Of either planner "whole" is from the
    graph to the verified one, "plan" finding the plan alone.
    """
    for name, (target, settings) in tracked("times", list(models.items())):
        with FakeTensorMode(allow_non_fake_inputs=True):
            joint = trace(*load_target(target, **settings))
        nodes = list(joint.graph.graph.nodes)
        operators = sum(node.op.startswith("call") for node in nodes)
        for share in shares:
            seconds: dict[str, dict[str, float]] = {
                planner: _seconds(joint, Options(budget=share, planner=planner, cache=False), runs)
                for planner, runs in _RUNS.items()
            }
            yield {"name": name, "share": share, "nodes": len(nodes), "operators": operators, **seconds}


def _seconds(joint: Joint, options: Options, runs: int) -> dict[str, float]:
    reports = [plan(joint, options)[1] for _ in range(runs)]
    return {
        "whole": min(sum(report.seconds.values()) for report in reports),
        "plan": min(report.seconds["plan"] for report in reports),
    }


def summary(results: Rows) -> str:
    return "\n\n".join(
        f"planning at {format_percent(share)} of the peak\n"
        f"{table([_cells(row) for row in results if row['share'] == share])}"
        for share in dict.fromkeys(row["share"] for row in results)
    )


def _cells(row: dict[str, Any]) -> dict[str, object]:
    cells = {"planning": row["name"], "operators": row["operators"], "nodes": row["nodes"]}
    for planner in _RUNS:
        seconds = row[planner]
        cells[f"{planner}: all"] = format_seconds(seconds["whole"])
        cells[f"{planner}: plan"] = format_seconds(seconds["plan"])
        cells[f"{planner}: µs per node"] = f"{1e6 * seconds['whole'] / row['nodes']:.0f}"
    return cells


def goals(results: Rows) -> list[Goal]:
    """The goals, over all graphs."""
    searched = ((row["name"], row["search"]["whole"] / SEARCH(row["nodes"])) for row in results)
    online = ((row["name"], row["online"]["plan"] / ONLINE(row["nodes"])) for row in results)
    growth = f"GPTs: time per node grows by less than {_GROWTH:g} times, smallest graph to largest"
    return [
        worst(f"GPTs, search: of the time allowed, {SEARCH}", searched, 1.0),
        worst(f"GPTs, online, the plan alone: of the time allowed, {ONLINE}", online, 1.0),
        worst(growth, _growths(results), _GROWTH - ROUNDING),
    ]


def _growths(results: Rows) -> Iterator[tuple[str, float]]:
    """By how much the time per node grows, of either planner, in all and for the plan alone."""
    smallest, largest = (pick(results, key=lambda row: row["nodes"]) for pick in (min, max))
    more_nodes = largest["nodes"] / smallest["nodes"]
    for planner in ("search", "online"):
        few, many = smallest[planner], largest[planner]
        yield planner, many["whole"] / few["whole"] / more_nodes
        yield f"{planner}, plan", many["plan"] / few["plan"] / more_nodes
