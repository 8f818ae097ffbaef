"""Plans against their rivals: PyTorch's partitioner, per-block checkpointing, and the lower bound.

TARGETs are those of dtr-fx diff; they are built on fake tensors and nothing is executed, so they can have
any size. By default: models of the zoo at full size. Every rival is judged by the same rule at the peak
that it really reaches (a share of eager's, inputs and parameters apart) and at the compute that its graphs
really have (extra over eager's). For each model this prints

  - for each activation_memory_budget of PyTorch's partitioner its peak and its extra compute, and ours at a
    budget of that peak;
  - for torch.utils.checkpoint around every block: our extra compute at its peak, our lowest peak at its extra
    compute;
  - the smallest budget that works, over the lower bound of any plan;

and at the end which of the goals are met:

  dtr-fx bench rivals
  dtr-fx bench rivals zoo:gpt_full train.py:make_model --json
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from dtr_fx.cli.bench.goals import (
    ROUNDING,
    SEARCH,
    Goal,
    format_ratio,
    goal_table,
    no_exception,
    table,
    worst,
)
from dtr_fx.cli.progress import progress
from dtr_fx.cli.targets import load_target
from dtr_fx.errors import CommandError, InfeasibleBudgetError
from dtr_fx.planning.judge import Judgement, judge
from dtr_fx.planning.options import Options
from dtr_fx.units import format_bytes, format_percent, format_seconds

if TYPE_CHECKING:
    from dtr_fx.lab.baselines import Joint

BUDGETS = tuple(tenths / 10 for tenths in range(10, -1, -1))
_MODELS = ("gpt_full", "vit", "resnet50_full", "unet_full", "lstm_full", "mlp_full")
_OPTIONAL_MODELS = {"transformers": "gpt2"}
_BISECTIONS = 7
# Goals: of the partitioner's extra compute in all, of a checkpoint's, of the lower bound.
_OF_PARTITIONER = 0.6
_OF_CHECKPOINT = 0.8
_OF_BOUND = 1.05


@dataclass(frozen=True)
class Plan:
    """Our plan at one budget: ``peak`` in bytes, ``overhead`` over eager, ``seconds`` of planning."""

    peak: int
    overhead: float
    seconds: float


@dataclass(frozen=True)
class Point:
    """A rival, the peak that it reaches in bytes, and our plan at a budget of that, if there is one."""

    rival: str
    peak: int
    overhead: float
    ours: Plan | None

    @property
    def our_overhead(self) -> float:
        return math.inf if self.ours is None else self.ours.overhead


@dataclass(frozen=True)
class Result:
    """One model. ``lowest`` is our plan with the least peak that computes no more than the checkpoint does.

    ``smallest`` is the smallest budget that a plan was found for, ``bound`` what no plan can do without, both
    in bytes.
    """

    target: str
    nodes: int
    eager: Judgement
    partitioner: tuple[Point, ...]
    checkpoint: Point
    lowest: Plan | None
    smallest: int
    bound: int
    smallest_seconds: float

    def share(self, peak: int) -> float:
        """Of eager's activation peak."""
        return (peak - self.eager.constants) / self.eager.above_constants

    @property
    def theirs(self) -> float:
        return sum(point.overhead for point in self.partitioner)

    @property
    def ours(self) -> float:
        return sum(point.our_overhead for point in self.partitioner)

    @property
    def plans(self) -> list[Plan]:
        found = [point.ours for point in (*self.partitioner, self.checkpoint)]
        return [plan for plan in found if plan is not None]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "targets",
        nargs="*",
        metavar="TARGET",
        help=f"default: {' '.join(_MODELS)} and, where it is installed, a model of transformers",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object: results and goals")


def run(arguments: argparse.Namespace) -> None:
    """Carry out the command.

    Raises
    ------
    DTRError
        A target that cannot be loaded or traced.
    """
    targets = arguments.targets or examples()
    if arguments.json:
        results = [compare(target, Options()) for target in targets]
        as_json = {"results": list(map(asdict, results)), "goals": list(map(asdict, goals(results)))}
        print(json.dumps(as_json, indent=1))
    else:
        print(goal_table(show(targets, Options())))


def examples() -> list[str]:
    """The models that are compared by default.

    Raises
    ------
    CommandError
        There is no source tree with them.
    """
    optional = [name for library, name in _OPTIONAL_MODELS.items() if importlib.util.find_spec(library)]
    return [example(name) for name in (*_MODELS, *optional)]


