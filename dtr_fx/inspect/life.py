"""The life of one value: computed, read, weighed, dropped, recomputed, freed; what keeping it would take."""

from __future__ import annotations

import math
from collections.abc import Iterator
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
    position = _find_storage(report, name)
    computed = (event for event in report.events if event.kind == "compute")
    maker = next((event for event in computed if position in event.storages), None)
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
    made_by = (maker.target, maker.module, maker.source) if maker else ("", "", "")
    in_order = tuple(sorted(moments, key=lambda moment: moment.at))
    return Life(report.storages[position], *made_by, report.budget, report.heuristic, in_order, tuple(gaps))


def _find_storage(report: Report, name: str) -> int:
    """The position of the storage that a value of this name is in."""
    known = [storage.name for storage in report.storages]
    if name in known:
        return known.index(name)
    for event in report.events:
        if name in (event.name, event.origin) and (event.storages or event.uses):  # a view makes none
            return (event.storages or event.uses)[0]
    raise CommandError(f"no value {name!r}{did_you_mean(name, known) if known else ''}")


def _moments_of(report: Report, block: Block) -> Iterator[Moment]:
    if block.made_at < 0:
        yield Moment("given", -1, "", "", report.constants)
    else:
        again = report.events[block.made_at].kind == "recompute"
        yield _moment(report, "recomputed" if again else "computed", block.made_at)
    yield from (_moment(report, "read", at) for at in block.readers)
    if (at := block.dropped_at) is not None:
        event = report.events[at]
        yield _moment(report, "dropped", at, score=event.score, again=event.again, away=event.away)
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
    peak = most.live + (report.storages[storage].nbytes if between else 0)
    seconds = math.fsum(event.cost for event in between)
    return Gap(dropped_at, again_at, len(between), seconds, most.name, peak)


# As text

_COLORS = {"dropped": RED, "recomputed": GREEN, "weighed": DIM}
_NO_SCORES = (
    "The search decided, which weighs whole plans, not single values; the runtime carried its plan out and\n"
    "checked it. For scores: --planner online"
)


def render_life(life: Life, *, width: int = 100, color: bool = False) -> str:
    """The life of a value, for people to read."""
    ink = Ink(color)
    storage = life.storage
    made = "  ".join(filter(None, (life.operator, life.module, life.source)))
    recomputes = format_count(storage.recomputes, "recompute")
    cost = f" at {format_seconds(storage.recompute_cost)}" if storage.recomputes else ""
    size, drops = format_bytes(storage.nbytes), format_count(storage.drops, "drop")
    title = f"{storage.name}: {storage.kind} of {size}, {drops}, {recomputes}{cost}"
    lines = [ink(BOLD, title), *([ink(DIM, clip(made, width))] if made else []), ""]
    lines += [ink(code, clip(text, width)) for code, text in _lines(life)]
    if life.decided_by == "search" and life.gaps:
        lines += ["", ink(DIM, _NO_SCORES)]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _lines(life: Life) -> Iterator[tuple[str, str]]:
    gaps = {gap.dropped_at: gap for gap in life.gaps}
    for number, moment in enumerate(life.moments):
        around = life.moments[max(number - 1, 0) : number + 2]
        if len(around) == 3 and all(other.kind == "read" for other in around):
            continue  # of reads in a row the first and the last are shown
        at = f"{moment.at:>6}" if moment.at >= 0 else f"{'':6}"
        yield _COLORS.get(moment.kind, ""), f"{at}  {moment.phase:8}  {moment.kind:10}  {_says(moment)}"
        if moment.kind == "dropped" and moment.at in gaps:
            yield "", f"{'':30}{_counterfactual(gaps[moment.at], life.budget)}"


def _says(moment: Moment) -> str:
    if moment.choice is not None:
        return f"for {moment.operator}: {_weighed(moment.choice)}"
    if moment.kind == "given":
        return "before the step"
    if moment.kind == "dropped":
        price = price_of(moment.again, moment.away)
        reason = "" if price and moment.reason == "planned" else moment.reason
        score = "" if moment.score is None else f"score {moment.score:.3g}"
        says = ", ".join(filter(None, (reason, score, price)))
    else:
        words = {"read": "by ", "freed": "after "}
        says = moment.reason if moment.kind == "recomputed" else words.get(moment.kind, "") + moment.operator
    return f"{says}; {format_bytes(moment.live)} live"


def _weighed(choice: Choice) -> str:
    """The place of the value among the candidates when an operator needed room."""
    if choice.score is None:
        return f"in use; {choice.chosen} went"
    place = f"score {choice.score:.3g}, {choice.rank} of {choice.candidates}"
    if choice.rank == 1:
        return f"{place}: it went"
    scored = "" if choice.chosen_score is None else f", {choice.chosen_score:.3g}"
    return f"{place}; {choice.chosen} went{scored}"


def _counterfactual(gap: Gap, budget: int) -> str:
    gone = f"gone for {format_count(gap.operators, 'operator')}, {format_seconds(gap.seconds)}; "
    if gap.peak > budget:
        return f"{gone}kept: {format_bytes(gap.peak - budget)} over budget at {gap.operator}"
    return f"{gone}kept: {format_bytes(gap.peak)} live at most"
