"""What PyTorch's CUDA caching allocator did, by its own record, beside our rules for the same requests."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from dtr_fx.runtime.caching_allocator import Block, CachingAllocator
from dtr_fx.torch_private import cuda_snapshot, record_memory_history

Snapshot: TypeAlias = "Mapping[str, Any]"
"""As ``torch.cuda.memory._snapshot`` returns it: ``segments`` with their blocks, ``device_traces``."""

_LARGEST = 26  # the power of two of the largest request, 64 MiB
_FREE = "inactive"  # the state of a block


@dataclass(frozen=True)
class Agreement:
    """Blocks of a device at the end of a trace, and how many of them ours does not have.

    ``misplaced`` counts the requests that got another address, ``reserved`` is the device's bytes and ours.
    """

    requests: int
    misplaced: int
    blocks: int
    differing: int
    reserved: tuple[int, int]


def random_requests(seed: int, count: int) -> list[int]:
    """Requests in bytes; a negative number frees the request of that place, counted from one."""
    draw = random.Random(seed)
    steps: list[int] = []
    live: list[int] = []
    for place in range(1, count + 1):
        if live and draw.random() < 0.48:
            steps.append(-live.pop(draw.randrange(len(live))))
        else:
            live.append(place)
            steps.append(int(2 ** draw.uniform(0, _LARGEST)))
    return steps


def ask(requests: Sequence[int], device: torch.device) -> list[torch.Tensor]:
    """Make tensors of these bytes and let them go, as the requests say; those that are left."""
    live: dict[int, torch.Tensor] = {}
    for place, nbytes in enumerate(requests, 1):
        if nbytes > 0:
            live[place] = torch.empty(nbytes, dtype=torch.uint8, device=device)
        else:
            del live[-nbytes]
    return list(live.values())


def recorded(run: Callable[[], Any], device: torch.device) -> Snapshot:
    """What the device's allocator did while this ran, which should come first in its process.

    What it returns is there when the snapshot is taken.
    """
    torch.cuda.init()
    record_memory_history("all", context=None, stacks="python")
    try:
        kept = run()
        torch.cuda.synchronize(device)
        found: Snapshot = cuda_snapshot()
        del kept
    finally:
        record_memory_history(None)
    number = torch.cuda.current_device() if device.index is None else device.index
    segments = [each for each in found["segments"] if each["device"] == number]
    return {"segments": segments, "device_traces": [found["device_traces"][number]]}


def compare(snapshot: Snapshot) -> Agreement:
    """Serve the requests of a device's snapshot by our rules, with segments where the driver put them."""
    [trace], segments = snapshot["device_traces"], snapshot["segments"]
    allocator = _Placed.as_configured()
    allocator.addresses = (event["addr"] for event in trace if event["action"] == "segment_alloc")
    ours_at = _offsets(allocator, segments)
    live: dict[int, Block] = {}
    requests = misplaced = 0
    for event in trace:
        address = event.get("addr", 0)
        if event["action"] == "alloc":
            live[address] = block = allocator.malloc(event["size"])
            requests += 1
            misplaced += block.address != address - ours_at[block.pool.is_small]
        elif event["action"] == "free_completed":
            allocator.free(live.pop(address))
    theirs = {
        (
            block["address"] - ours_at[segment["segment_type"] == "small"],
            block["size"],
            block["state"] == _FREE,
        )
        for segment in segments
        for block in segment["blocks"]
    }
    blocks = (block for pool in allocator.pools for block in pool.blocks() if block.size)
    ours = {(block.address, block.size, block.is_free) for block in blocks}
    reserved = sum(segment["total_size"] for segment in segments), allocator.reserved
    return Agreement(requests, misplaced, len(theirs), len(theirs - ours), reserved)


class _Placed(CachingAllocator):
    """With segments at given addresses."""

    addresses: Iterator[int] = iter(())

    def place(self, nbytes: int) -> int:
        return next(self.addresses, 0)


def _offsets(allocator: CachingAllocator, segments: Sequence[Mapping[str, Any]]) -> dict[bool, int]:
    """By whether a pool is small: how far the device's addresses are above ours.

    A segment that grows starts at an address of the driver's; all others are at the driver's in ours, too.
    """
    found = {}
    for pool in allocator.pools:
        kind = "small" if pool.is_small else "large"
        starts = [each["address"] for each in segments if each["segment_type"] == kind]
        is_grown = allocator.expandable_segments and starts
        found[pool.is_small] = min(starts) - pool.segments[0].address if is_grown else 0
    return found


def imitated(requests: Sequence[int]) -> Snapshot:
    """A snapshot as a device would give it, by our rules, with each segment below those before it.

    It shows that a snapshot is read as it should be where there is no device, and nothing of a device.
    """
    allocator = _Placed.as_configured()
    allocator.addresses = iter(range(2**44, 0, -(2**32)))
    trace: list[dict[str, Any]] = []
    live: dict[int, Block] = {}
    for place, nbytes in enumerate(requests, 1):
        if nbytes > 0:
            before = allocator.reserved
            live[place] = block = allocator.malloc(nbytes)
            if allocator.reserved > before and not allocator.expandable_segments:
                trace.append(_event("segment_alloc", block.address, allocator.reserved - before))
            trace.append(_event("alloc", block.address, nbytes))
        else:
            block = live.pop(-nbytes)
            trace.append(_event("free_completed", block.address, block.size))
            allocator.free(block)
    segments = [_segment(first) for pool in allocator.pools for first in pool.segments if first.size]
    return {"segments": segments, "device_traces": [trace]}


def _event(action: str, address: int, size: int) -> dict[str, Any]:
    return {"action": action, "addr": address, "size": size}


def _segment(first: Block) -> dict[str, Any]:
    blocks = [
        {
            "address": block.address,
            "size": block.size,
            "state": _FREE if block.is_free else "active_allocated",
        }
        for block in first.to_the_end()
    ]
    return {
        "address": first.address,
        "total_size": sum(block["size"] for block in blocks),
        "segment_type": "small" if first.pool.is_small else "large",
        "blocks": blocks,
    }


def trace_of(case: str, count: int) -> Agreement:
    """The agreement on a trace of this process, by the settings of its environment.

    ``case`` is ``"random"``, or ``"step"``: training steps of a small transformer.  To be run in a process of
    its own, as PyTorch reads its settings once.
    """
    requests = random_requests(0, count)
    if not torch.cuda.is_available():
        return compare(imitated(requests))
    device = torch.device("cuda", torch.cuda.current_device())
    if case == "random":
        return compare(recorded(lambda: ask(requests, device), device))
    return compare(recorded(lambda: _steps(device), device))


def _steps(device: torch.device) -> object:
    """Two training steps; what is left of them."""
    from dtr_fx.lab.zoo.transformer import transformer

    model, inputs = transformer()
    model, inputs = model.to(device), tuple(tensor.to(device) for tensor in inputs)
    for _ in range(2):
        model(*inputs).backward()
        model.zero_grad(set_to_none=True)
    return model, inputs
