"""Slowdown against memory ratio: Figures 2, 7 to 10 and 11, and the picture of any sweep."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from dtr_fx.lab.figures.curves import Curve, curves, draw_curve, legend_of
from dtr_fx.lab.figures.style import legend_below, panels
from dtr_fx.lab.replay import Replay
from dtr_fx.runtime.program import Call, Program
from dtr_fx.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MEMORY_RATIO = "memory ratio (budget / unlimited peak)"

TICKS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
_TOPS = (1.2, 1.5, 2, 3, 5, 10, 20, 50, 100)
_CONSTANTS, _OPERATOR = "#555555", "#D0D0D0"


def plot_slowdowns(replays: Sequence[Replay], title: str, programs: Iterable[Program] = ()) -> Figure:
    """A panel for each program, a curve for each heuristic and deallocation policy.

    A curve ends where the replay runs out of memory or thrashes; a marker at that budget tells which, and
    smaller budgets that do again are points of their own.  Several replays of one heuristic, policy and
    budget, as of a random one, are shown as their mean, and a band from the least to the most.

    Parameters
    ----------
    replays:
        As ``Sweep.run`` returns them.  Replays without a limit are left out.
    title:
        The subject of the figure, and its source.
    programs:
        Those that were replayed, for the two areas of Figure 2: budgets that do not even hold the constants,
        and those that do not hold the largest operator beside them.
    """
    replays = [replay for replay in replays if math.isfinite(replay.budget)]
    if not replays:
        raise ValueError("there is nothing to draw: no replay has a budget")
    rows = curves(replays, lambda replay: replay.slowdown)
    floors = {program.name: program for program in programs}
    figure, axes = panels(len(rows), title, MEMORY_RATIO, "slowdown (total / base cost)")
    top, right = _limits(rows)
    wholes = {replay.program: replay.whole for replay in replays}
    for (name, row), panel in zip(rows.items(), axes):
        panel_style(panel, f"{name} ({format_bytes(wholes[name])})")
        panel.set(ylim=(1 - 0.03 * (top - 1), top), xlim=(0, right), xticks=TICKS)
        if name in floors:
            _shade(panel, floors[name])
        for curve in row:
            draw_curve(panel, curve)
    legend_below(figure, [*legend_of(rows), *(_areas() if floors else ())])
    return figure


def panel_style(axes: Axes, title: str) -> None:
    """The style of all panels over memory ratios."""
    axes.set_title(title, fontsize=10)
    axes.tick_params(labelsize=8)
    axes.grid(visible=True, color="#E4E4E4", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _limits(rows: dict[str, list[Curve]]) -> tuple[float, float]:
    """Where the axes end: slowdown, and memory ratio."""
    every = [point for row in rows.values() for curve in row for point in curve.points]
    slowest = max((point.high for point in every if point.outcome == "ok"), default=1.0)
    top = next((top for top in _TOPS if top >= slowest), slowest)
    return top, max(1.0, 1.02 * max(point.ratio for point in every))


def _shade(axes: Axes, program: Program) -> None:
    constants = program.constants / program.peak
    operator = largest_operator(program) / program.peak
    axes.axvspan(0, constants, facecolor=_CONSTANTS, linewidth=0)
    axes.axvspan(constants, constants + operator, facecolor=_OPERATOR, linewidth=0)


def largest_operator(program: Program) -> int:
    """The most bytes that one operator reads, makes and works in, constants aside."""
    made = {output.tensor for call in program.calls() for output in call.outputs if output.alias is None}

    def touched(call: Call) -> int:
        tensors = (*call.inputs, *(output.tensor for output in call.outputs))
        return sum(program.sizes[storage] for storage in {program.storages[one] for one in tensors} & made)

    return max((call.workspace + touched(call) for call in program.calls()), default=0)


def _areas() -> list[Any]:
    from matplotlib.patches import Patch

    return [
        Patch(facecolor=_CONSTANTS, label="inputs and weights"),
        Patch(facecolor=_OPERATOR, label="largest operator"),
    ]
