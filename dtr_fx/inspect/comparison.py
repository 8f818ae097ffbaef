"""The curve of a training step beside other ways to run it, and its views: terminal, page, JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from html import escape
from itertools import groupby, pairwise
from typing import NamedTuple

from dtr_fx.inspect.html import document, row
from dtr_fx.inspect.text import BLOCKS, BOLD, DIM, YELLOW, Ink
from dtr_fx.report import Curve
from dtr_fx.units import format_bytes, format_percent, format_seconds

NAMES = {
    "eager": "eager",
    "checkpoint": "checkpoint per block",
    "partitioner": "PyTorch's partitioner",
    "optimum": "optimum",
}


@dataclass(frozen=True)
class Mark:
    """Another way to run the step, at the peak in bytes that it reaches, and its overhead.

    ``kind`` is a key of ``NAMES``; ``setting`` tells those of a kind apart.
    """

    kind: str
    setting: str
    peak: int
    overhead: float


@dataclass(frozen=True)
class Comparison:
    """``operators`` is how many the step has; ``notes`` say what is missing, or meant otherwise."""

    name: str
    operators: int
    curve: Curve
    marks: tuple[Mark, ...]
    notes: tuple[str, ...]

    @property
    def title(self) -> str:
        curve = self.curve
        return (
            f"{self.name}: {self.operators} operators, {format_seconds(curve.base_cost)} of compute, "
            f"peak {format_bytes(curve.baseline_peak)}, {format_bytes(curve.constants)} of it inputs and "
            f"parameters, lower bound {format_bytes(curve.lower_bound)}"
        )

    @property
    def kinds(self) -> list[str]:
        """The kinds of marks that there are, each once."""
        return list(dict.fromkeys(mark.kind for mark in self.marks))

    @property
    def rows(self) -> list[tuple[str, str, int | None, int, float]]:
        """Kind, setting, budget, peak and overhead of our plans, then of the marks, which have no budget."""
        ours = [("dtr", "", point.budget, point.peak, point.overhead) for point in self.curve.points]
        return ours + [(mark.kind, mark.setting, None, mark.peak, mark.overhead) for mark in self.marks]

    def share(self, nbytes: int) -> float:
        """Of the step's own peak, inputs and parameters in both."""
        return nbytes / self.curve.baseline_peak

    @property
    def top(self) -> float:
        """The highest overhead to draw: the smallest budgets can cost several times what the others do."""
        marks = [mark.overhead for mark in self.marks]
        points = [point.overhead for point in self.curve.points]
        return min(max(*marks, *points, 0.01), max(2 * max(marks, default=0.0), 0.5))


def _legs(curve: Curve) -> Iterator[tuple[int, int, float]]:
    """From each budget of the curve to the next larger one, and the overhead in between."""
    for larger, point in pairwise(curve.points):
        yield point.budget, larger.budget, point.overhead


def to_json(comparison: Comparison) -> str:
    """All that the comparison holds."""
    return json.dumps(asdict(comparison), indent=1) + "\n"


def to_csv(comparison: Comparison) -> str:
    """A row for each point and mark: bytes, and shares of the step's own peak and compute."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("kind", "setting", "budget", "peak", "share_of_peak", "overhead"))
    for *named, peak, overhead in comparison.rows:
        writer.writerow((*named, peak, comparison.share(peak), overhead))
    return text.getvalue()


# As text

_LETTERS = {"eager": "E", "checkpoint": "C", "partitioner": "P", "optimum": "o"}
_ABOVE = "▲"
_OVER = frozenset((*_LETTERS.values(), _ABOVE))  # what is drawn over the bars
_ROWS = 12
_MARGIN = 9  # columns for the overheads at the left
_NARROWEST, _WIDEST = 60, 110


def render_curve(comparison: Comparison, *, width: int = 100, color: bool = False) -> str:
    """Extra compute over the budget, a share of the step's own peak; 60 to 110 columns are taken."""
    ink = Ink(color)
    columns = min(max(width, _NARROWEST), _WIDEST) - _MARGIN - len("00%")
    lines = [ink(BOLD, "extra compute")]
    lines += _rows(comparison, columns, ink)
    lines += [_axis(columns), ink(DIM, _key(comparison))]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _rows(comparison: Comparison, columns: int, ink: Ink) -> Iterator[str]:
    unit = comparison.top / _ROWS
    # Rounded up: what costs something is seen.
    heights = [math.ceil(8 * overhead / unit - 1e-9) for overhead in _bars(comparison, columns)]
    letters = _letters(comparison, columns, unit)
    for level in reversed(range(_ROWS)):
        cells = (
            letters.get((level, column)) or BLOCKS[min(max(height - 8 * level, 0), 8)]
            for column, height in enumerate(heights)
        )
        runs = groupby(cells, key=_OVER.__contains__)
        drawn = (ink(YELLOW if is_mark else "", "".join(run)) for is_mark, run in runs)
        label = format_percent((level + 1) * unit) if level % 3 == 2 else ""
        yield f"{label:>{_MARGIN - 2}} ┤" + "".join(drawn)


