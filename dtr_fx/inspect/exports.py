"""A report in other tools' forms: networkx's graphs, Chrome's traces, PyTorch's memory snapshots."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import accumulate
from typing import Any, NamedTuple

import networkx as nx

from dtr_fx.report import KINDS, Report
from dtr_fx.report.blocks import blocks
from dtr_fx.runtime.caching_allocator import Block, CachingAllocator, Pool

_MICROSECONDS = 1e6
_OPERATOR = ("target", "phase", "module", "source", "nbytes", "cost")
_LANES = ("compute", "recompute", "offload", "reload")
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

    Operators lie one after the other, as long as their costs say; copies out and back have a lane each.  Live
    bytes by kind are a counter, drops are instants, and an arrow leads from each drop to the recompute that
    it makes necessary.
    """
    clock = accumulate((event.cost * _MICROSECONDS for event in report.events), initial=0.0)
    lanes = [name for name in _LANES if name in ("compute", "recompute") or _has(report, name)]
    places = [
        {"pid": 1, "tid": lanes.index(event.kind) + 1 if event.kind in lanes else 1, "ts": start}
        for event, start in zip(report.events, clock)
    ]
    for place, start in _transfers(report, places):
        place["ts"] = start
    process = {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "dtr_fx: the step as planned"}}
    threads = (
        {"ph": "M", "name": "thread_name", "pid": 1, "tid": thread, "args": {"name": name}}
        for thread, name in enumerate(lanes, 1)
    )
    traced = [process, *threads, *_steps(report, places), *_arrows(report, places)]
    return json.dumps({"traceEvents": traced, "displayTimeUnit": "ms"})


def _has(report: Report, kind: str) -> bool:
    return any(event.kind == kind for event in report.events)


def _transfers(report: Report, places: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], float]]:
    """The places of transfers, with when each starts: behind the one before it in its lane."""
    ends: defaultdict[str, float] = defaultdict(float)
    for event, place in zip(report.events, places):
        if event.transfer:
            start = max(place["ts"], ends[event.kind])
            ends[event.kind] = start + event.transfer * _MICROSECONDS
            yield place, start


