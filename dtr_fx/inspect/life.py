"""The life of one value: computed, read, weighed, dropped, recomputed, freed; what keeping it would take."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from dtr_fx.errors import CommandError, did_you_mean
from dtr_fx.inspect.text import BOLD, DIM, GREEN, RED, Ink, clip, price_of
from dtr_fx.report import Choice, Report, StorageStats
from dtr_fx.report.blocks import Block, blocks
from dtr_fx.units import format_bytes, format_count, format_seconds


@dataclass(frozen=True)
class Moment:
    """One thing that happened to the value.

    ``kind`` is ``"given"``, ``"computed"``, ``"read"``, ``"weighed"``, ``"dropped"``, ``"recomputed"`` or
    ``"freed"``; ``at`` is the position in ``Report.events`` of the ``operator``, of ``live`` bytes.
    """

    kind: str
    at: int
    operator: str
    phase: str
    live: int
    reason: str = ""
    source: str = ""
    score: float | None = None
    again: float | None = None
    away: float | None = None
    choice: Choice | None = None


@dataclass(frozen=True)
class Gap:
    """The time for which the value was gone: from the drop at ``dropped_at`` to ``recomputed_at``.

    Kept, it would have brought the step to ``peak`` bytes there, at ``operator``.
    """

    dropped_at: int
    recomputed_at: int
    operators: int
    seconds: float
    operator: str
    peak: int


@dataclass(frozen=True)
class Life:
    """A value's storage, and what happened to it, in order."""

    storage: StorageStats
    operator: str
    module: str
    source: str
    budget: int
    decided_by: str
    moments: tuple[Moment, ...]
    gaps: tuple[Gap, ...]


def life_of(report: Report, name: str) -> Life:
    """The life of a value, named by itself or by the operator that makes it, as the diff prints it."""
    position = find_storage(report, name)
    makers = [event for event in report.events if event.kind == "compute" and position in event.storages]
    copies = [block for block in blocks(report) if block.storage == position and not block.spare]
    moments = [moment for block in copies for moment in _moments_of(report, block)]
    end = max((moment.at for moment in moments), default=-1)
    moments += [
        _moment(report, "weighed", choice.at, score=choice.score, choice=choice)
        for choice in report.choices
        if choice.at <= end  # the graph frees a value after its last read, which a heuristic cannot know
    ]
    gaps = (
        _gap(report, position, block.dropped_at, block.again_at)
        for block in copies
        if block.dropped_at is not None and block.again_at is not None
    )
    return Life(
        storage=report.storages[position],
        operator=makers[0].target if makers else "",
        module=makers[0].module if makers else "",
        source=makers[0].source if makers else "",
        budget=report.budget,
        decided_by=report.heuristic,
        moments=tuple(sorted(moments, key=lambda moment: moment.at)),
        gaps=tuple(gaps),
    )


def find_storage(report: Report, name: str) -> int:
    """The position of the storage that a value of this name is in."""
    for position, storage in enumerate(report.storages):
        if storage.name == name:
            return position
    for event in report.events:
        if name in (event.name, event.origin):
            if event.storages:
                return event.storages[0]
            if event.uses:  # a view
                return event.uses[0]
    known = [storage.name for storage in report.storages]
    raise CommandError(f"no value {name!r}{did_you_mean(name, known) if known else ''}")


def _moments_of(report: Report, block: Block) -> Iterator[Moment]:
    if block.made_at < 0:
        yield Moment("given", -1, "", "", report.constants)
    else:
        again = report.events[block.made_at].kind == "recompute"
        yield _moment(report, "recomputed" if again else "computed", block.made_at)
    for at in block.readers:
        yield _moment(report, "read", at)
    if block.dropped_at is not None:
        event = report.events[block.dropped_at]
        yield _moment(
            report, "dropped", block.dropped_at, score=event.score, again=event.again, away=event.away
        )
    elif not block.stays and block.last_at >= 0:
        yield _moment(report, "freed", block.last_at)


def _moment(report: Report, kind: str, at: int, **more: Any) -> Moment:
    event = report.events[at]
    operator = event.origin if event.kind == "drop" else event.name
    return Moment(kind, at, operator, event.phase, event.live, event.reason, event.source, **more)


