"""A plan at a glance, as tables."""

from __future__ import annotations

from collections.abc import Sequence

from tabulate import tabulate

from dtr_fx.inspect.overview import Group, Overview
from dtr_fx.inspect.text import BOLD, Ink, clip
from dtr_fx.report import Event, Report, StorageStats
from dtr_fx.units import format_bytes, format_percent, format_seconds

_MOST = 12  # groups in a table


def render_overview(report: Report, found: Overview, *, width: int = 100, color: bool = False) -> str:
    """The verdict and the tables, for people to read."""
    ink = Ink(color)
    makers = {at: event for event in report.events if event.kind == "compute" for at in event.storages}
    made_by = {storage.name: makers.get(at) for at, storage in enumerate(report.storages)}
    parts = [ink(BOLD, report.summary())]
    for title, storages in (
        ("largest values", found.by_bytes),
        ("values that cost the most to compute again", found.by_cost),
        ("values dropped most often", found.by_drops),
    ):
        if storages:
            parts.append(f"{ink(BOLD, title)}\n{_storage_table(storages, made_by)}")
    for title, groups in (("by operator", found.operators), ("by module", found.modules)):
        if not any(group.name for group in groups):  # a log names no modules
            continue
        parts.append(f"{ink(BOLD, title)}\n{_group_table(groups, report)}")
    lines = "\n\n".join(parts).splitlines()
    return "\n".join(clip(line, width) if "\033" not in line else line for line in lines) + "\n"


def _storage_table(storages: Sequence[StorageStats], made_by: dict[str, Event | None]) -> str:
    rows = [
        {
            "value": storage.name,
            "kind": storage.kind,
            "bytes": format_bytes(storage.nbytes),
            "drops": storage.drops,
            "recomputes": storage.recomputes,
            "cost again": format_seconds(storage.recompute_cost) if storage.recomputes else "",
            "made in": _place(made_by.get(storage.name)),
        }
        for storage in storages
    ]
    return _table(rows, ("left", "left", "right", "right", "right", "right", "left"))


def _place(event: Event | None) -> str:
    return "" if event is None else "  ".join(part for part in (event.module, event.source) if part)


def _group_table(groups: Sequence[Group], report: Report) -> str:
    rows = [_group_row(group, report) for group in groups[:_MOST]]
    table = _table(rows, ("left", *["right"] * 6))
    rest = len(groups) - _MOST
    return (
        f"{table}\n… and {rest} more with less extra compute or none (--json has all)" if rest > 0 else table
    )


def _group_row(group: Group, report: Report) -> dict[str, object]:
    return {
        "": group.name or "(none)",
        "runs": group.runs,
        "compute": format_seconds(group.cost),
        "dropped": format_bytes(group.dropped),
        "recomputes": group.recomputes,
        "extra": format_seconds(group.recompute_cost) if group.recomputes else "",
        "of all": format_percent(group.recompute_cost / report.base_cost if report.base_cost else 0.0),
    }


def _table(rows: Sequence[dict[str, object]], alignment: Sequence[str]) -> str:
    return tabulate(rows, headers="keys", disable_numparse=True, colalign=alignment)
