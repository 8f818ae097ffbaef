"""A report as text: verdict, memory over time before and after, the folded diff; and how two plans differ.

Nodes are matched by the node of the original graph that they stand for, not by their own names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import groupby
from typing import NamedTuple

from dtr_fx.errors import CommandError
from dtr_fx.inspect.text import BOLD, DIM, GREEN, RED, YELLOW, Ink, clip, price_of, without_folder, wrap
from dtr_fx.inspect.timeline import NARROWEST, timelines
from dtr_fx.report import Event, Report
from dtr_fx.units import format_bytes, format_count, format_percent, format_seconds

_CONTEXT = 1  # unchanged operators shown on either side of a change
_FILE_AND_LINE = 10  # columns
_DECIDED = {"search": "search decided, runtime checked", "none": "as it was"}
_CHANGES = {
    "drop": ("- drop", RED),
    "recompute": ("+ recompute", GREEN),
    "offload": ("> offload", YELLOW),
    "reload": ("< reload", GREEN),
    "wait": ("= wait", YELLOW),
}
_CHANGES_OF_TWO = {**_CHANGES, "compute": ("~ late", YELLOW)}


def render_diff(report: Report, *, width: int = 100, color: bool = False) -> str:
    """A plan's changes to a graph, for people to read; at least 72 columns are taken."""
    ink = Ink(color)
    width = max(width, NARROWEST)
    verdict = ink(BOLD if report.verdict == "fits" else f"{BOLD};{RED}", wrap(report.summary(), width))
    rest = [wrap(str(each), width) for each in (*report.hints, *report.slices)]
    lines = [verdict, ink(DIM, wrap(circumstances(report), width)), *rest, ""]
    lines += timelines(report, width, ink)
    lines += _diff(report.events, width, ink)
    return "\n".join(line.rstrip() for line in lines) + "\n"


def circumstances(report: Report) -> str:
    """One line: who decided, on what, compute, lower bounds, reserved bytes, slices, why it was traced."""
    why = f"; {report.trigger}" if report.trigger else ""
    regions = (f"{region.operators} operators in {region.slices}" for region in report.slices)
    slices = f"; slices: {', '.join(regions)}" if report.slices else ""
    is_cached = report.device.startswith("cuda") and report.reserved_peak and not report.counts_reserved
    reserved = f"; reserves {format_bytes(report.reserved_peak)}" if is_cached else ""
    refused = f"; {format_count(report.refused, 'order')} refused" if report.refused else ""
    return (
        f"{_DECIDED.get(report.heuristic, report.heuristic)} on {report.device}; {_step(report)}"
        f"compute {format_seconds(report.base_cost)} → {format_seconds(report.total_cost)}{_above(report)}; "
        f"lower bound of any plan {format_bytes(report.lower_bound)}"
        f"{reserved}{slices}{refused}{report.caution}{why}"
    )


def _step(report: Report) -> str:
    """What a step takes before and after, where operators were timed."""
    if report.step_before is None or report.step_after is None:
        return ""
    return f"step {format_seconds(report.step_before)} → {format_seconds(report.step_after)}, by profile; "


def _above(report: Report) -> str:
    """How far the plan is from the least compute, where there is a plan and a bound on that is known."""
    if report.above_least is None or not report.recomputes:
        return ""
    return f", within {format_percent(report.above_least)} of the least possible"


# The folded diff


def sections(events: Sequence[Event]) -> Iterator[tuple[str, list[Event | list[Event]]]]:
    """The title of each phase, empty where a graph has none, and its rows: steps, and folds of operators."""
    # A banished storage is freed where the original graph frees it too: nothing changed there.
    steps = [event for event in events if event.kind != "banish"]
    backward = [number for number, event in enumerate(steps) if event.phase == "backward"]

    def section(number: int) -> str:
        """The phase of a step; updates that run among the backward pass belong to it."""
        return "backward" if backward and backward[0] <= number <= backward[-1] else steps[number].phase

    for _, group in groupby(range(len(steps)), key=section):
        members = [steps[number] for number in group]
        phase = " and ".join(dict.fromkeys(event.phase for event in members))
        kinds = [event.kind for event in members]
        nouns = {"compute": "operator", "drop": "drop", "recompute": "recompute"}
        nouns |= {kind: kind for kind in ("offload", "reload") if kind in kinds}
        counts = ", ".join(format_count(kinds.count(kind), noun) for kind, noun in nouns.items())
        yield f"{phase}: {counts}" if phase else "", _folded(members)