def _steps(report: Report, places: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    parts = {point.name: point.parts for point in report.after}
    for event, place in zip(report.events, places):
        facts = {name: getattr(event, name) for name in _TRACED}
        arguments = {name: value for name, value in facts.items() if value not in ("", None)}
        step = {**place, "name": event.name, "cat": event.kind, "args": arguments}
        if event.kind == "drop":
            yield {**step, "ph": "i", "s": "t", "name": f"drop {event.origin}"}
            continue
        yield {**step, "ph": "X", "dur": (event.cost + event.transfer) * _MICROSECONDS}
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
    """The plan as ``torch.cuda.memory._snapshot()`` would have it on a CUDA device that runs nothing else.

    Pickle it, and open it at https://pytorch.org/memory_viz, or give it to ``torch.cuda._memory_viz``.
    It shows what the plan counts with: the bytes of each block, its operator and line, and when it is
    allocated and freed, in planned microseconds.  Addresses and segments are those of a simulated
    ``CachingAllocator``, on one stream.
    """
    allocator = CachingAllocator.as_configured()
    trace = list(_trace(report, allocator))
    segments = [
        _segment(pool, first) for pool in allocator.pools for first in pool.segments if allocator.reserved
    ]
    return {"segments": segments, "device_traces": [trace], "allocator_settings": {}}


def segments_at_peak(report: Report) -> Iterator[tuple[str, list[tuple[str, str, int]]]]:
    """When most bytes are allocated: of each segment the pool, and the name, kind and bytes of its blocks.

    What is free has neither name nor kind.
    """
    allocator = CachingAllocator.as_configured()
    for _ in _trace(report, allocator):
        pass
    most = max(range(len(allocator.timeline)), key=lambda at: allocator.timeline[at][0], default=0)
    allocator = CachingAllocator.as_configured()
    for _ in _trace(report, allocator):
        if len(allocator.timeline) > most:
            break
    for pool in allocator.pools:
        for first in pool.segments if allocator.reserved else ():
            blocks = [(block.owner, block.size) for block in first.to_the_end() if block.size]
            named = [
                (owner.name, owner.kind, size) if isinstance(owner, _Piece) else ("", "", size)
                for owner, size in blocks
            ]
            yield "small" if pool.is_small else "large", named


def _segment(pool: Pool, first: Block) -> dict[str, Any]:
    inside = list(first.to_the_end())
    live = sum(block.size for block in inside if not block.is_free)
    return {
        "device": 0,
        "address": first.address,
        "total_size": sum(block.size for block in inside),
        "allocated_size": live,
        "active_size": live,
        "stream": 0,
        "segment_type": "small" if pool.is_small else "large",
        "blocks": list(map(_block, inside)),
    }


def _block(block: Block) -> dict[str, Any]:
    piece = block.owner
    if not isinstance(piece, _Piece):
        unused = {"requested_size": 0, "state": "inactive", "frames": []}
        return {"address": block.address, "size": block.size, **unused}
    used = {"requested_size": piece.nbytes, "state": "active_allocated", "frames": piece.frames}
    return {"address": block.address, "size": block.size, **used}


class _Piece(NamedTuple):
    """Memory that is held from one event (-1: before the step) to another (None: it stays)."""

    nbytes: int
    made_at: int
    freed_at: int | None
    frames: list[dict[str, Any]]
    kind: str

    @property
    def name(self) -> str:
        return str(self.frames[0]["name"])


def _pieces(report: Report) -> Iterator[_Piece]:
    """The blocks, and the workspaces of operators, each there while the operator runs."""
    for block in blocks(report):
        storage = report.storages[block.storage]
        maker = report.events[block.made_at] if block.made_at >= 0 else None
        name = f"{maker.name}: {storage.name}" if maker and maker.name != storage.name else storage.name
        frames = _frames(name, maker.source if maker else "")
        freed_at = None if block.stays else block.last_at
        yield _Piece(storage.nbytes, block.made_at, freed_at, frames, storage.kind)
    temporary = {point.name: point.parts[-1] for point in report.after if point.parts}
    for at, event in enumerate(report.events):
        frames = _frames(f"{event.name} (temporary)", event.source)
        yield _Piece(temporary.get(event.name, 0), at, at, frames, "temporary")


def _frames(name: str, source: str) -> list[dict[str, Any]]:
    """The operator, and the user's line below it."""
    place, _, code = source.partition(" in ")
    filename, _, line = place.rpartition(":")
    own = [{"filename": "dtr_fx", "line": 0, "name": name}]
    return own + ([{"filename": filename, "line": int(line), "name": code}] if line.isdecimal() else [])


def _trace(report: Report, allocator: CachingAllocator) -> Iterator[dict[str, Any]]:
    """The requests of a step to the allocator, in order."""
    made, freed = defaultdict(list), defaultdict(list)
    for piece in _pieces(report):
        if piece.nbytes:
            made[piece.made_at].append(piece)
            freed[piece.freed_at].append(piece)
    held: dict[int, Block] = {}

    def allocate(piece: _Piece, clock: float) -> Iterator[dict[str, Any]]:
        before = allocator.reserved
        block = held[id(piece)] = allocator.malloc(piece.nbytes, piece)
        new = allocator.reserved - before
        if new:
            *_, last = block.pool.blocks()
            yield _entry("segment_alloc", last.address + last.size - new, new, piece, clock)
        yield _entry("alloc", block.address, piece.nbytes, piece, clock)

    for piece in made[-1]:
        yield from allocate(piece, 0.0)
    clock = 0.0
    for at, event in enumerate(report.events):
        for piece in made[at]:
            yield from allocate(piece, clock)
        clock += event.cost * _MICROSECONDS
        for piece in freed[at]:
            block = held.pop(id(piece))
            for action in ("free_requested", "free_completed"):
                yield _entry(action, block.address, piece.nbytes, piece, clock)
            allocator.free(block)


def _entry(action: str, address: int, nbytes: int, piece: _Piece, clock: float) -> dict[str, Any]:
    place = {"addr": address, "size": nbytes, "stream": 0}
    return {"action": action, **place, "frames": piece.frames, "time_us": round(clock)}