def example(name: str) -> str:
    """One of the models of the zoo, as a target."""
    return f"zoo:{name}"


def show(targets: Iterable[str], options: Options, budgets: Sequence[float] = BUDGETS) -> list[Goal]:
    """Print the tables of some models and return the goals.

    Raises
    ------
    DTRError
        A target that cannot be loaded or traced.
    """
    results = []
    for target in targets:
        results.append(compare(target, options, budgets))
        print(_partitioner_table(results[-1]), end="\n\n", flush=True)
    print(_checkpoint_table(results), _smallest_table(results), sep="\n\n", end="\n\n", flush=True)
    return goals(results)


def compare(target: str, options: Options, budgets: Sequence[float] = BUDGETS) -> Result:
    """Hold our plans for one model against the rivals.

    Raises
    ------
    DTRError
        The target cannot be loaded or traced.
    """
    # Compilation machinery takes seconds to import, which --help need not wait for.
    from torch._subclasses.fake_tensor import FakeTensorMode

    from dtr_fx.lab import baselines as rivals

    with progress(name_of(target), len(budgets) + _BISECTIONS + 4) as watch:
        tick = map(watch, itertools.count(1)).__next__
        with FakeTensorMode(allow_non_fake_inputs=True):
            model, inputs = load_target(target)
            if not isinstance(model, torch.nn.Module):
                raise CommandError(f"{target}: a function has no blocks to checkpoint; give a module")
            joint = rivals.trace(model, inputs)
            tick()
            checkpoint = judge(*rivals.checkpointed(model, inputs))
            tick()
        planner = _Planner(joint, options, judge(*rivals.eager(joint)), tick)
        smallest, bound, seconds = planner.smallest()
        return Result(
            target=target,
            nodes=sum(node.op.startswith("call") for node in joint.graph.graph.nodes),
            eager=planner.eager,
            partitioner=tuple(
                planner.against(f"{budget:.1f}", judge(*rivals.min_cut(joint, budget))) for budget in budgets
            ),
            checkpoint=planner.against("checkpoint", checkpoint),
            lowest=planner.lowest_peak(checkpoint.overhead(planner.eager), above=smallest),
            smallest=smallest,
            bound=bound,
            smallest_seconds=seconds,
        )


class _Planner:
    """Our plans for one joint graph, each made once; ``tick`` is called after each step of a comparison."""

    def __init__(self, joint: Joint, options: Options, eager: Judgement, tick: Callable[[], Any]) -> None:
        self.eager = eager
        self._joint = joint
        self._options = options
        self._tick = tick
        self._plans: dict[int, Plan | None] = {}

    def at(self, budget: int) -> Plan | None:
        if budget not in self._plans:
            self._plans[budget] = self._plan(budget)
        return self._plans[budget]

    def _plan(self, budget: int) -> Plan | None:
        from dtr_fx.lab.baselines import planned

        try:
            pair, report = planned(self._joint, replace(self._options, budget=budget))
        except InfeasibleBudgetError:
            return None
        found = judge(*pair)
        return Plan(found.peak, found.overhead(self.eager), sum(report.seconds.values()))

    def against(self, name: str, rival: Judgement) -> Point:
        point = Point(name, rival.peak, rival.overhead(self.eager), self.at(rival.peak))
        self._tick()
        return point

    def lowest_peak(self, overhead: float, *, above: int) -> Plan | None:
        """The plan of the lowest peak that a bisection finds with no more than this overhead."""
        low, high, best = above, self.eager.peak, None
        for _ in range(_BISECTIONS):
            middle = (low + high) // 2
            plan = self.at(middle)
            if plan is not None and plan.overhead <= overhead + ROUNDING:
                best, high = plan, plan.peak
            else:
                low = middle
            self._tick()
        return best

    def smallest(self) -> tuple[int, int, float]:
        """The smallest budget that works and the lower bound, in bytes, and the seconds to find them."""
        from dtr_fx.lab.baselines import plan

        started = time.perf_counter()
        try:
            _, report = plan(self._joint, replace(self._options, budget=1))
        except InfeasibleBudgetError as error:
            found = error.smallest, error.lower_bound
        else:
            found = report.planned_peak, report.lower_bound
        self._tick()
        return *found, time.perf_counter() - started


