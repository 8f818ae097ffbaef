"""Plans as the page has them: columns of numbers, and once for all plans what they share.

Most numbers stand as differences, each from the one before: in execution order these repeat themselves, which
compresses well.  ``assets/plans.js`` reads the columns.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, pairwise
from typing import Any

from dtr_fx.inspect.diff import sections, why
from dtr_fx.inspect.exports import segments_at_peak
from dtr_fx.inspect.modules import module_tree, page_rows
from dtr_fx.report import KINDS, Event, Point, Report

# Kinds of events; operators are numbered first, so that those of a plan come one after the other.
_EVENTS = ("compute", "recompute", "offload", "reload", "wait", "drop")
# What is the same of all events of a kind and origin, as words and as numbers.
_WORDS = ("origin", "source", "target", "module")
_NUMBERS = ("nbytes", "cost")


class _Numbered(dict[Any, int]):
    """Numbers things from 0, in the order in which they are first asked for."""

    def __missing__(self, thing: Any) -> int:
        number = self[thing] = len(self)
        return number


class Packed:
    """Reports as data for ``json.dumps``: ``shared`` by all, and one of the ``plans`` for each."""

    def __init__(self, reports: Sequence[Report]) -> None:
        self._words = _Numbered({"": 0})
        self._facts, self._given, self._before = _Numbered(), _Numbered(), _Numbered()
        for kind in _EVENTS:
            for report in reports:
                for event in report.events:
                    if event.kind == kind:
                        self._facts[_facts(event)]
        self.plans = [self._plan(report) for report in reports]
        self.shared = self._shared()

    def _shared(self) -> dict[str, Any]:
        facts = list(zip(*self._facts)) or [()] * (len(_WORDS) + len(_NUMBERS) + 2)
        words, numbers = facts[1 : 1 + len(_WORDS)], facts[1 + len(_WORDS) : -1]
        data: dict[str, Any] = {
            "kinds": KINDS,
            "events": _EVENTS,
            "facts": {
                **{name: self._numbers(column) for name, column in zip(_WORDS, words)},
                **dict(zip(_NUMBERS, numbers)),
                "storages": list(map(_differences, facts[-1])),
            },
            "given": [
                {"name": self._numbers(names), "kind": [self._words[kind] for kind in kinds], "nbytes": sizes}
                for names, kinds, sizes in self._given
            ],
            "before": [_parts(points) | {"name": self._names(points)} for points in self._before],
        }
        return {**data, "words": list(self._words)}  # last: by now all are known

    def _numbers(self, words: Iterable[str]) -> list[int]:
        return _differences([self._words[word] for word in words])

    def _names(self, points: Iterable[Point]) -> list[int]:
        return self._numbers(point.name for point in points)

    def _plan(self, report: Report) -> dict[str, Any]:
        events = [event for event in report.events if event.kind in _EVENTS]
        own = _Numbered({"": 0})
        names = [event.name for event in events if event.kind != "drop"]
        known = names == [point.name for point in report.after]
        # Of the operators of the graph the name is the origin, and need not be told again.
        return {
            "kind": [_EVENTS.index(event.kind) for event in events],
            "fact": self._fact_column(events),
            "name": [own["" if event.name == event.origin else event.name] for event in events],
            "why": [own[why(event)] for event in events],
            "phase": _differences([own[event.phase] for event in events]),
            "live": _differences([event.live for event in events]),
            "rows": [[own[title], rows] for title, rows in _rows(report)],
            "after": _parts(report.after),
            "afterName": None if known else [own[point.name] for point in report.after],
            "before": self._before[report.before],
            "given": self._given[_given(report)],
            "again": [
                (at, storage.drops, storage.recomputes, storage.recompute_cost)
                for at, storage in enumerate(report.storages)
                if storage.drops or storage.recomputes
            ],
            "modules": list(page_rows(module_tree(report))),
            "segments": [
                (pool, [own[name] for name, _, _ in blocks], [own[kind] for _, kind, _ in blocks], sizes)
                for pool, blocks in (segments_at_peak(report) if _is_cached(report) else ())
                for sizes in [[nbytes for _, _, nbytes in blocks]]
            ],
            "words": list(own),
        }

    def _fact_column(self, events: Iterable[Event]) -> list[int]:
        """The number of each event's facts, as the difference from that of the last event of its kind."""
        last = dict.fromkeys(_EVENTS, 0)
        column = []
        for event in events:
            number = self._facts[_facts(event)]
            column.append(number - last[event.kind])
            last[event.kind] = number
        return column


def _is_cached(report: Report) -> bool:
    """True if the device's memory is that of a caching allocator, or is counted as such."""
    return report.counts_reserved or (bool(report.reserved_peak) and report.device.partition(":")[0] != "cpu")


def _facts(event: Event) -> tuple[Any, ...]:
    return (
        event.kind,
        *(getattr(event, name) for name in _WORDS),
        *(getattr(event, name) for name in _NUMBERS),
        event.storages,
    )


def _given(report: Report) -> tuple[tuple[Any, ...], ...]:
    """The names, kinds and bytes of storages, which all plans of a graph have in common."""
    return tuple(zip(*((each.name, each.kind, each.nbytes) for each in report.storages))) or ((), (), ())


def _rows(report: Report) -> Iterator[tuple[str, list[int]]]:
    """The sections of the diff: how many steps follow one another, and below 0 how many a fold holds."""
    for title, rows in sections(report.events):
        runs: list[int] = []
        for row in rows:
            if not isinstance(row, Event):
                runs.append(-len(row))
            elif runs and runs[-1] > 0:
                runs[-1] += 1
            else:
                runs.append(1)
        yield title, runs


def _parts(points: Sequence[Point]) -> dict[str, list[list[int]]]:
    """A column for each of ``KINDS``; a report without parts shows its live bytes as activations."""
    rows = (point.parts or [point.live * (kind == "activation") for kind in KINDS] for point in points)
    return {"parts": list(map(_differences, zip(*rows))) or [[] for _ in KINDS]}


def _differences(numbers: Sequence[int]) -> list[int]:
    return [after - before for before, after in pairwise(chain([0], numbers))]
