"""Times of planning, by both planners, over GPTs of growing depth."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from dtr_fx.cli.bench.goals import ONLINE, ROUNDING, SEARCH, Goal, worst
from dtr_fx.cli.bench.targets import name_of
from dtr_fx.cli.progress import tracked
from dtr_fx.cli.targets import Inputs, load_target
from dtr_fx.inspect.table import table
from dtr_fx.planning.options import Options
from dtr_fx.units import format_percent, format_seconds

if TYPE_CHECKING:
    from dtr_fx.lab.baselines import Joint

# The first has 2,000 nodes, the last 20,000.
LAYERS = (16, 24, 50, 100, 164)
SHARE = 0.7
_RUNS = {"online": 2, "search": 1}
_GROWTH = 2.0

Models: TypeAlias = "Mapping[str, Callable[[], tuple[Callable[..., object], Inputs]]]"


@dataclass(frozen=True)
class PlanningTimes:
    """One graph: its nodes, those that are operators, and the seconds of planning at a share of its peak.

    Of either planner "whole" is from the graph to the verified one, "plan" finding the plan alone.
    """

    name: str
    share: float
    nodes: int
    operators: int
    online: dict[str, float]
    search: dict[str, float]


def of_targets(targets: Sequence[str], settings: Mapping[str, Any]) -> Models:
    return {name_of(target): partial(load_target, target, **settings) for target in targets}


def gpts(depths: Sequence[int]) -> Models:
    """The GPT of full size at some depths."""
    return {f"gpt of {depth}": partial(load_target, "zoo:gpt_full", layers=depth) for depth in depths}


def results(models: Models, shares: Sequence[float]) -> Iterator[PlanningTimes]:
    """Seconds of planning for models, at budgets that are shares of their peaks."""
    for name, make in tracked("times", list(models.items())):
        joint = _trace(make)
        yield from (_measure(name, joint, share) for share in shares)


def summary(results: Sequence[PlanningTimes]) -> str:
    return "\n\n".join(
        f"planning at {format_percent(share)} of the peak\n"
        f"{table([_row(result) for result in results if result.share == share])}"
        for share in dict.fromkeys(result.share for result in results)
    )


def _trace(make: Callable[[], tuple[Callable[..., object], Inputs]]) -> Joint:
    # Compilation machinery takes seconds to import, which --help need not wait for.
    from dtr_fx.lab.baselines import trace
    from dtr_fx.torch_private import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        return trace(*make())


def _measure(name: str, joint: Joint, share: float) -> PlanningTimes:
    nodes = list(joint.graph.graph.nodes)
    return PlanningTimes(
        name=name,
        share=share,
        nodes=len(nodes),
        operators=sum(node.op.startswith("call") for node in nodes),
        # First, and best of two: the first plan in a process imports what later ones find there.
        online=_seconds(joint, Options(budget=share, planner="online")),
        search=_seconds(joint, Options(budget=share, planner="search")),
    )


def _seconds(joint: Joint, options: Options) -> dict[str, float]:
    from dtr_fx.lab.baselines import plan

    reports = [plan(joint, options)[1] for _ in range(_RUNS[options.planner])]
    return {
        "whole": min(sum(report.seconds.values()) for report in reports),
        "plan": min(report.seconds["plan"] for report in reports),
    }


def goals(results: Sequence[PlanningTimes]) -> list[Goal]:
    """The goals, over all graphs."""
    return [
        worst(
            f"GPTs, search: of the time allowed, {SEARCH}",
            ((result.name, result.search["whole"] / SEARCH(result.nodes)) for result in results),
            1.0,
        ),
        worst(
            f"GPTs, online, the plan alone: of the time allowed, {ONLINE}",
            ((result.name, result.online["plan"] / ONLINE(result.nodes)) for result in results),
            1.0,
        ),
        worst(
            f"GPTs: time per node grows by less than {_GROWTH:g} times, smallest graph to largest",
            _growths(results),
            _GROWTH - ROUNDING,
        ),
    ]


def _growths(results: Sequence[PlanningTimes]) -> Iterator[tuple[str, float]]:
    """By how much the time per node grows, of either planner, in all and for the plan alone."""
    smallest, largest = (pick(results, key=lambda result: result.nodes) for pick in (min, max))
    more_nodes = largest.nodes / smallest.nodes
    for name, few, many in (
        ("search", smallest.search, largest.search),
        ("online", smallest.online, largest.online),
    ):
        yield name, many["whole"] / few["whole"] / more_nodes
        yield f"{name}, plan", many["plan"] / few["plan"] / more_nodes


def _row(result: PlanningTimes) -> dict[str, object]:
    row: dict[str, object] = {
        "planning": result.name,
        "operators": result.operators,
        "nodes": result.nodes,
    }
    for planner, seconds in (("online", result.online), ("search", result.search)):
        row[f"{planner}: all"] = format_seconds(seconds["whole"])
        row[f"{planner}: plan"] = format_seconds(seconds["plan"])
        row[f"{planner}: µs per node"] = f"{1e6 * seconds['whole'] / result.nodes:.0f}"
    return row
