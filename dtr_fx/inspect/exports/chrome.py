"""A report as a Chrome trace, which Perfetto opens."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from dtr_fx.report import KINDS, Event, Report

_MICROSECONDS = 1e6
_THREADS = {1: "compute", 2: "recompute"}


def to_chrome_trace(report: Report) -> str:
    """The step as planned, for chrome://tracing and https://ui.perfetto.dev.

    Operators lie one after the other, as long as their costs say.  Live bytes by kind are a counter, drops
    are instants, and an arrow leads from each drop to the recompute that it makes necessary.
    """
    return json.dumps({"traceEvents": [*_names(), *_steps(report)], "displayTimeUnit": "ms"})


def _names() -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "dtr_fx: the step as planned"}}
    for thread, name in _THREADS.items():
        yield {"ph": "M", "name": "thread_name", "pid": 1, "tid": thread, "args": {"name": name}}


def _steps(report: Report) -> Iterator[dict[str, Any]]:
    parts = {point.name: point.parts for point in report.after}
    clock = 0.0
    arrows: dict[int, int] = {}  # by the storage that was dropped
    for number, event in enumerate(report.events):
        if event.kind == "drop":
            yield from _drop(event, number, clock)
            arrows.update((storage, number) for storage in event.storages)
            continue
        yield from _operator(event, parts.get(event.name, ()), clock)
        if event.kind == "recompute":
            for storage in event.storages:
                if storage in arrows:
                    yield {**_at(event, clock), **_ARROW, "ph": "f", "bp": "e", "id": arrows.pop(storage)}
        clock += event.cost * _MICROSECONDS


_ARROW = {"name": "drop", "cat": "dtr"}
_FACTS = ("target", "module", "source", "phase", "nbytes", "live", "reason", "score", "again", "away")


def _at(event: Event, clock: float) -> dict[str, Any]:
    return {"pid": 1, "tid": 2 if event.kind == "recompute" else 1, "ts": clock}


def _drop(event: Event, number: int, clock: float) -> Iterator[dict[str, Any]]:
    at = _at(event, clock)
    yield {**at, "ph": "i", "s": "t", "name": f"drop {event.origin}", "cat": "drop", "args": _args(event)}
    yield {**at, **_ARROW, "ph": "s", "id": number}


def _operator(event: Event, parts: Sequence[int], clock: float) -> Iterator[dict[str, Any]]:
    duration = event.cost * _MICROSECONDS
    named = {"name": event.name, "cat": event.kind, "args": _args(event)}
    yield {**_at(event, clock), **named, "ph": "X", "dur": duration}
    if parts:
        yield {"ph": "C", "pid": 1, "ts": clock, "name": "live bytes", "args": dict(zip(KINDS, parts))}


def _args(event: Event) -> dict[str, Any]:
    facts = {name: getattr(event, name) for name in _FACTS}
    return {name: value for name, value in facts.items() if value not in ("", None)}
