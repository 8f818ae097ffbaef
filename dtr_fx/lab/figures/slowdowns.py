"""Slowdown against memory ratio: Figures 2 and 7 to 11, and the picture of any sweep; and storage accesses
against it: Figure 12 (Appendix D.3).
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from dtr_fx.lab.figures import style
from dtr_fx.lab.replay import Outcome, Replay
from dtr_fx.runtime import Deallocation
from dtr_fx.runtime.program import Call, Program
from dtr_fx.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Kind = tuple[str, Deallocation]  # of curves: a heuristic and a policy

_TICKS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
_TOPS = (1.2, 1.5, 2, 3, 5, 10, 20, 50, 100)
_CONSTANTS = "#555555"
_METADATA: dict[str, Any] = {"linestyle": "dashed", "linewidth": 0.9}
# What ends a curve; the heuristics' own markers are others.
_ENDS = {"out of memory": "x", "thrash": "^"}
# Memory ratio by which the ends of curves that end at the same budget are apart: at most, and all together.
_STEP, _SPREAD = 0.012, 0.08


@dataclass(frozen=True)
class ReplayedPoint:
    """The replays of one budget: mean, least and most; NaN unless all of them ended."""

    ratio: float
    outcome: Outcome
    value: float = math.nan
    low: float = math.nan
    high: float = math.nan


@dataclass(frozen=True)
class Curve:
    """One heuristic and policy on one program, budgets falling; the ``rank``-th ``of`` a panel's curves."""

    policy: Deallocation
    look: style.Look
    dash: str
    points: tuple[ReplayedPoint, ...]
    rank: int
    of: int

    @property
    def strokes(self) -> dict[str, Any]:
        return {**style.strokes(self.look, self.rank, self.of), "linestyle": self.dash}

    @property
    def failure(self) -> tuple[ReplayedPoint | None, ReplayedPoint] | None:
        """The largest budget that did not do, and the point before it."""
        pairs = zip((None, *self.points), self.points)
        return next(((before, point) for before, point in pairs if point.outcome != "ok"), None)


Rows = dict[str, list[Curve]]


def plot_slowdowns(replays: Sequence[Replay], title: str, programs: Iterable[Program] = ()) -> Figure:
    """A panel for each program, a curve for each heuristic and deallocation policy.

    A curve ends where the replay runs out of memory or thrashes; a marker at that budget tells which, and
    smaller budgets that do again are points of their own.  Several replays of one budget, as of a random
    heuristic, are shown as their mean, and a band from the least to the most.  Those without a limit are left
    out.

    ``programs`` are those that were replayed, for the two areas of Figure 2: budgets that do not even hold
    the constants, and those that do not hold the largest operator beside them.
    """
    replays = [replay for replay in replays if math.isfinite(replay.budget)]
    if not replays:
        raise ValueError("there is nothing to draw: no replay has a budget")
    rows = _curves(replays, lambda replay: replay.slowdown)
    floors = {program.name: program for program in programs}
    top, right = _limits(rows)
    figure, axes = _panels(rows, replays, title, "slowdown (total / base cost)")
    for (name, row), panel in zip(rows.items(), axes):
        panel.set(ylim=(1 - 0.03 * (top - 1), top), xlim=(0, right), xticks=_TICKS)
        if name in floors:
            program = floors[name]
            constants, operator = program.constants / program.peak, largest_operator(program) / program.peak
            panel.axvspan(0, constants, facecolor=_CONSTANTS, linewidth=0)
            panel.axvspan(constants, constants + operator, facecolor=style.LIGHT, linewidth=0)
        for curve in row:
            _draw_curve(panel, curve)
    areas = {"inputs and weights": _CONSTANTS, "largest operator": style.LIGHT} if floors else {}
    style.legend_below(figure, [*_legend_of(rows), *itertools.starmap(style.area_entry, areas.items())])
    return figure


def plot_accesses(replays: Sequence[Replay], title: str) -> Figure:
    """A panel for each program: accesses to evaluate the heuristic and to keep its metadata, added up.

    The thin dashed line below a curve counts those to keep the metadata alone.
    """
    rows = _curves(replays, lambda replay: replay.scored + replay.maintained)
    kept = _curves(replays, lambda replay: replay.maintained)
    every = [point.value for curve in _flat(rows) + _flat(kept) for point in curve.points if point.value > 0]
    limits = min(every, default=1.0) / 2, max(every, default=1.0) * 2
    figure, axes = _panels(rows, replays, title, "storages accessed")
    for (name, row), panel in zip(rows.items(), axes):
        panel.set(yscale="log", ylim=limits, xlim=(0, 1), xticks=_TICKS)
        for curve, metadata in zip(row, kept[name]):
            counted = [point.value or math.nan for point in metadata.points]
            panel.plot(
                [point.ratio for point in metadata.points], counted, color=curve.look.color, **_METADATA
            )
            _draw_curve(panel, curve)
    thin = style.line_entry("of which metadata", color=style.NEUTRAL, **_METADATA)
    style.legend_below(figure, [*_legend_of(rows), thin])
    return figure


def _curves(replays: Sequence[Replay], value: Callable[[Replay], float]) -> Rows:
    """The curves of each program, in the order in which the replays come."""
    kinds = list(dict.fromkeys((replay.heuristic, replay.deallocation) for replay in replays))
    looks = _looks(kinds)
    own: defaultdict[tuple[str, str, Deallocation], list[Replay]] = defaultdict(list)
    for replay in replays:
        own[replay.program, replay.heuristic, replay.deallocation].append(replay)
    return {
        program: [
            Curve(kind[1], *looks[kind], _points(own[program, kind[0], kind[1]], value), rank, len(kinds))
            for rank, kind in enumerate(kinds)
        ]
        for program in dict.fromkeys(replay.program for replay in replays)
    }


