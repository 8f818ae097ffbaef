"""Memory over the operators of a step, before and after, as block characters with the budget as a line."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction

from dtr_fx.inspect.table import table
from dtr_fx.inspect.text import BLOCKS, BOLD, RED, YELLOW, Ink, clip, without_folder, wrap
from dtr_fx.report import KINDS, Point, Report
from dtr_fx.units import format_bytes

NARROWEST = 72
_LINE = "▔"
_TALL = 12  # rows of a chart that stands alone


def render_timeline(report: Report, *, width: int = 100, color: bool = False) -> str:
    """Both charts, and the live bytes at their peaks, by kind."""
    ink = Ink(color)
    width = max(width, NARROWEST)
    lines = [ink(BOLD, wrap(report.summary(), width)), "", *timelines(report, width, ink, _TALL)]
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


def timelines(report: Report, width: int, ink: Ink, rows: int = 4) -> Iterator[str]:
    """The lines of both charts, ``rows`` high up to the highest point, each under its title."""
    unit, budget_row = _scale(report, rows)
    label = f" budget {format_bytes(report.budget)}"
    for title, points, peak in zip(("before", "after"), (report.before, report.after), peak_lines(report)):
        yield ink(BOLD, title) + clip(f"  {peak}", width - len(title))
        # Rounded up: a byte above the budget shows above its line.
        eighths = [-(-8 * nbytes // unit) for nbytes in _resample(points, width - len(label))]
        used = max(budget_row + 1, *(-(-height // 8) for height in eighths)) if eighths else 0
        for row in reversed(range(used)):
            cells = "".join(BLOCKS[min(max(height - 8 * row, 0), 8)] for height in eighths)
            if row == budget_row:
                yield cells.replace(" ", _LINE) + ink(YELLOW, label)
            else:
                yield ink(RED if 0 <= budget_row < row else "", cells)
        yield ""


def _scale(report: Report, rows: int) -> tuple[Fraction, int]:
    """The bytes of a row, in both charts, and the row on whose top edge the budget lies (-1: not drawn)."""
    top = max((point.live for point in (*report.before, *report.after)), default=0) or 1
    if not top <= 10 * report.budget <= 15 * top:  # the line would leave no room for the memory
        return Fraction(top, rows), -1
    line = max(1, round(Fraction(rows * report.budget, top)))
    return Fraction(report.budget, line), line - 1


def peak_lines(report: Report) -> Iterator[str]:
    """Before and after: the peak, its operator, and the user's line."""
    source_of = {event.origin: event.source for event in report.events}
    source_of |= {event.name: event.source for event in report.events}
    for points, peak in ((report.before, report.baseline_peak), (report.after, report.planned_peak)):
        name = max(points, key=lambda point: point.live).name if points else ""
        source = without_folder(source_of.get(name, ""))
        yield f"peak {format_bytes(peak)} at {name}  {source}" if points else "no operators"


def _resample(points: Sequence[Point], columns: int) -> list[int]:
    """The highest live bytes of each column's share of the operators, so that no peak is lost."""
    count = len(points)
    spans = ((i * count // columns, -(-(i + 1) * count // columns)) for i in range(columns if count else 0))
    return [max(point.live for point in points[start:stop]) for start, stop in spans]
