"""A report as a memory snapshot, which PyTorch's memory viewer opens."""

from __future__ import annotations

from typing import Any

from dtr_fx.report import Event, Report
from dtr_fx.report.blocks import Block, blocks

_MICROSECONDS = 1e6
_FREE = ("free_requested", "free_completed")


def to_memory_snapshot(report: Report) -> dict[str, Any]:
    """The plan's blocks as ``torch.cuda.memory._snapshot()`` has those of an allocator.

    Pickle it, and open it at https://pytorch.org/memory_viz, or give it to ``torch.cuda._memory_viz``.

    It shows what the plan counts with: the bytes of each block, when it is allocated and freed, and for which
    operator and line; times are the planned ones, in microseconds.  What an allocator adds is not there:
    addresses are made up, one for each block, so that nothing is reused and nothing fragments; there is one
    segment, one stream, and no cache.
    """
    tracer = _Tracer(report)
    trace = tracer.trace()
    return {"segments": [tracer.segment()], "device_traces": [trace], "allocator_settings": {}}


class _Tracer:
    """Blocks at made-up addresses, one after the other."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._blocks = [block for block in blocks(report) if report.storages[block.storage].nbytes]
        self._top = 0
        self._addresses = [self._place(self._nbytes(block)) for block in self._blocks]

    def trace(self) -> list[dict[str, Any]]:
        """Allocations and releases, in order."""
        made: dict[int, list[int]] = {}
        freed: dict[int, list[int]] = {}
        for number, block in enumerate(self._blocks):
            made.setdefault(block.made_at, []).append(number)
            if not block.stays:
                freed.setdefault(block.last_at, []).append(number)
        temporary = {point.name: point.parts[-1] for point in self._report.after if point.parts}
        entries = [self._entry("alloc", number, 0.0) for number in made.get(-1, ())]
        clock = 0.0
        for at, event in enumerate(self._report.events):
            entries += [self._entry("alloc", number, clock) for number in made.get(at, ())]
            entries += self._temporary(event, temporary.get(event.name, 0), clock)
            clock += event.cost * _MICROSECONDS
            for number in freed.get(at, ()):
                entries += [self._entry(action, number, clock) for action in _FREE]
        return entries

    def segment(self) -> dict[str, Any]:
        """The memory at the step's end; after ``trace``, which finds out how much there is."""
        held = [
            {
                "address": address,
                "size": self._nbytes(block),
                "requested_size": self._nbytes(block),
                "state": "active_allocated" if block.stays else "inactive",
                "frames": self._frames(block),
            }
            for block, address in zip(self._blocks, self._addresses)
        ]
        end = sum(map(self._nbytes, self._blocks))
        if self._top > end:
            held.append({"address": end, "size": self._top - end, "requested_size": 0, "state": "inactive"})
        live = sum(self._nbytes(block) for block in self._blocks if block.stays)
        return {
            "device": 0,
            "address": 0,
            "total_size": self._top,
            "allocated_size": live,
            "active_size": live,
            "stream": 0,
            "segment_type": "large",
            "blocks": held,
        }

    def _place(self, nbytes: int) -> int:
        address = self._top
        self._top += nbytes
        return address

    def _nbytes(self, block: Block) -> int:
        return self._report.storages[block.storage].nbytes

    def _temporary(self, event: Event, nbytes: int, clock: float) -> list[dict[str, Any]]:
        """The workspace of an operator: there while it runs."""
        if not nbytes:
            return []
        frames = _frames(f"{event.name} (temporary)", event.source)
        end = clock + event.cost * _MICROSECONDS
        address = self._place(nbytes)
        return [
            _entry(action, address, nbytes, frames, clock if action == "alloc" else end)
            for action in ("alloc", *_FREE)
        ]

    def _entry(self, action: str, number: int, clock: float) -> dict[str, Any]:
        block = self._blocks[number]
        return _entry(action, self._addresses[number], self._nbytes(block), self._frames(block), clock)

    def _frames(self, block: Block) -> list[dict[str, Any]]:
        name = self._report.storages[block.storage].name
        if block.made_at < 0:
            return _frames(name, "")
        event = self._report.events[block.made_at]
        return _frames(f"{event.name}: {name}" if event.name != name else name, event.source)


def _entry(
    action: str, address: int, nbytes: int, frames: list[dict[str, Any]], clock: float
) -> dict[str, Any]:
    return {
        "action": action,
        "addr": address,
        "size": nbytes,
        "stream": 0,
        "time_us": round(clock),
        "frames": frames,
    }


def _frames(name: str, source: str) -> list[dict[str, Any]]:
    """The operator, and the user's line below it."""
    place, _, code = source.partition(" in ")
    filename, _, line = place.rpartition(":")
    own = [{"filename": "dtr_fx", "line": 0, "name": name}]
    return own + ([{"filename": filename, "line": int(line), "name": code}] if line.isdecimal() else [])
