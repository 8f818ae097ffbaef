"""The look of each heuristic, the grid of panels, and the legend, in all figures.

Colours are those of Okabe and Ito and of Paul Tol's muted scheme, which colour-blind people can tell apart;
each comes with a marker of its own.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dtr_fx.errors import DTRError
from dtr_fx.runtime import Deallocation

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_PANEL = (3.1, 2.5)  # inches
_MARGIN = (0.5, 1.4)
_LEAST = (5.0, 3.0)  # so that title and legend have room
_COLUMNS = 4
_LEGEND_ENTRY = 1.45  # inches
_LETTER = 0.092
_DPI = 150
_ENDING: Any = (0, (1, 1.5))
NEUTRAL, LIGHT = "#333333", "#D0D0D0"


@dataclass(frozen=True)
class Look:
    """How one curve is drawn, and what the legend calls it."""

    label: str
    color: str
    marker: str


_COSTS = {"exact": "e^*", "eq": r"\tilde{e}^*", "local": r"\mathrm{local}", "no": "-"}
_FACTORS = {
    ("s", "m"): ("#332288", "o"),
    ("s", "-"): ("#44AA99", "s"),
    ("-", "m"): ("#CC6677", "D"),
    ("-", "-"): ("#999933", "v"),
}

_HEURISTICS: dict[str, Look] = {
    "dtr": Look(r"$h_\mathrm{DTR}$", "#0072B2", "o"),
    "dtr-eq": Look(r"$h_\mathrm{DTR}^\mathrm{eq}$", "#D55E00", "s"),
    "dtr-local": Look(r"$h_\mathrm{DTR}^\mathrm{local}$", "#009E73", "D"),
    "lru": Look(r"$h_\mathrm{LRU}$", "#E69F00", "v"),
    "size": Look(r"$h_\mathrm{size}$", "#CC79A7", "P"),
    "msps": Look(r"$h_\mathrm{MSPS}$", "#56B4E9", "h"),
    "rand": Look(r"$h_\mathrm{rand}$", "#777777", "<"),
    "coop": Look("Coop", "#AA4499", "X"),
    "mge": Look("MegEngine", "#DDCC77", "d"),
    "next-use": Look("next use", "#000000", "p"),
    "next-use-root": Look("next use, root", "#882255", ">"),
} | {
    f"h'({staleness}, {size}, {cost})": Look(f"$h'({staleness},\\ {size},\\ {sign})$", color, marker)
    for (staleness, size), (color, marker) in _FACTORS.items()
    for cost, sign in _COSTS.items()
}

POLICY_LOOKS: dict[Deallocation, Look] = {
    "ignore": Look("ignore", "#CC6677", "v"),
    "eager": Look("eager eviction", "#332288", "o"),
    "banish": Look("banish", "#117733", "s"),
}
POLICY_DASHES: dict[Deallocation, Any] = {"ignore": "dotted", "eager": "solid", "banish": "dashed"}


def require_matplotlib() -> None:
    """Make sure that pictures can be drawn."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        raise DTRError("figures need matplotlib: pip install 'dtr_fx[plot]'") from None


def heuristic_looks(names: Iterable[str]) -> dict[str, Look]:
    """The look of each heuristic; those that are not known here share one."""
    return {name: _HEURISTICS.get(name, Look(name, "#117733", "*")) for name in names}


def strokes(look: Look, rank: int, of: int) -> dict[str, Any]:
    """How to plot the curve of that rank: later ones are thinner, so that those below them show."""
    thickness = 1 - rank / max(of, 1)
    return {
        "color": look.color,
        "marker": look.marker,
        "linewidth": 1.0 + 1.4 * thickness,
        "markersize": 3.5 + 3.0 * thickness,
        "markeredgewidth": 0,
        "label": look.label,
    }


def panels(
    number: int, title: str, x_label: str, y_label: str, *, size: tuple[float, float] = _PANEL
) -> tuple[Figure, list[Axes]]:
    """A figure of that many panels, four in a row at most, under a title; a panel's ``size`` is in inches."""
    require_matplotlib()
    from matplotlib.figure import Figure

    rows = math.ceil(number / _COLUMNS)
    columns = math.ceil(number / rows)
    width = max(columns * size[0], _LEAST[0]) + _MARGIN[0]
    height = max(rows * size[1], _LEAST[1]) + _MARGIN[1]
    figure = Figure(figsize=(width, height), dpi=_DPI, layout="constrained")
    grid: list[Axes] = list(figure.subplots(rows, columns, sharey=True, squeeze=False).flat)
    for unused in grid[number:]:
        unused.remove()
    # Not the figure's own label: a legend below the panels would lie over it.
    for lowest in grid[max(number - columns, 0) : number]:
        lowest.set_xlabel(x_label, fontsize=9)
    figure.supylabel(y_label, fontsize=10)
    lines = [textwrap.fill(line, int(width / _LETTER)) for line in title.splitlines()]
    figure.suptitle("\n".join(lines), fontsize=11)
    return figure, grid[:number]


def ratio_panels(titles: Sequence[str], title: str, y_label: str) -> tuple[Figure, list[Axes]]:
    """Panels over memory ratios."""
    figure, axes = panels(len(titles), title, "memory ratio (budget / unlimited peak)", y_label)
    for own, panel in zip(titles, axes):
        panel.set_title(own, fontsize=10)
        panel.tick_params(labelsize=8)
        panel.grid(visible=True, color="#E4E4E4", linewidth=0.6)
        panel.set_axisbelow(True)
        panel.spines[["top", "right"]].set_visible(False)
    return figure, axes


def draw_ending(axes: Axes, color: str, ratios: Sequence[float], values: Sequence[float]) -> None:
    """The way from a curve's last point to the mark that tells why it ends."""
    axes.plot(ratios, values, color=color, linestyle=_ENDING, linewidth=1)


def line_entry(label: str, **strokes: Any) -> Any:
    """The legend's entry for a line."""
    from matplotlib.lines import Line2D

    return Line2D([], [], label=label, **strokes)


def ending_entry(marker: str, label: str) -> Any:
    """The legend's entry for a mark at the end of curves."""
    return line_entry(label, color=NEUTRAL, marker=marker, linestyle=_ENDING)


def area_entry(label: str, color: str, **strokes: Any) -> Any:
    """The legend's entry for an area."""
    from matplotlib.patches import Patch

    return Patch(facecolor=color, label=label, **strokes)


def legend_below(figure: Figure, handles: Sequence[Any]) -> None:
    """One legend for all panels."""
    # Mathematical labels are short, however long they are to write.
    letters = [len(handle.get_label()) for handle in handles if "$" not in handle.get_label()]
    entry = max(_LEGEND_ENTRY, 0.65 + 0.08 * max(letters, default=0))
    columns = max(2, min(len(handles), int(figure.get_figwidth() / entry)))
    rows = math.ceil(len(handles) / columns)
    figure.legend(
        handles=list(handles),
        loc="outside lower center",
        ncols=math.ceil(len(handles) / rows),
        frameon=False,
        fontsize=9,
        handlelength=2.2,
    )
