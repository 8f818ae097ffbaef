"""A report as a Chrome trace, which Perfetto opens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import accumulate
from typing import Any

from dtr_fx.report import KINDS, Event, Report
from dtr_fx.report.blocks import blocks

_MICROSECONDS = 1e6
_THREADS = {1: "compute", 2: "recompute"}
_FACTS = ("target", "module", "source", "phase", "nbytes", "live", "reason", "score", "again", "away")


def to_chrome_trace(report: Report) -> str:
    """The step as planned, for chrome://tracing and https://ui.perfetto.dev.

    Operators lie one after the other, as long as their costs say.  Live bytes by kind are a counter, drops
    are instants, and an arrow leads from each drop to the recompute that it makes necessary.
    """
    clock = [*accumulate((event.cost * _MICROSECONDS for event in report.events), initial=0.0)]
    places = [
        {"pid": 1, "tid": 2 if event.kind == "recompute" else 1, "ts": start}
        for event, start in zip(report.events, clock)
    ]
    traced = [*_names(), *_steps(report, places), *_arrows(report, places)]
    return json.dumps({"traceEvents": traced, "displayTimeUnit": "ms"})


def _names() -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "dtr_fx: the step as planned"}}
    for thread, name in _THREADS.items():
        yield {"ph": "M", "name": "thread_name", "pid": 1, "tid": thread, "args": {"name": name}}


def _steps(report: Report, places: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    parts = {point.name: point.parts for point in report.after}
    for event, place in zip(report.events, places):
        step = {**place, "name": event.name, "cat": event.kind, "args": _args(event)}
        if event.kind == "drop":
            yield {**step, "ph": "i", "s": "t", "name": f"drop {event.origin}"}
            continue
        yield {**step, "ph": "X", "dur": event.cost * _MICROSECONDS}
        if parts.get(event.name):
            counts = dict(zip(KINDS, parts[event.name]))
            yield {"ph": "C", "pid": 1, "ts": place["ts"], "name": "live bytes", "args": counts}


def _args(event: Event) -> dict[str, Any]:
    facts = {name: getattr(event, name) for name in _FACTS}
    return {name: value for name, value in facts.items() if value not in ("", None)}


def _arrows(report: Report, places: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for number, block in enumerate(blocks(report)):
        if block.dropped_at is not None and block.again_at is not None:
            arrow = {"name": "drop", "cat": "dtr", "id": number}
            yield {**places[block.dropped_at], **arrow, "ph": "s"}
            yield {**places[block.again_at], **arrow, "ph": "f", "bp": "e"}