def _folded(events: Sequence[Event]) -> list[Event | list[Event]]:
    """Every change with its context; runs of other operators become one entry."""
    changes = [i for i, event in enumerate(events) if event.kind in _CHANGES]
    near = {i + offset for i in changes for offset in range(-_CONTEXT, _CONTEXT + 1)}
    rows: list[Event | list[Event]] = []
    for is_near, group in groupby(range(len(events)), key=near.__contains__):
        run = [events[i] for i in group]
        rows += run if is_near or len(run) == 1 else [run]  # a fold of one operator saves no line
    return rows


class _Columns(NamedTuple):
    """Widths of the columns that give way when the line is narrow."""

    name: int
    why: int
    source: int


def _diff(events: Sequence[Event], width: int, ink: Ink) -> Iterator[str]:
    shown = list(sections(events))
    columns = _columns([row for _, rows in shown for row in rows if isinstance(row, Event)], width)
    if shown:
        yield ink(DIM, _row("", "operator", "bytes", "why (score)", "source", "live", columns))
    for title, rows in shown:
        if title:
            yield ink(BOLD, f"{f'── {title} ':─<{width}}")
        for row in rows:
            if isinstance(row, Event):
                verb, code = _CHANGES.get(row.kind, ("", ""))
                nbytes, live = format_bytes(row.nbytes), format_bytes(row.live)
                line = _row(verb, row.origin, nbytes, why(row, columns.why), row.source, live, columns)
                yield ink(code, line)
            else:
                live = f"≤ {format_bytes(max(event.live for event in row))}"
                operators = f"    … {format_count(len(row), 'operator')}"
                yield ink(DIM, _with_live(f"{operators:{width}}", live))