def _bars(comparison: Comparison, columns: int) -> Iterator[float]:
    """The overhead at the budget in the middle of each column, 0 where no plan fits."""
    steps = list(_legs(comparison.curve))
    for column in range(columns):
        budget = comparison.curve.baseline_peak * (column + 0.5) / columns
        yield next((overhead for low, high, overhead in steps if low <= budget < high), 0.0)


def _letters(comparison: Comparison, columns: int, unit: float) -> dict[tuple[int, int], str]:
    """By row and column; the curve that leaves the picture is marked at its upper edge."""
    letters = {
        (_ROWS - 1, _column(comparison, low, columns)): _ABOVE
        for low, _, overhead in _legs(comparison.curve)
        if overhead > comparison.top
    }
    # Eager last: a partitioner that is told to keep all is at the same place.
    for mark in sorted(comparison.marks, key=lambda mark: -[*_LETTERS].index(mark.kind)):
        level = min(max(int(mark.overhead / unit), 0), _ROWS - 1)
        letters[level, _column(comparison, mark.peak, columns)] = _LETTERS[mark.kind]
    return letters


def _column(comparison: Comparison, nbytes: int, columns: int) -> int:
    return min(int(comparison.share(nbytes) * columns), columns - 1)


def _axis(columns: int) -> str:
    ticks = [" "] * (columns + 4)
    rule = ["─"] * columns
    for percent in range(0, 101, 20):
        column = min(columns * percent // 100, columns - 1)
        rule[column] = "┴"
        ticks[column : column + 4] = f"{percent}%".ljust(4)
    return f"{'0%':>{_MARGIN - 2}} └{''.join(rule)}\n{'':{_MARGIN}}{''.join(ticks)}"


def _key(comparison: Comparison) -> str:
    low = comparison.curve.points[-1]
    letters = [f"{_LETTERS[kind]} {NAMES[kind]}" for kind in comparison.kinds]
    beyond = [f"{_ABOVE} above the picture"] if low.overhead > comparison.top else []
    smallest = f"{format_bytes(low.budget)} = {format_percent(comparison.share(low.budget))}"
    whole = format_bytes(comparison.curve.baseline_peak)
    return "   ".join((f"budget, of {whole}; no plan below {smallest}\n█ dtr", *letters, *beyond))


# As a page: the curve as SVG, and a table

# Colours of Okabe and Ito, which colour-blind people can tell apart; each mark has a shape of its own.
_LOOKS = {
    "eager": ("#777777", "M-5,-5H5V5H-5Z"),
    "checkpoint": ("#D55E00", "M0,-7L6,4.5H-6Z"),
    "partitioner": ("#009E73", "M0,-6.5L6.5,0L0,6.5L-6.5,0Z"),
    "optimum": ("#CC79A7", "M-5,0H5M0,-5V5M-4,-4L4,4M-4,4L4,-4"),
}
_OURS = "#0072B2"
_WIDTH, _HEIGHT = 860, 460
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 30, 20, 60
_STEPS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.25, 0.5, 1.0, 2.0, 5.0)


def curve_page(comparison: Comparison) -> str:
    """The page, complete in itself."""
    title = f"{comparison.name}: budget and extra compute"
    heading = f"<h1>{escape(title)}</h1>\n<p>{escape(comparison.title)}</p>"
    notes = (f"<p>{escape(note)}</p>" for note in comparison.notes)
    table = ('<div class="wide">', *_table(comparison), "</div>")
    return document(title, "\n".join((heading, *_picture(comparison), *notes, *table)))


class _Scale(NamedTuple):
    """From shares of the peak and overheads to the picture's units."""

    bottom: float
    top: float

    def x(self, share: float) -> float:
        return round(_LEFT + share * (_WIDTH - _LEFT - _RIGHT), 1)

    def y(self, overhead: float) -> float:
        part = (min(overhead, self.top) - self.bottom) / (self.top - self.bottom)
        return round(_HEIGHT - _BOTTOM - part * (_HEIGHT - _TOP - _BOTTOM), 1)


def _picture(comparison: Comparison) -> Iterator[str]:
    """Whole ticks at both ends, with some room above the highest mark."""
    step = next((step for step in _STEPS if comparison.top / step <= 6), _STEPS[-1])
    # Below 0: a partitioner that merges operators can save compute.
    lowest = min([0.0, *(mark.overhead for mark in comparison.marks)])
    bottom = step * math.floor(lowest / step + 1e-9)
    scale = _Scale(bottom, step * math.ceil(comparison.top / step + 0.1))
    yield f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="extra compute over the budget">'
    yield from _grid(comparison, scale, step)
    yield from _curve(comparison, scale)
    for mark in comparison.marks:
        yield _mark(comparison, mark, scale)
    yield from _legend(comparison)
    yield "</svg>"


