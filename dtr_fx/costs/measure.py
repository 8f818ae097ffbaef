"""The peak memory that a call really reaches, read from the allocator."""

from __future__ import annotations

import functools
import gc
import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Any

import torch

from dtr_fx.torch_private import EventType, profile_tree, pytree

_REGION = "dtr_fx.costs.measure"


def measure_peak(
    fn: Callable[..., Any], *args: Any, device: torch.device | str | None = None, **kwargs: Any
) -> int:
    """Call ``fn(*args, **kwargs)`` once and return the peak of its memory, in bytes above that at the start.

    It covers everything that goes through the allocator of PyTorch: results, saved activations, gradients,
    and the temporaries inside kernels that no graph shows. Garbage is collected first. ``device`` is the CPU
    or CUDA device that is meant; the default is that of the first tensor among the arguments, else the CPU.

    On a CPU, the bytes are those asked of the allocator, exact to the byte, as a profiler sees them. It says
    nothing of blocks that were allocated before the start: if ``fn`` frees one (a gradient that it sets to
    None, say), the bytes still count as allocated, and the figure is an upper bound. It does not see what
    other libraries allocate for themselves (oneDNN, BLAS), nor threads that ``fn`` starts itself; backward
    passes are seen, in whichever thread autograd runs them.

    On a CUDA device, the bytes are those of ``torch.cuda.max_memory_allocated``: every block is rounded up to
    512 bytes, blocks freed count negative whenever they were allocated, and the peak statistics of the device
    are reset.

    ``ValueError`` for another device, ``RuntimeError`` on a CPU if a profiler runs in this thread.

    One MiB for ``2 * x`` and one for its square; the former is still alive when the latter is made:

    >>> import torch
    >>> from dtr_fx.costs.measure import measure_peak
    >>> x = torch.ones(512, 512)
    >>> measure_peak(lambda x: (2 * x).square(), x)
    2097152
    """
    if device is None:
        leaves = pytree.tree_leaves((args, kwargs))
        device = next((leaf.device for leaf in leaves if isinstance(leaf, torch.Tensor)), "cpu")
    device = torch.device(device)
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"cannot measure memory on {device.type!r}: expected a CPU or CUDA device")
    gc.collect()
    call = functools.partial(fn, *args, **kwargs)
    if device.type == "cpu":
        return cpu_peaks([call])[0]
    torch.cuda.synchronize(device)
    start = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    call()
    torch.cuda.synchronize(device)
    return max(0, torch.cuda.max_memory_allocated(device) - start)


def cpu_peaks(calls: Iterable[Callable[[], Any]]) -> list[int]:
    """Peak of each call in bytes, as ``measure_peak`` counts them, under one profile.

    What happens between the calls is not counted, so ``calls`` may be a generator that makes the inputs of
    one call when the one before is over. Starting a profile costs milliseconds, a call in it next to none.
    """
    is_set = "KINETO_LOG_LEVEL" in os.environ
    cpu = torch.profiler.ProfilerActivity.CPU
    try:
        # The profiler's start and stop lines (torch 2.13) stay off stderr; severities end at 5.
        os.environ.setdefault("KINETO_LOG_LEVEL", "6")
        with torch.profiler.profile(activities=[cpu], profile_memory=True) as profiler:
            for call in calls:
                with torch.profiler.record_function(_REGION):
                    call()
                del call  # and its inputs, before the generator makes the next
    finally:
        if not is_set:
            os.environ.pop("KINETO_LOG_LEVEL", None)
    return [_peak(events) for events in _cpu_memory_events(profiler)]


def _peak(events: Iterable[tuple[int, int, int]]) -> int:
    """Maximum of the bytes in blocks that the events (time, address, bytes) show being allocated.

    What frees a block of before the profile is silent, or reports the size of an earlier one at its address:
    so blocks are followed by address, and a free without an allocation is skipped.
    """
    live: dict[int, int] = {}
    now = peak = 0
    for _, address, nbytes in events:
        now -= live.pop(address, 0)
        if nbytes > 0:
            live[address] = nbytes
            now += nbytes
            peak = max(peak, now)
    return peak


def _cpu_memory_events(profiler: torch.profiler.profile) -> list[list[tuple[int, int, int]]]:
    """Time, address and bytes (negative: freed) of the CPU allocator's events, for each region."""
    # ``profiler.events()`` folds them into the operators that caused them and so loses their order.
    regions: list[tuple[int, int]] = []
    found: list[tuple[int, int, int]] = []
    pending = list(profile_tree(profiler))  # no recursion: nested modules and backward calls make deep trees
    while pending:
        event = pending.pop()
        pending.extend(event.children)
        if event.name == _REGION:
            regions.append((event.start_time_ns, event.end_time_ns))
        elif event.tag == EventType.Allocation and event.extra_fields.device.type == "cpu":
            found.append((event.start_time_ns, event.extra_fields.ptr, event.extra_fields.alloc_size))
    time = itemgetter(0)
    found.sort(key=time)
    return [
        found[bisect_left(found, start, key=time) : bisect_right(found, end, key=time)]
        for start, end in sorted(regions)
    ]
