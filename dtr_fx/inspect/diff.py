"""A report as text: the verdict, memory over time before and after, and the folded diff.

    render_diff
    ├── Report.summary      did it fit, and what did that cost
    ├── _timelines          memory over operators as block characters, one scale, the budget as a line
    └── _sections           one per phase, in execution order
        └── _fold           which events are shown, and how many operators lie between

Nodes are matched by the node of the original graph that they stand for, not by their own names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import groupby

from dtr_fx.inspect.text import BLOCKS, BOLD, DIM, GREEN, RED, YELLOW, Ink
from dtr_fx.report import Event, Point, Report
from dtr_fx.units import format_bytes, format_count, format_seconds

_LINE = "▔"
_ROWS = 4  # of a timeline, up to its highest point
_CONTEXT = 1  # unchanged operators shown on either side of a change
_NARROWEST = 72
_MARKS = {"drop": ("-", RED), "recompute": ("+", GREEN)}


def render_diff(report: Report, *, width: int = 100, color: bool = False) -> str:
    """What a plan did to a graph, for people to read.

    Parameters
    ----------
    report:
        The outcome of one plan.
    width:
        Columns to fill; at least 72 are taken.
    color:
        Whether to use the terminal's escape sequences.
    """
    ink = Ink(color)
    width = max(width, _NARROWEST)
    lines = [ink(_verdict_color(report), report.summary()), ink(DIM, circumstances(report)), ""]
    lines += _timelines(report, width, ink)
    lines += _sections(report.events, width, ink)
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _verdict_color(report: Report) -> str:
    return BOLD if report.planned_peak <= report.budget else f"{BOLD};{RED}"


def circumstances(report: Report) -> str:
    """One line: the heuristic, the device, compute before and after, the lower bound."""
    return (
        f"{report.heuristic} on {report.device}; compute {format_seconds(report.base_cost)} → "
        f"{format_seconds(report.total_cost)}; lower bound of any plan {format_bytes(report.lower_bound)}"
    )


# Memory over time


@dataclass(frozen=True)
class _Scale:
    """``unit`` bytes a row; the budget lies on the top edge of row ``line - 1`` (0: not drawn)."""

    unit: Fraction
    line: int


def _scale(report: Report) -> _Scale:
    """One scale for both timelines, on which the budget falls between two rows."""
    top = max((point.live for point in (*report.before, *report.after)), default=0) or 1
    if not top <= 10 * report.budget <= 15 * top:  # the line would leave no room for the memory
        return _Scale(Fraction(top, _ROWS), 0)
    line = max(1, round(Fraction(_ROWS * report.budget, top)))
    return _Scale(Fraction(report.budget, line), line)


def _timelines(report: Report, width: int, ink: Ink) -> Iterator[str]:
    scale = _scale(report)
    label = f" budget {format_bytes(report.budget)}"
    sources = sources_by_name(report)
    for title, points, peak in (
        ("before", report.before, report.baseline_peak),
        ("after", report.after, report.planned_peak),
    ):
        yield ink(BOLD, title) + _clip(f"  {peak_at(points, peak, sources)}", width - len(title))
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
    return f"peak {format_bytes(peak)} at {name}  {_without_folder(sources.get(name, ''))}"


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


# The folded diff


@dataclass(frozen=True)
class _Fold:
    """Unchanged operators that are not shown one by one."""

    operators: int
    live: int


@dataclass(frozen=True)
class _Columns:
    """Widths of the columns that give way when the line is narrow."""

    name: int
    why: int
    source: int


def _sections(events: Sequence[Event], width: int, ink: Ink) -> Iterator[str]:
    # A banished storage is freed where the original graph frees it too: nothing changed there.
    steps = [event for event in events if event.kind != "banish"]
    shown = [(phase, _fold(list(group))) for phase, group in groupby(steps, key=lambda event: event.phase)]
    columns = _columns([row for _, rows in shown for row in rows if isinstance(row, Event)], width)
    if shown:
        yield ink(DIM, _head(columns))
    for phase, rows in shown:
        if phase:
            yield ink(BOLD, _title(phase, rows, width))
        for row in rows:
            if isinstance(row, _Fold):
                yield ink(DIM, _fold_line(row, width))
            else:
                yield ink(_MARKS.get(row.kind, (" ", ""))[1], _event_line(row, columns))


def _fold(events: Sequence[Event]) -> list[Event | _Fold]:
    """Every change with its context; runs of other operators become one entry."""
    changes = [i for i, event in enumerate(events) if event.kind in _MARKS]
    near = {i + offset for i in changes for offset in range(-_CONTEXT, _CONTEXT + 1)}
    rows: list[Event | _Fold] = []
    for is_near, group in groupby(range(len(events)), key=near.__contains__):
        run = [events[i] for i in group]
        if is_near or len(run) == 1:  # a fold of one operator saves no line
            rows += run
        else:
            rows.append(_Fold(len(run), max(event.live for event in run)))
    return rows


def _columns(rows: Sequence[Event], width: int) -> _Columns:
    room = width - len(_row("", "", "", "", "", "", _Columns(0, 0, 0)))
    name = min(max((len(_name(event)) for event in rows), default=0), room * 2 // 5)
    why = min(max((len(_why(event)) for event in rows), default=0), (room - name) // 2)
    return _Columns(name, why, room - name - why)


def _row(mark: str, verb: str, name: str, size: str, why: str, source: str, columns: _Columns) -> str:
    """All columns but the last, which is the live bytes."""
    cells = (
        f"{mark:1} {verb:9}",
        f"{_shorten(name, columns.name):{columns.name}}",
        f"{size:>9}",
        f"{_clip(why, columns.why):{columns.why}}",
        f"{_clip_source(source, columns.source):{columns.source}}",
    )
    return "  ".join(cells) + f"{'':11}"


def _head(columns: _Columns) -> str:
    return _with_live(_row("", "", "operator", "bytes", "why (score)", "source", columns), "live")


def _title(phase: str, rows: Sequence[Event | _Fold], width: int) -> str:
    kinds = [row.kind for row in rows if isinstance(row, Event)]
    operators = kinds.count("compute") + sum(row.operators for row in rows if isinstance(row, _Fold))
    text = (
        f"── {phase}: {format_count(operators, 'operator')}, {format_count(kinds.count('drop'), 'drop')}, "
        f"{format_count(kinds.count('recompute'), 'recompute')} "
    )
    return f"{text:─<{width}}"


def _fold_line(fold: _Fold, width: int) -> str:
    operators = f"    … {format_count(fold.operators, 'operator')}"
    return _with_live(f"{operators:{width}}", f"≤ {format_bytes(fold.live)}")


def _event_line(event: Event, columns: _Columns) -> str:
    mark, _ = _MARKS.get(event.kind, (" ", ""))
    verb = event.kind if event.kind in _MARKS else ""
    # Half a score says nothing: where it does not fit, the reason stands alone.
    why = _why(event) if len(_why(event)) <= columns.why else event.reason
    row = _row(mark, verb, _name(event), format_bytes(event.nbytes), why, event.source, columns)
    return _with_live(row, format_bytes(event.live))


def _with_live(line: str, live: str) -> str:
    return line[: len(line) - len(live)] + live


def _name(event: Event) -> str:
    """The node of the original graph: the same name where a value is dropped and where it is remade."""
    return event.origin or event.name


def _why(event: Event) -> str:
    score = "" if event.score is None else f"({event.score:.2g})"
    return f"{event.reason} {score}".strip()


def _shorten(text: str, width: int) -> str:
    """Cut in the middle: the number at the end of a node's name tells it from its siblings."""
    if len(text) <= width:
        return text
    tail = (width - 1) // 2
    return _clip(text, width - tail) + text[len(text) - tail :]


def _clip(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"


def _clip_source(source: str, width: int) -> str:
    return source if len(source) <= width else _clip(_without_folder(source), width)


def _without_folder(source: str) -> str:
    return re.sub(r"^\S*[/\\]", "", source)
