"""Reports as columns of numbers, small enough to lie inside a page; ``assets/data.js`` reads them.

What is no whole number lies once in a table, and is its position there.  Whole numbers are differences to the
one before: along a program most columns change little, or by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, pairwise
from typing import Any

from dtr_fx.inspect.diff import circumstances, why
from dtr_fx.inspect.timeline import peak_at, sources_by_name
from dtr_fx.report import KINDS, Event, Point, Report, StorageStats

Columns = dict[str, list[int]]


def to_columns(reports: Sequence[Report]) -> dict[str, Any]:
    """All that the page shows, for ``json.dumps``."""
    table: dict[Any, int] = {}

    def intern(values: Iterable[Any]) -> list[int]:
        return _differences(table.setdefault(value, len(table)) for value in values)

    packed = [_report(report, intern) for report in reports]
    return {"kinds": KINDS, "reports": packed, "table": list(table)}


_Intern = Callable[[Iterable[Any]], list[int]]


def _report(report: Report, intern: _Intern) -> dict[str, Any]:
    sources = sources_by_name(report)
    return {
        "summary": report.summary(),
        "circumstances": circumstances(report),
        "peakBefore": peak_at(report.before, report.baseline_peak, sources),
        "peakAfter": peak_at(report.after, report.planned_peak, sources),
        "budget": report.budget,
        "events": _events(report.events, intern),
        "before": _points(report.before, intern),
        "after": _points(report.after, intern),
        "storages": _storages(report.storages, intern),
    }


def _events(events: Sequence[Event], intern: _Intern) -> Columns:
    return {
        **_fields(events, intern, ("kind", "name", "origin", "phase", "cost", "source"), ("nbytes", "live")),
        "why": intern(why(event) for event in events),
        "count": _differences(len(event.storages) for event in events),
        "storages": _differences(chain.from_iterable(event.storages for event in events)),
    }


def _points(points: Sequence[Point], intern: _Intern) -> Columns:
    columns = {"name": intern(point.name for point in points)}
    for position, kind in enumerate(KINDS):
        # A report without parts shows its live bytes as activations.
        columns[kind] = _differences(
            point.parts[position] if point.parts else point.live * (kind == "activation") for point in points
        )
    return columns


def _storages(storages: Sequence[StorageStats], intern: _Intern) -> Columns:
    counts = ("nbytes", "drops", "recomputes")
    return _fields(storages, intern, ("name", "kind", "recompute_cost"), counts)


def _fields(items: Sequence[Any], intern: _Intern, interned: Iterable[str], whole: Iterable[str]) -> Columns:
    """The fields of many items: those to intern, and those of whole numbers."""
    return {
        **{name: intern(getattr(item, name) for item in items) for name in interned},
        **{name: _differences(getattr(item, name) for item in items) for name in whole},
    }


def _differences(numbers: Iterable[int]) -> list[int]:
    return [after - before for before, after in pairwise(chain((0,), numbers))]
