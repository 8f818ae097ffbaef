"""A plan at a glance: the storages that matter most, and where the extra compute goes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from dtr_fx.inspect.modules import Figures, Module, module_tree, sum_of
from dtr_fx.inspect.table import table
from dtr_fx.inspect.text import BOLD, Ink, clip, wrap
from dtr_fx.report import Event, Report, StorageStats
from dtr_fx.units import format_bytes, format_percent, format_seconds

_MOST = 12  # groups in a table, modules in one
_FEW = 24  # rows of a tree


@dataclass(frozen=True)
class Group:
    """The operators of one kind: bytes allocated and dropped, seconds planned for.

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
    """The first storages by bytes, by cost and by drops; operators by extra compute; the modules."""

    by_bytes: tuple[StorageStats, ...]
    by_cost: tuple[StorageStats, ...]
    by_drops: tuple[StorageStats, ...]
    operators: tuple[Group, ...]
    modules: Module


def overview(report: Report, *, top: int = 5) -> Overview:
    """A report's first ``top`` storages, its kinds of operators, and its modules as a tree."""
    return Overview(
        by_bytes=_first(report.storages, top, "nbytes"),
        by_cost=_first(report.storages, top, "recompute_cost"),
        by_drops=_first(report.storages, top, "drops"),
        operators=_groups(report.events, lambda event: event.target),
        modules=module_tree(report),
    )


def _first(storages: Iterable[StorageStats], top: int, figure: str) -> tuple[StorageStats, ...]:
    counted = [storage for storage in storages if getattr(storage, figure) and storage.kind != "unused"]
    return tuple(sorted(counted, key=attrgetter(figure), reverse=True)[:top])


def _groups(events: Sequence[Event], name_of: Callable[[Event], str]) -> tuple[Group, ...]:
    members: dict[str, dict[str, list[Event]]] = {}
    for event in events:
        members.setdefault(name_of(event), {}).setdefault(event.kind, []).append(event)
    groups = [_group(name, kinds) for name, kinds in members.items()]
    return tuple(sorted(groups, key=lambda group: (-group.recompute_cost, -group.cost, group.name)))


def _group(name: str, kinds: Mapping[str, Sequence[Event]]) -> Group:
    first, again, drops = (kinds.get(kind, ()) for kind in ("compute", "recompute", "drop"))
    nbytes, dropped = (sum(event.nbytes for event in events) for events in (first, drops))
    cost, recompute_cost = (sum(event.cost for event in events) for events in (first, again))
    return Group(name, len(first), nbytes, cost, len(drops), dropped, len(again), recompute_cost)


# As text


def render_overview(
    report: Report, found: Overview, *, depth: int | None = None, width: int = 100, color: bool = False
) -> str:
    """The verdict and the tables, for people to read; modules ``depth`` levels deep, or in few rows."""
    ink = Ink(color)
    parts = ["\n".join([ink(BOLD, wrap(report.summary(), width)), *map(str, report.hints)])]
    for title, storages in (
        ("largest values", found.by_bytes),
        ("values that cost the most to compute again", found.by_cost),
        ("values dropped most often", found.by_drops),
    ):
        if storages:
            parts.append(f"{ink(BOLD, title)}\n{_storage_table(storages, report)}")
    if any(group.name for group in found.operators):
        parts.append(f"{ink(BOLD, 'by operator')}\n{_group_table(found.operators, report)}")
    if found.modules.modules:  # a log names none
        parts.append(f"{ink(BOLD, 'by module')}\n{_module_table(found.modules, depth, report)}")
    lines = "\n\n".join(parts).splitlines()
    return "\n".join(clip(line, width) if "\033" not in line else line for line in lines) + "\n"


def _storage_table(storages: Sequence[StorageStats], report: Report) -> str:
    names = [storage.name for storage in report.storages]
    made_in: dict[str, str] = {}
    away: dict[str, float] = {}  # for how much compute of the step each is away
    for event in report.events:
        for name in (names[at] for at in event.storages):
            if event.kind == "compute":
                made_in[name] = "  ".join(filter(None, (event.module, event.source)))
            if event.away is not None:
                away[name] = away.get(name, 0.0) + event.away
    rows = [
        {
            "value": storage.name,
            "kind": storage.kind,
            "bytes": format_bytes(storage.nbytes),
            "drops": storage.drops,
            "recomputes": storage.recomputes,
            "cost again": format_seconds(storage.recompute_cost) if storage.recomputes else "",
            "away": format_seconds(away[storage.name]) if storage.name in away else "",
            "made in": made_in.get(storage.name, ""),
        }
        for storage in storages
    ]
    return table(rows, ["kind", "made in"])


def _group_table(groups: Sequence[Group], report: Report) -> str:
    rows = [
        {
            "": group.name or "(none)",
            "runs": group.runs,
            "compute": format_seconds(group.cost),
            "dropped": format_bytes(group.dropped),
            "recomputes": group.recomputes,
            "extra": format_seconds(group.recompute_cost) if group.recomputes else "",
            "of all": format_percent(group.recompute_cost / report.base_cost if report.base_cost else 0.0),
        }
        for group in groups[:_MOST]
    ]
    rest = len(groups) - _MOST
    more = f"\n… and {rest} more with less extra compute or none (--json has all)" if rest > 0 else ""
    return table(rows) + more


def _module_table(tree: Module, depth: int | None, report: Report) -> str:
    """The tree, folded below ``depth``, or so that it has few rows."""
    if depth is None:
        levels = range(1, 1 + max(level for level, _ in tree.walk()))
        depth = max((level for level in levels if len(_folded(tree, level)) <= _FEW), default=1)
    rows = _folded(tree, depth)
    return table([_module_row(name, figures, report) for name, figures in rows])


def _folded(module: Module, depth: int) -> list[tuple[str, Figures]]:
    """A row for the module and each that is in it, down to ``depth``; of many in one those that cost most."""
    rows = [(module.name or "whole graph", module.figures)]
    if depth == 0:
        return rows
    by_cost = sorted(module.modules, key=lambda one: (-one.figures.extra, -one.figures.at_peak))
    rest = {one.path for one in by_cost[_MOST:]}
    inside = [_folded(one, depth - 1) for one in module.modules if one.path not in rest]
    if rest:
        inside.append([(f"… {len(rest)} more", sum_of(one.figures for one in by_cost[_MOST:]))])
    for left, ((name, figures), *below) in zip(reversed(range(len(inside))), inside):
        branch, stem = ("├ ", "│ ") if left else ("└ ", "  ")
        rows += [(branch + name, figures), *((stem + each, of) for each, of in below)]
    return rows


def _module_row(name: str, figures: Figures, report: Report) -> dict[str, object]:
    share = figures.extra / report.base_cost if report.base_cost else 0.0
    return {
        "": name,
        "compute": format_seconds(figures.cost),
        "at the peak": format_bytes(figures.at_peak),
        "dropped": format_bytes(figures.dropped) if figures.drops else "",
        "recomputed": format_bytes(figures.recomputed) if figures.recomputes else "",
        "extra": format_seconds(figures.extra) if figures.recomputes else "",
        "of all": format_percent(share),
    }