def _points(replays: Iterable[Replay], value: Callable[[Replay], float]) -> tuple[ReplayedPoint, ...]:
    """A point for each budget, the largest first."""
    budgets: defaultdict[float, list[Replay]] = defaultdict(list)
    for replay in replays:
        budgets[replay.budget / replay.whole].append(replay)
    points = []
    for ratio in sorted(budgets, reverse=True):
        failed = [replay.outcome for replay in budgets[ratio] if replay.outcome != "ok"]
        values = [value(replay) for replay in budgets[ratio]]
        ended = (sum(values) / len(values), min(values), max(values))
        points.append(ReplayedPoint(ratio, failed[0]) if failed else ReplayedPoint(ratio, "ok", *ended))
    return tuple(points)


def _looks(kinds: Sequence[Kind]) -> dict[Kind, tuple[style.Look, str]]:
    """Colours tell heuristics apart and dashes policies; of one heuristic, colours tell policies apart."""
    heuristics = style.heuristic_looks(heuristic for heuristic, _ in kinds)
    if len({policy for _, policy in kinds}) == 1:
        return {kind: (heuristics[kind[0]], "solid") for kind in kinds}
    if len(heuristics) > 1:
        return {(name, policy): (heuristics[name], style.POLICY_DASHES[policy]) for name, policy in kinds}
    [only] = heuristics.values()
    policies = {policy: style.POLICY_LOOKS[policy] for _, policy in kinds}
    return {
        (name, policy): (replace(policies[policy], label=f"{only.label}, {policies[policy].label}"), "solid")
        for name, policy in kinds
    }


def _panels(rows: Rows, replays: Iterable[Replay], title: str, y_label: str) -> tuple[Figure, list[Axes]]:
    wholes = {replay.program: replay.whole for replay in replays}
    return style.ratio_panels([f"{name} ({format_bytes(wholes[name])})" for name in rows], title, y_label)


def _flat(rows: Rows) -> list[Curve]:
    return [curve for row in rows.values() for curve in row]


def _limits(rows: Rows) -> tuple[float, float]:
    """Where the axes end: slowdown, and memory ratio."""
    every = [point for curve in _flat(rows) for point in curve.points]
    slowest = max((point.high for point in every if point.outcome == "ok"), default=1.0)
    top = next((top for top in _TOPS if top >= slowest), slowest)
    return top, max(1.0, 1.02 * max(point.ratio for point in every))


def largest_operator(program: Program) -> int:
    """The most bytes that one operator reads, makes and works in, constants aside."""
    made = {output.tensor for call in program.calls() for output in call.outputs if output.alias is None}

    def touched(call: Call) -> int:
        tensors = (*call.inputs, *(output.tensor for output in call.outputs))
        return sum(program.sizes[storage] for storage in {program.storages[one] for one in tensors} & made)

    return max((call.workspace + touched(call) for call in program.calls()), default=0)


def _draw_curve(axes: Axes, curve: Curve) -> None:
    """The curve, a band where replays differ, and its end; the axes' limits must be set."""
    ratios = [point.ratio for point in curve.points]
    axes.plot(ratios, [point.value for point in curve.points], **curve.strokes, zorder=3)
    if any(point.low < point.high for point in curve.points):
        lows, highs = ([getattr(point, end) for point in curve.points] for end in ("low", "high"))
        axes.fill_between(ratios, lows, highs, color=curve.look.color, alpha=0.2, linewidth=0)
    if curve.failure is None:
        return
    before, failed = curve.failure
    bottom, top = axes.get_ylim()
    x = failed.ratio + (curve.rank - (curve.of - 1) / 2) * min(_STEP, _SPREAD / curve.of)
    end = top if failed.outcome == "thrash" else bottom if before is None else before.value
    color = curve.look.color
    if before is not None:
        style.draw_ending(axes, color, (before.ratio, x), (before.value, end))
    axes.plot([x], [end], color=color, marker=_ENDS[failed.outcome], markersize=5.5, clip_on=False, zorder=4)


def _legend_of(rows: Rows) -> list[Any]:
    """Entries of the heuristics, of the policies that dashes tell apart, and of the ends that occur."""
    first = next(iter(rows.values()))
    looks = {curve.look: {**curve.strokes, "linestyle": "solid"} for curve in reversed(first)}
    handles = [style.line_entry(**looks[look]) for look in dict.fromkeys(curve.look for curve in first)]
    policies = dict.fromkeys(curve.policy for curve in first)
    if len(policies) > 1 and len(looks) < len(first):
        for policy in policies:
            label, dash = style.POLICY_LOOKS[policy].label, style.POLICY_DASHES[policy]
            handles.append(style.line_entry(label, color=style.NEUTRAL, linestyle=dash))
    failures = [curve.failure for curve in _flat(rows) if curve.failure]
    for outcome, marker in _ENDS.items():
        before = [point for point, failed in failures if failed.outcome == outcome]
        if before:
            label = "thrashes" if outcome == "thrash" else outcome
            if outcome != "thrash" and None in before:
                label += " (on the lower edge: at all budgets)"
            handles.append(style.ending_entry(marker, label))
    return handles
