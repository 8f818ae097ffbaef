"""Plans against PyTorch's partitioner, per-block checkpointing, and the lower bound."""

from __future__ import annotations

import importlib.util
import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from dtr_fx.cli.bench.goals import ROUNDING, SEARCH, Goal, format_ratio, no_exception, worst
from dtr_fx.cli.output import progress
from dtr_fx.cli.targets import load_target
from dtr_fx.errors import CommandError, InfeasibleBudgetError
from dtr_fx.inspect.table import table
from dtr_fx.lab import baselines
from dtr_fx.planning.judge import Judgement, judge
from dtr_fx.planning.options import Options
from dtr_fx.torch_private import FakeTensorMode
from dtr_fx.units import format_bytes, format_percent, format_seconds

BUDGETS = tuple(tenths / 10 for tenths in range(10, -1, -1))
_MODELS = ("gpt_full", "vit", "resnet50_full", "unet_full", "lstm_full", "mlp_full")
_BISECTIONS = 7


@dataclass(frozen=True)
class OurPlan:
    """Our plan at one budget: ``peak`` in bytes, ``overhead`` over eager, ``seconds`` of planning."""

    peak: int
    overhead: float
    seconds: float


@dataclass(frozen=True)
class Baseline:
    """Another way to run the step, the peak that it reaches in bytes, and our plan at a budget of that."""

    name: str
    peak: int
    overhead: float
    ours: OurPlan | None

    @property
    def our_overhead(self) -> float:
        return math.inf if self.ours is None else self.ours.overhead

    @property
    def ratio(self) -> float:
        """Our extra compute over its own."""
        return _ratio(self.our_overhead, self.overhead)


@dataclass(frozen=True)
class ModelBaselines:
    """One model. ``lowest`` is our plan with the least peak that computes no more than the checkpoint does.

    ``smallest`` is the smallest budget that a plan was found for, ``bound`` what no plan can do without, both
    in bytes.
    """

    target: str
    nodes: int
    eager: Judgement
    partitioner: tuple[Baseline, ...]
    checkpoint: Baseline
    lowest: OurPlan | None
    smallest: int
    bound: int
    smallest_seconds: float

    @property
    def name(self) -> str:
        return self.target.rpartition(":")[2]

    def share(self, peak: int) -> str:
        """Of eager's activation peak."""
        return format_percent((peak - self.eager.constants) / self.eager.above_constants)

    @property
    def theirs(self) -> float:
        return sum(point.overhead for point in self.partitioner)

    @property
    def ours(self) -> float:
        return sum(point.our_overhead for point in self.partitioner)


def models() -> list[str]:
    """The models that are compared by default."""
    optional = ["gpt2"] if importlib.util.find_spec("transformers") else []
    return [f"zoo:{name}" for name in (*_MODELS, *optional)]


def results(
    targets: Iterable[str], settings: Mapping[str, Any], options: Options, budgets: Sequence[float]
) -> Iterator[ModelBaselines]:
    """Plans beside the baselines; ``budgets`` are those of the partitioner."""
    return (compare(target, options, budgets, **settings) for target in targets)


def compare(target: str, options: Options, budgets: Sequence[float], **settings: Any) -> ModelBaselines:
    """Hold our plans for one model against the baselines."""
    with progress(target.rpartition(":")[2], len(budgets) + _BISECTIONS + 1) as advance:
        with FakeTensorMode(allow_non_fake_inputs=True):
            model, inputs = load_target(target, **settings)
            if not isinstance(model, torch.nn.Module):
                raise CommandError(f"{target}: a function has no blocks to checkpoint; give a module")
            joint = baselines.trace(model, inputs)
            checkpoint = judge(*baselines.checkpointed(model, inputs))
        eager = judge(*baselines.eager(joint))
        ours = _OurPlans(joint, eager, options, advance)
        started = time.perf_counter()
        smallest, bound = _smallest(joint, options)
        seconds = time.perf_counter() - started
        cuts = ((f"{budget:.1f}", judge(*baselines.min_cut(joint, budget))) for budget in budgets)
        return ModelBaselines(
            target=target,
            nodes=sum(node.op.startswith("call") for node in joint.graph.graph.nodes),
            eager=eager,
            partitioner=tuple(ours.against(name, found) for name, found in cuts),
            checkpoint=ours.against("checkpoint", checkpoint),
            lowest=ours.lowest_peak(smallest, checkpoint.overhead(eager)),
            smallest=smallest,
            bound=bound,
            smallest_seconds=seconds,
        )