def _gap(report: Report, storage: int, dropped_at: int, again_at: int) -> Gap:
    steps = report.events[dropped_at + 1 : again_at]
    between = [event for event in steps if event.kind in ("compute", "recompute")]
    # Whatever the gap holds, the value was there before it and is there after it.
    most = max(between, key=lambda event: event.live, default=report.events[again_at])
    return Gap(
        dropped_at=dropped_at,
        recomputed_at=again_at,
        operators=len(between),
        seconds=math.fsum(event.cost for event in between),
        operator=most.name,
        peak=most.live + (report.storages[storage].nbytes if between else 0),
    )


# As text

_COLORS = {"dropped": RED, "recomputed": GREEN, "weighed": DIM}
_NO_SCORES = (
    "The search decided, which weighs whole plans, not single values; the runtime carried its plan out and\n"
    "checked it. For scores: --planner online"
)


def render_life(life: Life, *, width: int = 100, color: bool = False) -> str:
    """The life of a value, for people to read."""
    ink = Ink(color)
    lines = [*_head(life, ink), ""]
    lines += [ink(code, clip(text, width)) for code, text in _lines(life)]
    if life.decided_by == "search" and life.gaps:
        lines += ["", ink(DIM, _NO_SCORES)]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _head(life: Life, ink: Ink) -> Iterator[str]:
    storage = life.storage
    yield ink(
        BOLD,
        f"{storage.name}: {storage.kind} of {format_bytes(storage.nbytes)}, "
        f"{format_count(storage.drops, 'drop')}, {format_count(storage.recomputes, 'recompute')}"
        + (f" at {format_seconds(storage.recompute_cost)}" if storage.recomputes else ""),
    )
    made = "  ".join(part for part in (life.operator, life.module, life.source) if part)
    if made:
        yield ink(DIM, made)


def _lines(life: Life) -> Iterator[tuple[str, str]]:
    gaps = {gap.dropped_at: gap for gap in life.gaps}
    for moment in _without_middle_reads(life.moments):
        at = f"{moment.at:>6}" if moment.at >= 0 else f"{'':6}"
        yield _COLORS.get(moment.kind, ""), f"{at}  {moment.phase:8}  {moment.kind:10}  {_says(moment)}"
        if moment.kind == "dropped" and moment.at in gaps:
            yield "", f"{'':30}{_counterfactual(gaps[moment.at], life.budget)}"


def _without_middle_reads(moments: Sequence[Moment]) -> Iterator[Moment]:
    """Of reads in a row the first and the last."""
    for number, moment in enumerate(moments):
        around = [*moments[max(number - 1, 0) : number], *moments[number + 1 : number + 2]]
        if moment.kind != "read" or len(around) < 2 or any(other.kind != "read" for other in around):
            yield moment


def _says(moment: Moment) -> str:
    live = f"{format_bytes(moment.live)} live"
    if moment.choice is not None:
        return _weighed(moment.operator, moment.choice)
    if moment.kind == "dropped":
        return f"{_why_dropped(moment)}; {live}"
    if moment.kind == "given":
        return "before the step"
    words = {
        "read": f"by {moment.operator}",
        "freed": f"after {moment.operator}",
        "recomputed": moment.reason,
    }
    return f"{words.get(moment.kind, moment.operator)}; {live}"


def _why_dropped(moment: Moment) -> str:
    price = price_of(moment.again, moment.away)
    reason = "" if price and moment.reason == "planned" else moment.reason
    score = "" if moment.score is None else f"score {moment.score:.3g}"
    return ", ".join(filter(None, (reason, score, price)))


def _weighed(operator: str, choice: Choice) -> str:
    """The place of the value among the candidates when an operator needed room."""
    if choice.score is None:
        return f"for {operator}: in use; {choice.chosen} went"
    place = f"for {operator}: score {choice.score:.3g}, {choice.rank} of {choice.candidates}"
    return f"{place}: it went" if choice.rank == 1 else f"{place}; {choice.chosen} went{_scored(choice)}"


def _scored(choice: Choice) -> str:
    return "" if choice.chosen_score is None else f", {choice.chosen_score:.3g}"


def _counterfactual(gap: Gap, budget: int) -> str:
    gone = f"gone for {format_count(gap.operators, 'operator')}, {format_seconds(gap.seconds)}; "
    over = gap.peak - budget
    if over > 0:
        return f"{gone}kept: {format_bytes(over)} over budget at {gap.operator}"
    return f"{gone}kept: {format_bytes(gap.peak)} live at most"
