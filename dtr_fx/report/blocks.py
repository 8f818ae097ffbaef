"""The memory blocks of a plan: when each is allocated, who reads it, and when it is free again.

A storage that is dropped and computed again has several blocks, one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from dtr_fx.report import Report

_CONSTANT = ("parameter", "optimizer", "input")


@dataclass(eq=False)
class Block:
    """One copy of a storage.

    ``storage`` is its position in ``Report.storages``; ``made_at`` (-1: before the step), ``readers``,
    ``dropped_at`` and ``again_at``, where the storage is computed again or brought back, are positions in
    ``Report.events``.  It is free once the last reader has run, or ``stays`` to the step's end.  A ``spare``
    one is made beside another output of a recompute while its storage is still there.
    """

    storage: int
    made_at: int
    spare: bool = False
    stays: bool = False
    dropped_at: int | None = None
    again_at: int | None = None
    readers: list[int] = field(default_factory=list)

    @property
    def last_at(self) -> int:
        return self.readers[-1] if self.readers else self.made_at


def blocks(report: Report) -> list[Block]:
    """All blocks of a plan, in the order in which they are made."""
    found = list(_given(report))
    newest = {block.storage: block for block in found}
    for at, event in enumerate(report.events):
        if event.kind == "drop":
            for storage in event.storages:
                newest[storage].dropped_at = at
        elif event.kind != "banish":
            for storage in event.uses:
                newest[storage].readers.append(at)
            found += [_made(storage, at, event.kind, newest) for storage in event.storages]
    for storage, block in newest.items():
        stats = report.storages[storage]
        given = block.made_at < 0 and stats.kind in _CONSTANT
        block.stays = stats.stays or given or stats.kind == "output"
    return sorted(found, key=lambda block: block.made_at)


def _made(storage: int, at: int, kind: str, newest: dict[int, Block]) -> Block:
    """The block that an event makes, which is the newest unless it is spare."""
    if kind not in ("recompute", "reload"):
        newest[storage] = Block(storage, at)
        return newest[storage]
    if newest[storage].dropped_at is None:
        return Block(storage, at, spare=True)
    newest[storage].again_at = at
    newest[storage] = Block(storage, at)
    return newest[storage]


def _given(report: Report) -> Iterator[Block]:
    """The blocks that no operator makes: inputs, parameters, gradients that come with the backward pass."""
    made = {storage for event in report.events if event.kind == "compute" for storage in event.storages}
    used = {storage for event in report.events for storage in event.uses}
    backward = next((at for at, event in enumerate(report.events) if event.phase == "backward"), -1)
    for storage, stats in enumerate(report.storages):
        if stats.kind in _CONSTANT and storage not in made:  # an optimizer makes some of its own, too
            yield Block(storage, -1)
        elif storage in used - made:
            yield Block(storage, backward)