class _OurPlans:
    """Our plans for one model, each made once; ``advance`` hears how many there are."""

    def __init__(
        self, joint: baselines.Joint, eager: Judgement, options: Options, advance: Callable[[int], None]
    ) -> None:
        self._joint, self._eager, self._options, self._advance = joint, eager, options, advance
        self._made: dict[int, OurPlan | None] = {}

    def at(self, budget: int) -> OurPlan | None:
        if budget not in self._made:
            self._made[budget] = self._plan(budget)
            self._advance(len(self._made))
        return self._made[budget]

    def _plan(self, budget: int) -> OurPlan | None:
        try:
            pair, report = baselines.planned(self._joint, replace(self._options, budget=budget))
        except InfeasibleBudgetError:
            return None
        found = judge(*pair)
        return OurPlan(found.peak, found.overhead(self._eager), sum(report.seconds.values()))

    def against(self, name: str, found: Judgement) -> Baseline:
        return Baseline(name, found.peak, found.overhead(self._eager), self.at(found.peak))

    def lowest_peak(self, above: int, overhead: float) -> OurPlan | None:
        """The plan of the lowest peak, by bisection, that costs no more than ``overhead``."""
        low, high, best = above, self._eager.peak, None
        for _ in range(_BISECTIONS):
            middle = (low + high) // 2
            plan = self.at(middle)
            if plan is not None and plan.overhead <= overhead + ROUNDING:
                best, high = plan, plan.peak
            else:
                low = middle
        return best


def _smallest(joint: baselines.Joint, options: Options) -> tuple[int, int]:
    """The smallest budget that a plan is found for, and what no plan can do without, in bytes."""
    try:
        _, report = baselines.plan(joint, replace(options, budget=1))
    except InfeasibleBudgetError as error:
        return error.smallest, error.lower_bound
    return report.planned_peak, report.lower_bound


def goals(results: Sequence[ModelBaselines]) -> list[Goal]:
    """The goals, over all models."""
    theirs, ours = (sum(getattr(result, side) for result in results) for side in ("theirs", "ours"))
    higher = [
        f"{result.name} at {point.name}"
        for result in results
        for point in result.partitioner
        if point.our_overhead > point.overhead + ROUNDING
    ]
    points = sum(len(result.partitioner) for result in results)
    checkpoints = ((result.name, result.checkpoint.ratio) for result in results)
    bounds = ((result.name, result.smallest / result.bound) for result in results)
    lowest = ((r.name, r.lowest.peak / r.checkpoint.peak if r.lowest else math.inf) for r in results)
    planning = (
        (result.name, point.ours.seconds / SEARCH(result.nodes))
        for result in results
        for point in (*result.partitioner, result.checkpoint)
        if point.ours
    )
    return [
        no_exception("partitioner: at each of its peaks, no more extra compute", higher, points, "higher"),
        worst("partitioner: at most 0.6 of its extra compute in all", [("all", _ratio(ours, theirs))], 0.6),
        worst("checkpoint: at its peak, at most 0.8 of its extra compute", checkpoints, 0.8),
        worst("checkpoint: at its extra compute, a lower peak", lowest, 1 - ROUNDING),
        worst("smallest budget: at most 1.05 of the lower bound", bounds, 1.05),
        worst(f"planning: of the time allowed, {SEARCH}", planning, 1.0),
    ]


def _ratio(ours: float, theirs: float) -> float:
    if ours <= theirs + ROUNDING and theirs <= ROUNDING:
        return 0.0
    return ours / theirs if theirs > 0 else math.inf


def each(result: ModelBaselines) -> str:
    eager = result.eager
    title = (
        f"{result.name}: {result.nodes} operators, {format_seconds(eager.cost)} of compute, "
        f"peak {format_bytes(eager.peak)}, {format_bytes(eager.constants)} of it inputs and parameters"
    )
    rows = [
        {
            "activation_memory_budget": point.name,
            "peak": result.share(point.peak),
            "extra compute": format_percent(point.overhead),
            "ours": _extra(point.our_overhead),
            "planning": format_seconds(point.ours.seconds) if point.ours else "",
        }
        for point in result.partitioner
    ]
    of_theirs = format_ratio(_ratio(result.ours, result.theirs))
    total = {"peak": "", "extra compute": format_percent(result.theirs), "ours": _extra(result.ours)}
    return f"{title}\n{table([*rows, {'activation_memory_budget': 'sum', **total, 'planning': of_theirs}])}"


def summary(results: Sequence[ModelBaselines]) -> str:
    checkpoint = [
        {
            "checkpoint": result.name,
            "peak": result.share(result.checkpoint.peak),
            "extra compute": format_percent(result.checkpoint.overhead),
            "ours at its peak": _extra(result.checkpoint.our_overhead),
            "of its": format_ratio(result.checkpoint.ratio),
            "our lowest peak at its extra compute": (
                result.share(result.lowest.peak) if result.lowest else "none"
            ),
        }
        for result in results
    ]
    smallest = [
        {
            "smallest budget": result.name,
            "bytes": format_bytes(result.smallest),
            "of activations": result.share(result.smallest),
            "lower bound": format_bytes(result.bound),
            "over the bound": format_ratio(result.smallest / result.bound),
            "search": format_seconds(result.smallest_seconds),
        }
        for result in results
    ]
    return f"{table(checkpoint)}\n\n{table(smallest)}"


def _extra(overhead: float) -> str:
    return format_percent(overhead) if math.isfinite(overhead) else "no plan"
