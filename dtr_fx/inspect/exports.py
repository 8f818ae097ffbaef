"""A report in other tools' forms: networkx's graphs, Chrome's traces, PyTorch's memory snapshots."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import networkx as nx

from dtr_fx.report import KINDS, Report
from dtr_fx.report.blocks import blocks

_MICROSECONDS = 1e6
_OPERATOR = ("target", "phase", "module", "source", "nbytes", "cost")
_TRACED = ("target", "module", "source", "phase", "nbytes", "live", "reason", "score", "again", "away")


# networkx


def to_networkx(report: Report) -> nx.DiGraph:
    """The operators and inputs of the graph as it was, an edge from each to those that read it.

    Attributes are numbers and strings, so that ``networkx.write_graphml`` and DOT writers take them: of an
    operator ``kind`` (``"operator"``), ``target``, ``phase``, ``module``, ``source``, ``nbytes``, ``cost``,
    ``drops``, ``recomputes`` and ``recompute_cost``; of an input ``kind`` and ``nbytes``.
    """
    graph = nx.DiGraph()
    original = {point.name for point in report.before}
    computed = [event for event in report.events if event.kind == "compute"]
    makers = {storage: event.name for event in computed for storage in event.storages}
    dropped = (storage for event in report.events if event.kind == "drop" for storage in event.storages)
    drops = Counter(makers[storage] for storage in dropped)
    again = Counter(event.origin for event in report.events if event.kind == "recompute")
    origin_of = {event.name: event.origin for event in report.events}
    for event in computed:
        if event.name in original:
            facts = {name: getattr(event, name) for name in _OPERATOR}
            count = {"drops": drops[event.name], "recomputes": again[event.name]}
            cost = again[event.name] * event.cost
            graph.add_node(event.name, kind="operator", **facts, **count, recompute_cost=cost)
            graph.add_edges_from((origin_of.get(name, name), event.name) for name in event.reads)
    given = {storage.name: storage for storage in report.storages}
    for name, facts in graph.nodes(data=True):
        if not facts:  # nothing computes it: an input
            kind, nbytes = (given[name].kind, given[name].nbytes) if name in given else ("input", 0)
            facts.update(kind="parameter" if kind == "parameter" else "input", nbytes=nbytes)
    return graph


# Chrome's traces


def to_chrome_trace(report: Report) -> str:
    """The step as planned, for chrome://tracing and https://ui.perfetto.dev.

    Operators lie one after the other, as long as their costs say.  Live bytes by kind are a counter, drops
    are instants, and an arrow leads from each drop to the recompute that it makes necessary.
    """
    clock = accumulate((event.cost * _MICROSECONDS for event in report.events), initial=0.0)
    places = [
        {"pid": 1, "tid": 2 if event.kind == "recompute" else 1, "ts": start}
        for event, start in zip(report.events, clock)
    ]
    process = {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "dtr_fx: the step as planned"}}
    threads = (
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": thread, "args": {"name": name}}
        for thread, name in enumerate(("compute", "recompute"), 1)
    )
    traced = [process, *threads, *_steps(report, places), *_arrows(report, places)]
    return json.dumps({"traceEvents": traced, "displayTimeUnit": "ms"})


def _steps(report: Report, places: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    parts = {point.name: point.parts for point in report.after}
    for event, place in zip(report.events, places):
        facts = {name: getattr(event, name) for name in _TRACED}
        arguments = {name: value for name, value in facts.items() if value not in ("", None)}
        step = {**place, "name": event.name, "cat": event.kind, "args": arguments}
        if event.kind == "drop":
            yield {**step, "ph": "i", "s": "t", "name": f"drop {event.origin}"}
            continue
        yield {**step, "ph": "X", "dur": event.cost * _MICROSECONDS}
        if parts.get(event.name):
            counts = dict(zip(KINDS, parts[event.name]))
            yield {"ph": "C", "pid": 1, "ts": place["ts"], "name": "live bytes", "args": counts}


def _arrows(report: Report, places: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for number, block in enumerate(blocks(report)):
        if block.dropped_at is not None and block.again_at is not None:
            arrow = {"name": "drop", "cat": "dtr", "id": number}
            yield {**places[block.dropped_at], **arrow, "ph": "s"}
            yield {**places[block.again_at], **arrow, "ph": "f", "bp": "e"}


# PyTorch's memory snapshots


def to_memory_snapshot(report: Report) -> dict[str, Any]:
    """The plan's blocks as ``torch.cuda.memory._snapshot()`` has those of an allocator.

    Pickle it, and open it at https://pytorch.org/memory_viz, or give it to ``torch.cuda._memory_viz``.
    It shows what the plan counts with: the bytes of each block, its operator and line, and when it is
    allocated and freed, in planned microseconds.  Each block has a made-up address of its own: nothing is
    reused, nothing fragments, and there is one segment, one stream, and no cache.
    """
    pieces = [piece for piece in _pieces(report) if piece.nbytes]
    placed = list(zip(pieces, accumulate((piece.nbytes for piece in pieces), initial=0)))
    live = sum(piece.nbytes for piece in pieces if piece.freed_at is None)
    segment = {
        "device": 0,
        "address": 0,
        "total_size": sum(piece.nbytes for piece in pieces),
        "allocated_size": live,
        "active_size": live,
        "stream": 0,
        "segment_type": "large",
        "blocks": [_block(piece, address) for piece, address in placed],
    }
    trace = list(_trace(report, placed))
    return {"segments": [segment], "device_traces": [trace], "allocator_settings": {}}


def _block(piece: _Piece, address: int) -> dict[str, Any]:
    state = "active_allocated" if piece.freed_at is None else "inactive"
    sizes = {"size": piece.nbytes, "requested_size": piece.nbytes}
    return {"address": address, **sizes, "state": state, "frames": piece.frames}


class _Piece(NamedTuple):
    """Memory at an address of its own, from one event (-1: before the step) to another (None: it stays)."""

    nbytes: int
    made_at: int
    freed_at: int | None
    frames: list[dict[str, Any]]


def _pieces(report: Report) -> Iterator[_Piece]:
    """The blocks, and the workspaces of operators, each there while the operator runs."""
    for block in blocks(report):
        storage = report.storages[block.storage]
        maker = report.events[block.made_at] if block.made_at >= 0 else None
        name = f"{maker.name}: {storage.name}" if maker and maker.name != storage.name else storage.name
        frames = _frames(name, maker.source if maker else "")
        yield _Piece(storage.nbytes, block.made_at, None if block.stays else block.last_at, frames)
    temporary = {point.name: point.parts[-1] for point in report.after if point.parts}
    for at, event in enumerate(report.events):
        frames = _frames(f"{event.name} (temporary)", event.source)
        yield _Piece(temporary.get(event.name, 0), at, at, frames)


def _frames(name: str, source: str) -> list[dict[str, Any]]:
    """The operator, and the user's line below it."""
    place, _, code = source.partition(" in ")
    filename, _, line = place.rpartition(":")
    own = [{"filename": "dtr_fx", "line": 0, "name": name}]
    return own + ([{"filename": filename, "line": int(line), "name": code}] if line.isdecimal() else [])


def _trace(report: Report, placed: Sequence[tuple[_Piece, int]]) -> Iterator[dict[str, Any]]:
    """Allocations and releases, in order."""
    made, freed = defaultdict(list), defaultdict(list)
    for piece, address in placed:
        entry = {"addr": address, "size": piece.nbytes, "stream": 0, "frames": piece.frames}
        made[piece.made_at].append(entry)
        freed[piece.freed_at].append(entry)
    yield from ({**entry, "action": "alloc", "time_us": 0} for entry in made[-1])
    clock = 0.0
    for at, event in enumerate(report.events):
        yield from ({**entry, "action": "alloc", "time_us": round(clock)} for entry in made[at])
        clock += event.cost * _MICROSECONDS
        for entry in freed[at]:
            for action in ("free_requested", "free_completed"):
                yield {**entry, "action": action, "time_us": round(clock)}
