"""A curve over memory ratios: the points that replays come to, and how it ends."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dtr_fx.lab.figures.style import POLICY_DASHES, POLICY_LOOKS, Look, heuristic_looks, strokes
from dtr_fx.lab.replay import Outcome, Replay
from dtr_fx.runtime import Deallocation

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# What ends a curve; the heuristics' own markers are others.
_ENDS = {"out of memory": "x", "thrash": "^"}
_ENDING: Any = (0, (1, 1.5))
_NEUTRAL = "#333333"
# Memory ratio by which the ends of curves that end at the same budget are apart: at most, and all together.
_STEP, _SPREAD = 0.012, 0.08


@dataclass(frozen=True)
class ReplayedPoint:
    """The replays of one budget: several if the heuristic is random.

    ``value`` is their mean, ``low`` and ``high`` the least and the most; NaN unless all of them ended.
    """

    ratio: float
    outcome: Outcome
    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Curve:
    """One heuristic and deallocation policy on one program, from the largest budget to the smallest.

    ``rank`` is its place among the ``of`` curves of a panel.
    """

    policy: Deallocation
    look: Look
    dash: str
    points: tuple[ReplayedPoint, ...]
    rank: int
    of: int

    @property
    def failure(self) -> tuple[ReplayedPoint | None, ReplayedPoint] | None:
        """The largest budget that did not do, and the point before it."""
        before = None
        for point in self.points:
            if point.outcome != "ok":
                return before, point
            before = point
        return None


def curves(replays: Sequence[Replay], value: Callable[[Replay], float]) -> dict[str, list[Curve]]:
    """The curves of each program, in the order in which the replays come."""
    kinds = list(dict.fromkeys((replay.heuristic, replay.deallocation) for replay in replays))
    looks = _looks(kinds)
    panels: dict[str, list[Curve]] = {}
    for program in dict.fromkeys(replay.program for replay in replays):
        for number, kind in enumerate(kinds):
            own = [
                replay
                for replay in replays
                if (replay.program, replay.heuristic, replay.deallocation) == (program, *kind)
            ]
            curve = Curve(kind[1], *looks[kind], points(own, value), number, len(kinds))
            panels.setdefault(program, []).append(curve)
    return panels


def points(replays: Iterable[Replay], value: Callable[[Replay], float]) -> tuple[ReplayedPoint, ...]:
    """A point for each budget that is a limit, the largest first."""
    budgets: dict[float, list[Replay]] = {}
    for replay in replays:
        if math.isfinite(replay.budget):
            budgets.setdefault(replay.budget / replay.whole, []).append(replay)
    return tuple(_point(ratio, budgets[ratio], value) for ratio in sorted(budgets, reverse=True))


def _point(ratio: float, replays: Sequence[Replay], value: Callable[[Replay], float]) -> ReplayedPoint:
    failed = [replay.outcome for replay in replays if replay.outcome != "ok"]
    if failed:
        return ReplayedPoint(ratio, failed[0], math.nan, math.nan, math.nan)
    values = [value(replay) for replay in replays]
    return ReplayedPoint(ratio, "ok", sum(values) / len(values), min(values), max(values))


def _looks(kinds: Sequence[tuple[str, Deallocation]]) -> dict[tuple[str, Deallocation], tuple[Look, str]]:
    """Colours tell heuristics apart and dashes policies; of one heuristic, colours tell policies apart."""
    heuristics = heuristic_looks(heuristic for heuristic, _ in kinds)
    policies = {policy for _, policy in kinds}
    if len(policies) > 1 and len(heuristics) == 1:
        return {(name, policy): (_of_policy(heuristics[name], policy), "solid") for name, policy in kinds}
    return {
        (name, policy): (heuristics[name], POLICY_DASHES[policy] if len(policies) > 1 else "solid")
        for name, policy in kinds
    }


def _of_policy(look: Look, policy: Deallocation) -> Look:
    own = POLICY_LOOKS[policy]
    return replace(own, label=f"{look.label}, {own.label}")


def draw_curve(axes: Axes, curve: Curve) -> None:
    """The curve, a band from the least to the most where they differ, and its end.

    The axes' limits must be set: a curve that thrashes leaves them at the top.
    """
    ratios = [point.ratio for point in curve.points]
    axes.plot(ratios, [point.value for point in curve.points], **_strokes(curve), zorder=3)
    if any(point.low < point.high for point in curve.points):
        lows, highs = ([getattr(point, end) for point in curve.points] for end in ("low", "high"))
        axes.fill_between(ratios, lows, highs, color=curve.look.color, alpha=0.2, linewidth=0)
    _draw_end(axes, curve)


def _strokes(curve: Curve) -> dict[str, Any]:
    return {**strokes(curve.look, curve.rank, curve.of), "linestyle": curve.dash}


def _draw_end(axes: Axes, curve: Curve) -> None:
    if curve.failure is None:
        return
    before, failed = curve.failure
    bottom, top = axes.get_ylim()
    x = failed.ratio + (curve.rank - (curve.of - 1) / 2) * min(_STEP, _SPREAD / curve.of)
    end = top if failed.outcome == "thrash" else bottom if before is None else before.value
    color = curve.look.color
    if before is not None:
        draw_ending(axes, color, (before.ratio, x), (before.value, end))
    axes.plot([x], [end], color=color, marker=_ENDS[failed.outcome], markersize=5.5, clip_on=False, zorder=4)


def draw_ending(axes: Axes, color: str, ratios: Sequence[float], values: Sequence[float]) -> None:
    """The way from a curve's last point to the mark that tells why it ends."""
    axes.plot(ratios, values, color=color, linestyle=_ENDING, linewidth=1)


def ending_of_legend(marker: str, label: str) -> Any:
    """The legend's entry for a mark at the end of curves."""
    from matplotlib.lines import Line2D

    return Line2D([], [], color=_NEUTRAL, marker=marker, linestyle=_ENDING, label=label)


def legend_of(panels: dict[str, list[Curve]]) -> list[Any]:
    """Entries of the heuristics, of the policies that dashes tell apart, and of the ends that occur."""
    from matplotlib.lines import Line2D

    first = next(iter(panels.values()))
    looks = {curve.look: {**_strokes(curve), "linestyle": "solid"} for curve in reversed(first)}
    handles = [Line2D([], [], **looks[look]) for look in dict.fromkeys(curve.look for curve in first)]
    policies = dict.fromkeys(curve.policy for curve in first)
    if len(policies) > 1 and len(looks) < len(first):
        for policy in policies:
            label, dash = POLICY_LOOKS[policy].label, POLICY_DASHES[policy]
            handles.append(Line2D([], [], color=_NEUTRAL, linestyle=dash, label=label))
    failures = [curve.failure for row in panels.values() for curve in row if curve.failure]
    for outcome, marker in _ENDS.items():
        before = [point for point, failed in failures if failed.outcome == outcome]
        if before:
            label = "thrashes" if outcome == "thrash" else outcome
            if outcome != "thrash" and None in before:
                label += " (on the lower edge: at all budgets)"
            handles.append(ending_of_legend(marker, label))
    return handles
