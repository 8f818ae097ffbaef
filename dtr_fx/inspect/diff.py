"""A report as text: the verdict, memory over time before and after, and the folded diff.

    render_diff
    ├── Report.summary      the verdict, and what the plan costs
    ├── timelines           memory over operators as block characters, one scale, the budget as a line
    └── sections            one per phase, in execution order
        └── _fold           which events are shown, and how many operators lie between

Nodes are matched by the node of the original graph that they stand for, not by their own names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from dtr_fx.inspect.text import BOLD, DIM, GREEN, RED, Ink, clip, price_of, without_folder
from dtr_fx.inspect.timeline import timelines
from dtr_fx.report import Event, Report
from dtr_fx.units import format_bytes, format_count, format_seconds

_CONTEXT = 1  # unchanged operators shown on either side of a change
_NARROWEST = 72
MARKS = {"drop": ("-", RED), "recompute": ("+", GREEN)}


def render_diff(report: Report, *, width: int = 100, color: bool = False) -> str:
    """A plan's changes to a graph, for people to read; at least 72 columns are taken."""
    ink = Ink(color)
    width = max(width, _NARROWEST)
    lines = [ink(_verdict_color(report), report.summary()), ink(DIM, circumstances(report)), ""]
    lines += timelines(report, width, ink)
    lines += _folded(report.events, width, ink)
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _verdict_color(report: Report) -> str:
    return BOLD if report.verdict == "fits" else f"{BOLD};{RED}"


def circumstances(report: Report) -> str:
    """One line: who decided, the device, compute before and after, the lower bound."""
    decided = _DECIDED.get(report.heuristic, report.heuristic)
    refused = [f"{format_count(report.refused, 'order')} refused"] if report.refused else []
    facts = (
        f"{decided} on {report.device}",
        f"compute {format_seconds(report.base_cost)} → {format_seconds(report.total_cost)}",
        f"lower bound of any plan {format_bytes(report.lower_bound)}",
    )
    return "; ".join((*facts, *refused))


_DECIDED = {"search": "search decided, runtime checked", "none": "as it was"}


# The folded diff


@dataclass(frozen=True)
class Fold:
    """Unchanged operators that are not shown one by one."""

    events: Sequence[Event]

    @property
    def live(self) -> int:
        """The highest live bytes."""
        return max(event.live for event in self.events)


def sections(events: Sequence[Event]) -> Iterator[tuple[str, list[Event | Fold]]]:
    """The title of each phase, empty where a graph has none, and its rows."""
    # A banished storage is freed where the original graph frees it too: nothing changed there.
    steps = [event for event in events if event.kind != "banish"]
    for phase, group in groupby(steps, key=lambda event: event.phase):
        members = list(group)
        yield _title(phase, members) if phase else "", _fold(members)


def _title(phase: str, events: Sequence[Event]) -> str:
    kinds = [event.kind for event in events]
    nouns = {"compute": "operator", "drop": "drop", "recompute": "recompute"}
    return f"{phase}: {', '.join(format_count(kinds.count(kind), noun) for kind, noun in nouns.items())}"


@dataclass(frozen=True)
class _Columns:
    """Widths of the columns that give way when the line is narrow."""

    name: int
    why: int
    source: int


def _folded(events: Sequence[Event], width: int, ink: Ink) -> Iterator[str]:
    shown = list(sections(events))
    columns = _columns([row for _, rows in shown for row in rows if isinstance(row, Event)], width)
    if shown:
        yield ink(DIM, _head(columns))
    for title, rows in shown:
        if title:
            yield ink(BOLD, f"{f'── {title} ':─<{width}}")
        for row in rows:
            if isinstance(row, Fold):
                yield ink(DIM, _fold_line(row, width))
            else:
                yield ink(MARKS.get(row.kind, (" ", ""))[1], _event_line(row, columns))


def _fold(events: Sequence[Event]) -> list[Event | Fold]:
    """Every change with its context; runs of other operators become one entry."""
    changes = [i for i, event in enumerate(events) if event.kind in MARKS]
    near = {i + offset for i in changes for offset in range(-_CONTEXT, _CONTEXT + 1)}
    rows: list[Event | Fold] = []
    for is_near, group in groupby(range(len(events)), key=near.__contains__):
        run = [events[i] for i in group]
        if is_near or len(run) == 1:  # a fold of one operator saves no line
            rows += run
        else:
            rows.append(Fold(run))
    return rows


def _columns(rows: Sequence[Event], width: int) -> _Columns:
    room = width - len(_row("", "", "", "", "", "", _Columns(0, 0, 0)))
    name = min(max((len(name_of(event)) for event in rows), default=0), room * 2 // 5)
    half, most = (room - name) // 2, (room - name) * 2 // 3
    # A price is worth more room than a source line; the name that a recompute is for is not.
    reasons = max((len(why(event, half if event.again is None else most)) for event in rows), default=0)
    return _Columns(name, reasons, room - name - reasons)


def _row(mark: str, verb: str, name: str, size: str, reason: str, source: str, columns: _Columns) -> str:
    """All columns but the last, which is the live bytes."""
    cells = (
        f"{mark:1} {verb:9}",
        f"{_shorten(name, columns.name):{columns.name}}",
        f"{size:>9}",
        f"{clip(reason, columns.why):{columns.why}}",
        f"{_clip_source(source, columns.source):{columns.source}}",
    )
    return "  ".join(cells) + f"{'':11}"


def _head(columns: _Columns) -> str:
    return _with_live(_row("", "", "operator", "bytes", "why (score)", "source", columns), "live")


def _fold_line(fold: Fold, width: int) -> str:
    operators = f"    … {format_count(len(fold.events), 'operator')}"
    return _with_live(f"{operators:{width}}", f"≤ {format_bytes(fold.live)}")


def _event_line(event: Event, columns: _Columns) -> str:
    mark, _ = MARKS.get(event.kind, (" ", ""))
    verb = event.kind if event.kind in MARKS else ""
    reason = why(event, columns.why)
    row = _row(mark, verb, name_of(event), format_bytes(event.nbytes), reason, event.source, columns)
    return _with_live(row, format_bytes(event.live))


def _with_live(line: str, live: str) -> str:
    return line[: len(line) - len(live)] + live


def name_of(event: Event) -> str:
    """The node of the original graph: the same name where a value is dropped and where it is remade."""
    return event.origin or event.name


def why(event: Event, width: int | None = None) -> str:
    """Why a step is there, in the longest of its forms that a width has room for."""
    forms = _reasons(event)
    if width is None:
        return forms[0]
    return next((form for form in forms if len(form) <= width), clip(forms[-1], width))


def _reasons(event: Event) -> tuple[str, ...]:
    """From the longest to the shortest; a search has no scores, and its reason is the price."""
    score = "" if event.score is None else f"({event.score:.2g})"
    stated = f"{event.reason} {score}".strip()
    price, again = price_of(event.again, event.away), price_of(event.again, None)
    if not price:
        return stated, event.reason
    if event.reason == "planned":
        return price, again
    return f"{stated}, {price}", f"{stated}, {again}", stated, event.reason


def _shorten(text: str, width: int) -> str:
    """Cut in the middle: the number at the end of a node's name tells it from its siblings."""
    if len(text) <= width:
        return text
    tail = (width - 1) // 2
    return clip(text, width - tail) + text[len(text) - tail :]


def _clip_source(source: str, width: int) -> str:
    return source if len(source) <= width else clip(without_folder(source), width)
