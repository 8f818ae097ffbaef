"""Times of planning, by both planners, over GPTs of growing depth.

For each TARGET, as for dtr-fx diff, its training step is traced on fake tensors and planned at one budget.
Nodes are all those of the joint graph, inputs and outputs among them; operators are those that are called.
"All" are the seconds from the graph to the rewritten and verified one, "plan" those of finding the plan
alone; of the online planner the best of two runs. By default the TARGETs are zoo:gpt_full
at several depths:

  dtr-fx bench times
  dtr-fx bench times --layers 12 24 --budget 50%
  dtr-fx bench times zoo:resnet50_full
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from dtr_fx.cli.arguments import positive, share
from dtr_fx.cli.bench.goals import ONLINE, ROUNDING, SEARCH, Goal, goal_table, table, worst
from dtr_fx.cli.bench.rivals import example, name_of
from dtr_fx.cli.progress import progress
from dtr_fx.cli.targets import Inputs, load_target
from dtr_fx.errors import CommandError
from dtr_fx.planning.options import Options
from dtr_fx.units import format_percent, format_seconds

if TYPE_CHECKING:
    from dtr_fx.lab.baselines import Joint

# The first has 2,000 nodes, the last 20,000.
_LAYERS = (16, 24, 50, 100, 164)
_BUDGET = 0.7
_RUNS = {"online": 2, "search": 1}
_GROWTH = 2.0


@dataclass(frozen=True)
class Seconds:
    """Of one planner: ``whole`` from the graph to the verified one, ``plan`` to find the plan alone."""

    whole: float
    plan: float


@dataclass(frozen=True)
class Result:
    """One graph: its nodes, those of them that are operators, and what planning for it takes."""

    name: str
    nodes: int
    operators: int
    online: Seconds
    search: Seconds


@dataclass(frozen=True)
class Subject:
    """What is planned for: a name, and how to make a model and its inputs."""

    name: str
    make: Callable[[], tuple[Callable[..., object], Inputs]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="default: zoo:gpt_full at each depth")
    parser.add_argument(
        "--layers",
        nargs="+",
        type=positive,
        metavar="N",
        help=f"depths of the GPT (default: {' '.join(map(str, _LAYERS))})",
    )
    parser.add_argument(
        "--budget",
        type=share,
        default=_BUDGET,
        metavar="SHARE",
        help=f"of each graph's peak (default: {_BUDGET:g})",
    )


def run(arguments: argparse.Namespace) -> None:
    """Carry out the command.

    Raises
    ------
    DTRError
        A target that cannot be loaded or traced, or a budget that is too small for it.
    """
    if arguments.targets and arguments.layers:
        raise CommandError("give TARGETs, or --layers, the depths of the GPT that is measured without them")
    subjects = [Subject(name_of(target), partial(load_target, target)) for target in arguments.targets]
    print(goal_table(show(subjects or gpts(arguments.layers or _LAYERS), arguments.budget)))


def gpts(depths: Sequence[int] = _LAYERS) -> list[Subject]:
    """The GPT of examples/rivals.py at some depths.

    Raises
    ------
    CommandError
        There is no source tree with it.
    """
    target = example("gpt_full")
    return [Subject(f"gpt of {depth}", partial(load_target, target, layers=depth)) for depth in depths]


def show(subjects: Sequence[Subject], budget: float = _BUDGET) -> list[Goal]:
    """Print the table and return the goals.

    Raises
    ------
    DTRError
        A model that cannot be loaded or traced, or a budget that is too small for it.
    """
    with progress("times", len(subjects)) as watch:
        results = []
        for subject in subjects:
            results.append(measure(subject, budget))
            watch(len(results))
    print(f"planning at {format_percent(budget)} of the peak\n{_table(results)}", end="\n\n", flush=True)
    return goals(results)


def measure(subject: Subject, budget: float) -> Result:
    """Time both planners on one model.

    Raises
    ------
    DTRError
        A model that cannot be loaded or traced, or a budget that is too small for it.
    """
    # Compilation machinery takes seconds to import, which --help need not wait for.
    from torch._subclasses.fake_tensor import FakeTensorMode

    from dtr_fx.lab import baselines as rivals

    with FakeTensorMode(allow_non_fake_inputs=True):
        joint = rivals.trace(*subject.make())
    nodes = list(joint.graph.graph.nodes)
    return Result(
        name=subject.name,
        nodes=len(nodes),
        operators=sum(node.op.startswith("call") for node in nodes),
        # First, and best of two: the first plan in a process imports what later ones find there.
        online=_seconds(joint, Options(budget=budget, planner="online")),
        search=_seconds(joint, Options(budget=budget, planner="search")),
    )


def _seconds(joint: Joint, options: Options) -> Seconds:
    from dtr_fx.lab.baselines import plan

    reports = [plan(joint, options)[1] for _ in range(_RUNS[options.planner])]
    return Seconds(
        whole=min(sum(report.seconds.values()) for report in reports),
        plan=min(report.seconds["plan"] for report in reports),
    )


# --- goals -------------------------------------------------------------------------------------------------


def goals(results: Sequence[Result]) -> list[Goal]:
    """The goals, over all graphs."""
    return [
        worst(
            f"GPTs, search: of the time allowed, {SEARCH}",
            ((result.name, result.search.whole / SEARCH(result.nodes)) for result in results),
            1.0,
        ),
        worst(
            f"GPTs, online, the plan alone: of the time allowed, {ONLINE}",
            ((result.name, result.online.plan / ONLINE(result.nodes)) for result in results),
            1.0,
        ),
        worst(
            f"GPTs: time per node grows by less than {_GROWTH:g} times, smallest graph to largest",
            _growths(results),
            _GROWTH - ROUNDING,
        ),
    ]


def _growths(results: Sequence[Result]) -> Iterator[tuple[str, float]]:
    """By how much the time per node grows, of either planner, in all and for the plan alone."""
    smallest, largest = (pick(results, key=lambda result: result.nodes) for pick in (min, max))
    kinds: dict[str, Callable[[Result], float]] = {
        "search": lambda result: result.search.whole,
        "search, plan": lambda result: result.search.plan,
        "online": lambda result: result.online.whole,
        "online, plan": lambda result: result.online.plan,
    }
    for name, seconds in kinds.items():
        yield name, (seconds(largest) / largest.nodes) / (seconds(smallest) / smallest.nodes)


# --- output ------------------------------------------------------------------------------------------------


def _table(results: Iterable[Result]) -> str:
    return table(
        [
            {
                "planning": result.name,
                "operators": str(result.operators),
                "nodes": str(result.nodes),
                **_cells("online", result.online, result.nodes),
                **_cells("search", result.search, result.nodes),
            }
            for result in results
        ]
    )


def _cells(planner: str, seconds: Seconds, nodes: int) -> dict[str, str]:
    return {
        f"{planner}: all": format_seconds(seconds.whole),
        f"{planner}: plan": format_seconds(seconds.plan),
        f"{planner}: µs per node": f"{1e6 * seconds.whole / nodes:.0f}",
    }
