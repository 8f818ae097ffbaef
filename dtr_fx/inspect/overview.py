"""A plan at a glance: the storages that matter most, and where the extra compute goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from dtr_fx.report import Event, Report, StorageStats


@dataclass(frozen=True)
class Group:
    """The operators of one kind, or of one module: bytes allocated and dropped, seconds planned for.

    ``runs`` counts them in the graph as it was, ``recomputes`` how often one is computed again, ``cost`` and
    ``recompute_cost`` what that takes.
    """

    name: str
    runs: int
    nbytes: int
    cost: float
    drops: int
    dropped: int
    recomputes: int
    recompute_cost: float


@dataclass(frozen=True)
class Overview:
    """The first storages by bytes, by the cost of their recomputes and by drops; groups by extra compute."""

    by_bytes: tuple[StorageStats, ...]
    by_cost: tuple[StorageStats, ...]
    by_drops: tuple[StorageStats, ...]
    operators: tuple[Group, ...]
    modules: tuple[Group, ...]


def overview(report: Report, *, top: int = 5, depth: int = 2) -> Overview:
    """A report's first ``top`` storages and its operators, modules cut to ``depth`` names."""
    return Overview(
        by_bytes=_first(report.storages, top, lambda storage: storage.nbytes),
        by_cost=_first(report.storages, top, lambda storage: storage.recompute_cost),
        by_drops=_first(report.storages, top, lambda storage: storage.drops),
        operators=tuple(_groups(report.events, lambda event: event.target)),
        modules=tuple(_groups(report.events, lambda event: ".".join(event.module.split(".")[:depth]))),
    )


def _first(
    storages: Iterable[StorageStats], top: int, key: Callable[[StorageStats], float]
) -> tuple[StorageStats, ...]:
    counted = [storage for storage in storages if key(storage) and storage.kind != "unused"]
    return tuple(sorted(counted, key=key, reverse=True)[:top])


def _groups(events: Sequence[Event], name_of: Callable[[Event], str]) -> list[Group]:
    members: dict[str, list[Event]] = {}
    for event in events:
        members.setdefault(name_of(event), []).append(event)
    groups = [_group(name, group) for name, group in members.items()]
    return sorted(groups, key=lambda group: (-group.recompute_cost, -group.cost, group.name))


def _group(name: str, events: Sequence[Event]) -> Group:
    first, again, drops = (
        [event for event in events if event.kind == kind] for kind in ("compute", "recompute", "drop")
    )
    return Group(
        name=name,
        runs=len(first),
        nbytes=sum(event.nbytes for event in first),
        cost=sum(event.cost for event in first),
        drops=len(drops),
        dropped=sum(event.nbytes for event in drops),
        recomputes=len(again),
        recompute_cost=sum(event.cost for event in again),
    )
