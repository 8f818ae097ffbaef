"""Memory over the operators of a step, before and after, as block characters with the budget as a line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from dtr_fx.inspect.table import table
from dtr_fx.inspect.text import BLOCKS, BOLD, RED, YELLOW, Ink, clip, without_folder
from dtr_fx.report import KINDS, Point, Report
from dtr_fx.units import format_bytes

_LINE = "▔"
_NARROWEST = 72
_TALL = 12  # rows of a chart that stands alone


def render_timeline(report: Report, *, width: int = 100, color: bool = False) -> str:
    """Both charts, and the live bytes at their peaks, by kind."""
    ink = Ink(color)
    lines = [ink(BOLD, report.summary()), "", *timelines(report, max(width, _NARROWEST), ink, _TALL)]
    return "\n".join([*(line.rstrip() for line in lines), _parts_table(report)]) + "\n"


def _parts_table(report: Report) -> str:
    """The bytes that are live at the two peaks, by kind."""
    if not (report.before and report.after):
        return ""
    peaks = [max(points, key=lambda point: point.live) for points in (report.before, report.after)]
    kinds = zip(KINDS, *(point.parts for point in peaks))
    rows = [
        ("operator", *(point.name for point in peaks)),
        *((kind, *map(format_bytes, parts)) for kind, *parts in kinds if any(parts)),
        ("live", *(format_bytes(point.live) for point in peaks)),
    ]
    return table([dict(zip(("at the peak", "before", "after"), row)) for row in rows])


@dataclass(frozen=True)
class _Scale:
    """``unit`` bytes a row; the budget lies on the top edge of row ``line - 1`` (0: not drawn)."""

    unit: Fraction
    line: int


def _scale(report: Report, rows: int) -> _Scale:
    """One scale for both timelines, on which the budget falls between two rows."""
    top = max((point.live for point in (*report.before, *report.after)), default=0) or 1
    if not top <= 10 * report.budget <= 15 * top:  # the line would leave no room for the memory
        return _Scale(Fraction(top, rows), 0)
    line = max(1, round(Fraction(rows * report.budget, top)))
    return _Scale(Fraction(report.budget, line), line)


def timelines(report: Report, width: int, ink: Ink, rows: int = 4) -> Iterator[str]:
    """The lines of both charts, ``rows`` high up to the highest point, each under its title."""
    scale = _scale(report, rows)
    label = f" budget {format_bytes(report.budget)}"
    sources = sources_by_name(report)
    for title, points, peak in (
        ("before", report.before, report.baseline_peak),
        ("after", report.after, report.planned_peak),
    ):
        yield ink(BOLD, title) + clip(f"  {peak_at(points, peak, sources)}", width - len(title))
        for row, cells in _bars(_resample(points, width - len(label)), scale):
            at_line = row == scale.line - 1
            bar = ink(RED if scale.line and row >= scale.line else "", cells)
            yield bar + (ink(YELLOW, label) if at_line else "")
        yield ""


def sources_by_name(report: Report) -> dict[str, str]:
    """The user's lines of all operators, before and after."""
    sources = {event.origin: event.source for event in report.events}
    return sources | {event.name: event.source for event in report.events}


def peak_at(points: Sequence[Point], peak: int, sources: dict[str, str]) -> str:
    """The peak, its operator, and the user's line."""
    if not points:
        return "no operators"
    name = max(points, key=lambda point: point.live).name
    return f"peak {format_bytes(peak)} at {name}  {without_folder(sources.get(name, ''))}"


def _resample(points: Sequence[Point], columns: int) -> list[int]:
    """The highest live bytes of each column's share of the operators, so that no peak is lost."""
    count = len(points)
    spans = ((i * count // columns, -(-(i + 1) * count // columns)) for i in range(columns if count else 0))
    return [max(point.live for point in points[start:stop]) for start, stop in spans]


def _bars(live: Sequence[int], scale: _Scale) -> Iterator[tuple[int, str]]:
    """Rows from the highest that is used down, each with its number."""
    # Rounded up: a byte above the budget shows above its line.
    eighths = [-(-8 * nbytes // scale.unit) for nbytes in live]
    rows = max([scale.line, *(-(-height // 8) for height in eighths)]) if eighths else 0
    for row in reversed(range(rows)):
        cells = (BLOCKS[min(max(height - 8 * row, 0), 8)] for height in eighths)
        empty = _LINE if row == scale.line - 1 else " "
        yield row, "".join(empty if cell == " " else cell for cell in cells)