# --- goals -------------------------------------------------------------------------------------------------


def goals(results: Sequence[Result]) -> list[Goal]:
    """The goals, over all models."""
    theirs, ours = (sum(getattr(result, side) for result in results) for side in ("theirs", "ours"))
    points = [(result, point) for result in results for point in result.partitioner]
    higher = [
        f"{name_of(result.target)} at {point.rival}"
        for result, point in points
        if point.our_overhead > point.overhead + ROUNDING
    ]
    return [
        no_exception(
            "partitioner: at each of its peaks, no more extra compute", higher, len(points), "higher"
        ),
        worst(
            f"partitioner: at most {_OF_PARTITIONER:g} of its extra compute in all",
            [("all", _ratio(ours, theirs))],
            _OF_PARTITIONER,
        ),
        worst(
            f"checkpoint: at its peak, at most {_OF_CHECKPOINT:g} of its extra compute",
            ((name_of(r.target), _ratio(r.checkpoint.our_overhead, r.checkpoint.overhead)) for r in results),
            _OF_CHECKPOINT,
        ),
        worst(
            "checkpoint: at its extra compute, a lower peak",
            (
                (name_of(r.target), r.lowest.peak / r.checkpoint.peak if r.lowest else math.inf)
                for r in results
            ),
            1 - ROUNDING,
        ),
        worst(
            f"smallest budget: at most {_OF_BOUND:g} of the lower bound",
            ((name_of(r.target), r.smallest / r.bound) for r in results),
            _OF_BOUND,
        ),
        worst(
            f"planning: of the time allowed, {SEARCH}",
            ((name_of(r.target), plan.seconds / SEARCH(r.nodes)) for r in results for plan in r.plans),
            1.0,
        ),
    ]


def _ratio(ours: float, theirs: float) -> float:
    if ours <= theirs + ROUNDING and theirs <= ROUNDING:
        return 0.0
    return ours / theirs if theirs > 0 else math.inf


# --- output ------------------------------------------------------------------------------------------------


def _partitioner_table(result: Result) -> str:
    eager = result.eager
    title = (
        f"{name_of(result.target)}: {result.nodes} operators, {format_seconds(eager.cost)} of compute, "
        f"peak {format_bytes(eager.peak)}, {format_bytes(eager.constants)} of it inputs and parameters"
    )
    rows = [
        {
            "activation_memory_budget": point.rival,
            "peak": format_percent(result.share(point.peak)),
            "extra compute": format_percent(point.overhead),
            "ours": _extra(point.ours),
            "planning": format_seconds(point.ours.seconds) if point.ours else "",
        }
        for point in result.partitioner
    ]
    of_theirs = format_ratio(_ratio(result.ours, result.theirs))
    total = {"extra compute": format_percent(result.theirs), "ours": _share(result.ours)}
    rows.append({"activation_memory_budget": "sum", **total, "planning": of_theirs})
    return f"{title}\n{table(rows)}"


def _checkpoint_table(results: Iterable[Result]) -> str:
    return table(
        [
            {
                "checkpoint": name_of(result.target),
                "peak": format_percent(result.share(result.checkpoint.peak)),
                "extra compute": format_percent(result.checkpoint.overhead),
                "ours at its peak": _extra(result.checkpoint.ours),
                "of its": format_ratio(_ratio(result.checkpoint.our_overhead, result.checkpoint.overhead)),
                "our lowest peak at its extra compute": (
                    format_percent(result.share(result.lowest.peak)) if result.lowest else "none"
                ),
            }
            for result in results
        ]
    )


def _smallest_table(results: Iterable[Result]) -> str:
    return table(
        [
            {
                "smallest budget": name_of(result.target),
                "bytes": format_bytes(result.smallest),
                "of activations": format_percent(result.share(result.smallest)),
                "lower bound": format_bytes(result.bound),
                "over the bound": format_ratio(result.smallest / result.bound),
                "search": format_seconds(result.smallest_seconds),
            }
            for result in results
        ]
    )


def _extra(plan: Plan | None) -> str:
    return "no plan" if plan is None else format_percent(plan.overhead)


def _share(overhead: float) -> str:
    return format_percent(overhead) if math.isfinite(overhead) else "no plan"


def name_of(target: str) -> str:
    """The factory's name alone."""
    return target.rpartition(":")[2]
