"""Storage accesses against memory ratio: Figure 12 (Appendix D.3)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from dtr_fx.lab.figures.curves import Curve, curves, draw_curve, legend_of
from dtr_fx.lab.figures.slowdowns import MEMORY_RATIO, TICKS, panel_style
from dtr_fx.lab.figures.style import legend_below, panels, require_matplotlib
from dtr_fx.lab.replay import Replay
from dtr_fx.units import format_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def plot_accesses(replays: Sequence[Replay], title: str) -> Figure:
    """A panel for each program: accesses to evaluate the heuristic and to keep its metadata, added up.

    The thin dashed line below a curve counts those to keep the metadata alone.
    """
    require_matplotlib()
    from matplotlib.lines import Line2D

    rows = curves(replays, lambda replay: replay.scored + replay.maintained)
    kept = curves(replays, lambda replay: replay.maintained)
    figure, axes = panels(len(rows), title, MEMORY_RATIO, "storages accessed")
    wholes = {replay.program: replay.whole for replay in replays}
    bottom, top = _limits([*rows.values(), *kept.values()])
    for (name, row), panel in zip(rows.items(), axes):
        panel_style(panel, f"{name} ({format_bytes(wholes[name])})")
        panel.set(yscale="log", ylim=(bottom, top), xlim=(0, 1), xticks=TICKS)
        for curve, metadata in zip(row, kept[name]):
            ratios = [point.ratio for point in metadata.points]
            counted = [point.value or math.nan for point in metadata.points]
            panel.plot(ratios, counted, color=curve.look.color, linestyle="dashed", linewidth=0.9)
            draw_curve(panel, curve)
    metadata_line = Line2D(
        [], [], color="#333333", linestyle="dashed", linewidth=0.9, label="of which metadata"
    )
    legend_below(figure, [*legend_of(rows), metadata_line])
    return figure


def _limits(rows: Iterable[Sequence[Curve]]) -> tuple[float, float]:
    counts = [point.value for row in rows for curve in row for point in curve.points if point.value > 0]
    return min(counts, default=1.0) / 2, max(counts, default=1.0) * 2
