"""The memory blocks of a plan: when each is allocated, who reads it, and when it is free again.

A storage that is dropped and computed again has several blocks, one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from dtr_fx.report import Report

_CONSTANT = ("parameter", "input")


@dataclass(frozen=True)
class Block:
    """One copy of a storage.

    ``storage`` is its position in ``Report.storages``; ``made_at`` (-1: before the step) and ``readers`` are
    positions in ``Report.events``.  It is free once the last reader has run, or ``stays`` to the step's end.
    A ``spare`` one is made beside another output of a recompute while its storage is still there.
    """

    storage: int
    made_at: int
    readers: tuple[int, ...]
    stays: bool
    spare: bool = False

    @property
    def last_at(self) -> int:
        """The position of the last event that needs it."""
        return self.readers[-1] if self.readers else self.made_at


def blocks(report: Report) -> list[Block]:
    """All blocks of a plan, in the order in which they are made."""
    opened = list(_given(report))
    newest = {block.storage: block for block in opened}
    dropped: set[int] = set()
    for at, event in enumerate(report.events):
        if event.kind == "drop":
            dropped.update(event.storages)
        elif event.kind in ("compute", "recompute"):
            for storage in event.uses:
                newest[storage].readers.append(at)
            for storage in event.storages:
                made = _Opened(storage, at, spare=event.kind == "recompute" and storage not in dropped)
                opened.append(made)
                if not made.spare:
                    newest[storage] = made
            dropped.difference_update(event.storages)
    return [
        Block(
            block.storage,
            block.made_at,
            tuple(block.readers),
            _stays(report.storages[block.storage].kind) and newest[block.storage] is block,
            block.spare,
        )
        for block in sorted(opened, key=lambda block: block.made_at)
    ]


def _given(report: Report) -> Iterator[_Opened]:
    """The blocks that no operator makes: inputs, parameters, gradients that come with the backward pass."""
    made = {storage for event in report.events if event.kind == "compute" for storage in event.storages}
    used = {storage for event in report.events for storage in event.uses}
    backward = next((at for at, event in enumerate(report.events) if event.phase == "backward"), -1)
    for storage, stats in enumerate(report.storages):
        if stats.kind in _CONSTANT:
            yield _Opened(storage, -1)
        elif storage in used - made:
            yield _Opened(storage, backward)


def _stays(kind: str) -> bool:
    return kind in (*_CONSTANT, "output")


@dataclass(eq=False)
class _Opened:
    storage: int
    made_at: int
    readers: list[int] = field(default_factory=list)
    spare: bool = False
