"""A report as a memory snapshot, which PyTorch's memory viewer opens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

from dtr_fx.report import Report
from dtr_fx.report.blocks import blocks

_MICROSECONDS = 1e6


def to_memory_snapshot(report: Report) -> dict[str, Any]:
    """The plan's blocks as ``torch.cuda.memory._snapshot()`` has those of an allocator.

    Pickle it, and open it at https://pytorch.org/memory_viz, or give it to ``torch.cuda._memory_viz``.

    It shows what the plan counts with: the bytes of each block, when it is allocated and freed, and for which
    operator and line; times are the planned ones, in microseconds.  What an allocator adds is not there:
    addresses are made up, one for each block, so that nothing is reused and nothing fragments; there is one
    segment, one stream, and no cache.
    """
    pieces = [piece for piece in _pieces(report) if piece.nbytes]
    addresses = list(accumulate((piece.nbytes for piece in pieces), initial=0))
    trace = list(_trace(report, list(zip(pieces, addresses))))
    return {
        "segments": [_segment(pieces, addresses)],
        "device_traces": [trace],
        "allocator_settings": {},
    }


class _Piece(NamedTuple):
    """Memory at an address of its own, from one event (-1: before the step) to another (None: it stays)."""

    nbytes: int
    made_at: int
    freed_at: int | None
    frames: list[dict[str, Any]]


def _pieces(report: Report) -> Iterator[_Piece]:
    """The blocks, and the workspaces of operators, each there while the operator runs."""
    for block in blocks(report):
        name, nbytes = report.storages[block.storage].name, report.storages[block.storage].nbytes
        source = ""
        if block.made_at >= 0:
            event = report.events[block.made_at]
            name, source = f"{event.name}: {name}" if event.name != name else name, event.source
        freed_at = None if block.stays else block.last_at
        yield _Piece(nbytes, block.made_at, freed_at, _frames(name, source))
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


def _segment(pieces: Sequence[_Piece], addresses: Sequence[int]) -> dict[str, Any]:
    """The memory at the step's end."""
    live = sum(piece.nbytes for piece in pieces if piece.freed_at is None)
    return {
        "device": 0,
        "address": 0,
        "total_size": addresses[-1],
        "allocated_size": live,
        "active_size": live,
        "stream": 0,
        "segment_type": "large",
        "blocks": [
            {
                "address": address,
                "size": piece.nbytes,
                "requested_size": piece.nbytes,
                "state": "active_allocated" if piece.freed_at is None else "inactive",
                "frames": piece.frames,
            }
            for piece, address in zip(pieces, addresses)
        ],
    }
