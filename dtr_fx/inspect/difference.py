"""Two plans of one graph, and exactly the steps in which they differ.

What a plan adds lies between two of the graph's operators, and so does an operator that waits. There the
steps of both are aligned in order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher

from dtr_fx.errors import CommandError
from dtr_fx.inspect.diff import MARKS, name_of, why
from dtr_fx.inspect.text import BOLD, DIM, YELLOW, Ink, clip
from dtr_fx.report import Event, Report
from dtr_fx.units import format_bytes, format_count, format_percent


@dataclass(frozen=True)
class Change:
    """A drop, a recompute or a late operator of one plan that the other has not got there.

    ``only_in`` is 0 for the first plan and 1 for the second; ``before`` names the operator of the graph that
    comes next, none after the last.
    """

    only_in: int
    before: str
    event: Event


@dataclass(frozen=True)
class Difference:
    """Both plans, and their differences in execution order."""

    plans: tuple[Report, Report]
    changes: tuple[Change, ...]


def difference(first: Report, second: Report) -> Difference:
    """The steps that only one of two plans of one graph has."""
    operators = [[point.name for point in report.before] for report in (first, second)]
    if operators[0] != operators[1]:
        raise CommandError(f"these are plans of different graphs: {_first_difference(*operators)}")
    places = _places(first), _places(second)
    changes = (
        change for (before, steps), (_, others) in zip(*places) for change in _changes(before, steps, others)
    )
    return Difference((first, second), tuple(changes))


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
        elif event.kind in MARKS or (event.kind == "compute" and number >= 0):
            steps.append(event)
    return [*places.items(), ("", steps)]


_MARKS = {**MARKS, "compute": ("~", YELLOW)}


def _first_difference(first: Sequence[str], second: Sequence[str]) -> str:
    for number, (one, other) in enumerate(zip(first, second)):
        if one != other:
            return f"operator {number} is {one or 'none'} in the first, {other or 'none'} in the second"
    return f"{len(first)} and {len(second)} operators"


def _changes(before: str, steps: Sequence[Event], others: Sequence[Event]) -> Iterator[Change]:
    one, other = ([(event.kind, event.origin) for event in side] for side in (steps, others))
    for tag, i, j, k, m in SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
        if tag != "equal":
            yield from (Change(0, before, event) for event in steps[i:j])
            yield from (Change(1, before, event) for event in others[k:m])


# As text


def render_difference(found: Difference, *, width: int = 100, color: bool = False) -> str:
    """Both verdicts, and a line for each change: ``-`` drops, ``+`` recomputes, ``~`` runs later, A or B."""
    ink = Ink(color)
    lines = [
        ink(BOLD, clip(f"{letter}  {plan.heuristic}: {plan.summary()}", width))
        for letter, plan in zip("AB", found.plans)
    ]
    lines.append(_counts(found))
    if found.changes:
        heads = ("", "operator", "bytes", "why (score)", "before", "live")
        lines += ["", ink(DIM, _Columns.of(width).row(*heads))]
    lines += [ink(_MARKS[change.event.kind][1], _line(change, width)) for change in found.changes]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _counts(found: Difference) -> str:
    if not found.changes:
        return "the same drops and recomputes"
    sides = (_count(letter, found, side) for side, letter in enumerate("AB"))
    a, b = found.plans
    return f"{'; '.join(sides)}; overhead {format_percent(a.overhead)} → {format_percent(b.overhead)}"


def _count(letter: str, found: Difference, side: int) -> str:
    kinds = [change.event.kind for change in found.changes if change.only_in == side]
    drops, recomputes, late = map(kinds.count, ("drop", "recompute", "compute"))
    waiting = f", {format_count(late, 'late operator')}" if late else ""
    return (
        f"only in {letter}: {format_count(drops, 'drop')}, {format_count(recomputes, 'recompute')}{waiting}"
    )


def _line(change: Change, width: int) -> str:
    event = change.event
    mark, _ = _MARKS[event.kind]
    verb = "late" if event.kind == "compute" else event.kind
    columns = _Columns.of(width)
    return columns.row(
        f"{'AB'[change.only_in]} {mark} {verb}",
        name_of(event),
        format_bytes(event.nbytes),
        why(event, columns.why),
        change.before or "(the end)",
        format_bytes(event.live),
    )


@dataclass(frozen=True)
class _Columns:
    """Widths of the columns that give way when the line is narrow."""

    name: int
    why: int

    @classmethod
    def of(cls, width: int) -> _Columns:
        room = max(width - 41, 30)
        return cls(name=room // 4, why=room // 2)

    def row(self, verb: str, name: str, size: str, reason: str, before: str, live: str) -> str:
        name, before = (f"{clip(text, self.name):{self.name}}" for text in (name, before))
        return f"{verb:13}  {name}  {size:>9}  {reason:{self.why}}  {before}  {live:>9}"