def _columns(rows: Sequence[Event], width: int) -> _Columns:
    room = width - len(_row("", "", "", "", "", "", _Columns(0, 0, 0)))
    name = min(max((len(event.origin) for event in rows), default=0), room * 2 // 5)
    half = (room - name) // 2
    most = max(half, room - name - _FILE_AND_LINE)
    # A price is worth more room than the text of a source line; the name that a recompute is for is not.
    reasons = max((len(why(event, half if event.again is None else most)) for event in rows), default=0)
    return _Columns(name, reasons, room - name - reasons)


def _row(verb: str, name: str, size: str, reason: str, source: str, live: str, columns: _Columns) -> str:
    if len(source) > columns.source:
        source = clip(without_folder(source), columns.source)
    cells = (
        f"{verb:11}",
        f"{_shorten(name, columns.name):{columns.name}}",
        f"{size:>9}",
        f"{clip(reason, columns.why):{columns.why}}",
        f"{source:{columns.source}}",
    )
    return _with_live("  ".join(cells) + f"{'':11}", live)


def _with_live(line: str, live: str) -> str:
    return line[: len(line) - len(live)] + live


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
    if event.transfer:
        return (f"{format_seconds(event.transfer)} beside compute", format_seconds(event.transfer))
    if event.kind == "wait":
        return (f"until the copy has ended, {format_seconds(event.cost)}", format_seconds(event.cost))
    if event.kind == "recompute" and event.cost:
        return f"{stated}, {format_seconds(event.cost)}", stated
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


# The difference of two plans


@dataclass(frozen=True)
class Change:
    """A drop, a recompute or a late operator of one plan that the other has not got there.

    ``only_in`` is 0 for the first plan and 1 for the second; ``before`` names the operator of the graph that
    comes next, none after the last.
    """

    only_in: int
    before: str
    event: Event


class Difference(NamedTuple):
    """Both plans, and their differences in execution order."""

    plans: tuple[Report, Report]
    changes: tuple[Change, ...]


def difference(first: Report, second: Report) -> Difference:
    """The steps that only one of two plans of one graph has."""
    operators = [[point.name for point in report.before] for report in (first, second)]
    if operators[0] != operators[1]:
        raise CommandError(f"these are plans of different graphs: {_first_difference(*operators)}")
    changes = (
        change
        for (before, steps), (_, others) in zip(_places(first), _places(second))
        for change in _changes(before, steps, others)
    )
    return Difference((first, second), tuple(changes))


def _first_difference(first: Sequence[str], second: Sequence[str]) -> str:
    for number, (one, other) in enumerate(zip(first, second)):
        if one != other:
            return f"operator {number} is {one} in the first, {other} in the second"
    return f"{len(first)} and {len(second)} operators"


def _places(report: Report) -> list[tuple[str, list[Event]]]:
    """The operators of the graph in order, each with what the plan puts before it, then what comes last."""
    number_of = {point.name: number for number, point in enumerate(report.before)}
    places: dict[str, list[Event]] = {name: [] for name in number_of}
    steps: list[Event] = []
    reached = -1
    for event in report.events:
        number = number_of.get(event.origin, -1)
        if event.kind == "compute" and number > reached:
            places[event.origin] = steps
            steps, reached = [], number
        elif event.kind in _CHANGES or (event.kind == "compute" and number >= 0):
            steps.append(event)
    return [*places.items(), ("", steps)]


def _changes(before: str, steps: Sequence[Event], others: Sequence[Event]) -> Iterator[Change]:
    one, other = ([(event.kind, event.origin) for event in side] for side in (steps, others))
    for tag, i, j, k, m in SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
        if tag != "equal":
            yield from (Change(0, before, event) for event in steps[i:j])
            yield from (Change(1, before, event) for event in others[k:m])


def render_difference(found: Difference, *, width: int = 100, color: bool = False) -> str:
    """Both verdicts, and a line for each change: ``-`` drops, ``+`` recomputes, ``~`` runs later, A or B."""
    ink = Ink(color)
    lines = [
        ink(BOLD, clip(f"{letter}  {plan.heuristic}: {plan.summary()}", width))
        for letter, plan in zip("AB", found.plans)
    ]
    lines.append(_counts(found))
    room = max(width - 41, 30)
    if found.changes:
        lines += ["", ink(DIM, _change_row("", "operator", "bytes", "why (score)", "before", "live", room))]
    lines += [_change_line(change, room, ink) for change in found.changes]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _counts(found: Difference) -> str:
    if not found.changes:
        return "the same drops and recomputes"
    parts = []
    for side, letter in enumerate("AB"):
        kinds = [change.event.kind for change in found.changes if change.only_in == side]
        drops, recomputes, late = map(kinds.count, ("drop", "recompute", "compute"))
        moved = f", {format_count(kinds.count('offload'), 'offload')}" if "offload" in kinds else ""
        waiting = f", {format_count(late, 'late operator')}" if late else ""
        made = f"{format_count(drops, 'drop')}, {format_count(recomputes, 'recompute')}{moved}{waiting}"
        parts.append(f"only in {letter}: {made}")
    a, b = found.plans
    return "; ".join((*parts, f"overhead {format_percent(a.overhead)} → {format_percent(b.overhead)}"))


def _change_line(change: Change, room: int, ink: Ink) -> str:
    event = change.event
    verb, code = _CHANGES_OF_TWO[event.kind]
    place, nbytes, live = change.before or "(the end)", format_bytes(event.nbytes), format_bytes(event.live)
    cells = (f"{'AB'[change.only_in]} {verb}", event.origin, nbytes, why(event, room // 2), place, live)
    return ink(code, _change_row(*cells, room))


def _change_row(verb: str, name: str, size: str, reason: str, before: str, live: str, room: int) -> str:
    """``room`` is that of the columns that give way when the line is narrow: names and the reason."""
    name, before = (f"{clip(text, room // 4):{room // 4}}" for text in (name, before))
    return f"{verb:13}  {name}  {size:>9}  {reason:{room // 2}}  {before}  {live:>9}"
