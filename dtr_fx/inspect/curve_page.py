"""A comparison as one HTML page: the curve as SVG and a table."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from dtr_fx.inspect.comparison import NAMES, Comparison, Mark, legs
from dtr_fx.inspect.page import document, row
from dtr_fx.units import format_bytes, format_percent

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
    body = (
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(comparison.title)}</p>",
        *_picture(comparison),
        *(f"<p>{escape(note)}</p>" for note in comparison.notes),
        '<div class="wide">',
        *_table(comparison),
        "</div>",
    )
    return document(title, "\n".join(body))


@dataclass(frozen=True)
class _Scale:
    """From shares of the peak and overheads to the picture's units."""

    bottom: float
    top: float

    def x(self, share: float) -> float:
        return round(_LEFT + share * (_WIDTH - _LEFT - _RIGHT), 1)

    def y(self, overhead: float) -> float:
        part = (min(overhead, self.top) - self.bottom) / (self.top - self.bottom)
        return round(_HEIGHT - _BOTTOM - part * (_HEIGHT - _TOP - _BOTTOM), 1)


def _scale(comparison: Comparison) -> tuple[_Scale, float]:
    """Whole ticks at both ends, and the distance of two ticks; some room above the highest mark."""
    step = next((step for step in _STEPS if comparison.top / step <= 6), _STEPS[-1])
    bottom = step * math.floor(comparison.bottom / step + 1e-9)
    return _Scale(bottom, step * math.ceil(comparison.top / step + 0.1)), step


def _picture(comparison: Comparison) -> Iterator[str]:
    scale, step = _scale(comparison)
    yield f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="extra compute over the budget">'
    yield from _grid(comparison, scale, step)
    yield from _bound(comparison, scale)
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
    yield (
        f'<text transform="translate(16 {(low + high) / 2}) rotate(-90)" text-anchor="middle">'
        "extra compute</text>"
    )


def _bound(comparison: Comparison, scale: _Scale) -> Iterator[str]:
    x = scale.x(comparison.share(comparison.curve.lower_bound))
    title = f"lower bound of any plan: {format_bytes(comparison.curve.lower_bound)}"
    line = f'x1="{x}" x2="{x}" y1="{scale.y(scale.bottom)}" y2="{scale.y(scale.top)}"'
    yield f'<line {line} stroke="currentColor" stroke-dasharray="3 4"><title>{title}</title></line>'
    yield _text(x - 6, scale.y(scale.top) + 12, "lower bound", "end")


def _curve(comparison: Comparison, scale: _Scale) -> Iterator[str]:
    """Level from each budget up to the next larger one: between them the smaller plan serves."""
    path = [f"M{scale.x(1)},{scale.y(0)}"]
    for low, high, overhead in legs(comparison.curve):
        path.append(f"L{scale.x(comparison.share(high))},{scale.y(overhead)}")
        path.append(f"L{scale.x(comparison.share(low))},{scale.y(overhead)}")
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
