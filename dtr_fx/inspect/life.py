"""The life of one value: computed, read, weighed, dropped, recomputed, freed; what keeping it would take."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from dtr_fx.errors import CommandError, did_you_mean
from dtr_fx.report import Choice, Report, StorageStats
from dtr_fx.report.blocks import Block, blocks


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
    """What happened to a value.

    Parameters
    ----------
    name:
        Of the value or of the operator that makes it, as the diff prints it.

    Raises
    ------
    CommandError
        The report has no such value.
    """
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
    return Life(
        storage=report.storages[position],
        operator=makers[0].target if makers else "",
        module=makers[0].module if makers else "",
        source=makers[0].source if makers else "",
        budget=report.budget,
        decided_by=report.heuristic,
        moments=tuple(sorted(moments, key=lambda moment: moment.at)),
        gaps=tuple(_gaps(report, position)),
    )


def find_storage(report: Report, name: str) -> int:
    """The position of the storage that a value of this name is in.

    Raises
    ------
    CommandError
        The report has no such value.
    """
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
    dropped = _drop_after(report, block)
    if dropped is not None:
        yield _moment(report, "dropped", dropped, score=report.events[dropped].score)
    elif not block.stays and block.last_at >= 0:
        yield _moment(report, "freed", block.last_at)


def _drop_after(report: Report, block: Block) -> int | None:
    """Where the block is dropped to be computed again, if it is."""
    later = range(max(block.made_at, 0), len(report.events))
    drops = (at for at in later if report.events[at].kind == "drop")
    return next((at for at in drops if block.storage in report.events[at].storages), None)


def _moment(
    report: Report, kind: str, at: int, *, score: float | None = None, choice: Choice | None = None
) -> Moment:
    event = report.events[at]
    operator = event.origin if event.kind == "drop" else event.name
    return Moment(kind, at, operator, event.phase, event.live, event.reason, event.source, score, choice)


def _gaps(report: Report, position: int) -> Iterator[Gap]:
    nbytes = report.storages[position].nbytes
    dropped: int | None = None
    for at, event in enumerate(report.events):
        if position not in event.storages:
            continue
        if event.kind == "drop":
            dropped = at
        elif event.kind == "recompute" and dropped is not None:
            between = [
                event for event in report.events[dropped + 1 : at] if event.kind in ("compute", "recompute")
            ]
            # Whatever the gap holds, the value was there before it and is there after it.
            most = max(between, key=lambda event: event.live, default=event)
            yield Gap(
                dropped_at=dropped,
                recomputed_at=at,
                operators=len(between),
                seconds=math.fsum(event.cost for event in between),
                operator=most.name,
                peak=most.live + (nbytes if between else 0),
            )
            dropped = None