def _grid(comparison: Comparison, scale: _Scale, step: float) -> Iterator[str]:
    left, right, low, high = scale.x(0), scale.x(1), scale.y(scale.bottom), scale.y(scale.top)
    for number in range(round((scale.top - scale.bottom) / step) + 1):
        overhead = scale.bottom + number * step
        y = scale.y(overhead)
        yield f'<line class="grid" x1="{left}" x2="{right}" y1="{y}" y2="{y}"/>'
        yield _text(left - 8, y + 4, f"{100 * overhead:.0f}%", "end")
    for tenths in range(0, 11, 2):
        x = scale.x(tenths / 10)
        yield f'<line class="grid" x1="{x}" x2="{x}" y1="{low}" y2="{high}"/>'
        yield _text(x, low + 18, f"{10 * tenths}%", "middle")
    peak = format_bytes(comparison.curve.baseline_peak)
    yield _text((left + right) / 2, low + 40, f"budget, or peak reached, of the step's own {peak}", "middle")
    place = f'transform="translate(16 {(low + high) / 2}) rotate(-90)" text-anchor="middle"'
    yield f"<text {place}>extra compute</text>"
    x = scale.x(comparison.share(comparison.curve.lower_bound))
    title = f"lower bound of any plan: {format_bytes(comparison.curve.lower_bound)}"
    line = f'x1="{x}" x2="{x}" y1="{low}" y2="{high}" stroke="currentColor" stroke-dasharray="3 4"'
    yield f"<line {line}><title>{title}</title></line>"
    yield _text(x - 6, high + 12, "lower bound", "end")


def _curve(comparison: Comparison, scale: _Scale) -> Iterator[str]:
    """Level from each budget up to the next larger one: between them the smaller plan serves."""
    path = [f"M{scale.x(1)},{scale.y(0)}"]
    for low, high, overhead in _legs(comparison.curve):
        path += [f"L{scale.x(comparison.share(nbytes))},{scale.y(overhead)}" for nbytes in (high, low)]
    yield f'<path d="{" ".join(path)}" fill="none" stroke="{_OURS}" stroke-width="2.5"/>'
    for point in comparison.curve.points:
        title = _title("dtr", comparison, point.budget, point.overhead)
        x, y = scale.x(comparison.share(point.budget)), scale.y(point.overhead)
        yield f'<circle cx="{x}" cy="{y}" r="3.5" fill="{_OURS}"><title>{title}</title></circle>'
        if point.overhead > scale.top:
            yield _text(x, y - 6, f"▲ {format_percent(point.overhead)}", "middle")


def _mark(comparison: Comparison, mark: Mark, scale: _Scale) -> str:
    color, shape = _LOOKS[mark.kind]
    title = _title(_name(mark.kind, mark.setting), comparison, mark.peak, mark.overhead)
    x, y = scale.x(comparison.share(mark.peak)), scale.y(mark.overhead)
    place = f'transform="translate({x} {y})" fill="{color}" stroke="{color}" fill-opacity="0.75"'
    return f'<path d="{shape}" {place}><title>{title}</title></path>'


def _title(name: str, comparison: Comparison, nbytes: int, overhead: float) -> str:
    share = format_percent(comparison.share(nbytes))
    return escape(f"{name}: {format_bytes(nbytes)} = {share}, extra compute {format_percent(overhead)}")


def _legend(comparison: Comparison) -> Iterator[str]:
    """At the upper right, where no plan for much memory costs much."""
    x, y = _WIDTH - 200, _TOP + 20
    yield f'<path d="M{x - 12},{y}H{x + 12}" stroke="{_OURS}" stroke-width="2.5"/>'
    yield _text(x + 20, y + 4, "dtr", "start")
    for number, kind in enumerate(comparison.kinds, 1):
        color, shape = _LOOKS[kind]
        at = y + 20 * number
        yield f'<path d="{shape}" transform="translate({x} {at})" fill="{color}" stroke="{color}"/>'
        yield _text(x + 20, at + 4, NAMES[kind], "start")


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'


def _table(comparison: Comparison) -> Iterator[str]:
    yield "<table>"
    yield row("th", ("", "budget", "peak", "of the own peak", "extra compute"))
    for kind, setting, budget, peak, overhead in comparison.rows:
        asked = "" if budget is None else format_bytes(budget)
        percents = format_percent(comparison.share(peak)), format_percent(overhead)
        yield row("td", (_name(kind, setting), asked, format_bytes(peak), *percents))
    yield "</table>"


def _name(kind: str, setting: str) -> str:
    return f"{NAMES.get(kind, kind)} {setting}".strip()
