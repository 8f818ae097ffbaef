"""The peak memory that a call really reaches, read from the allocator, and the memory that is free."""

from __future__ import annotations

import contextlib
import gc
import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch

from dtr_fx.torch_private import EventType, profile_tree, pytree

_REGION = "dtr_fx.costs.measure"
_MEMINFO = Path("/proc/meminfo")


def measure_peak(
    fn: Callable[..., Any], *args: Any, device: torch.device | str | None = None, **kwargs: Any
) -> int:
    """Call ``fn(*args, **kwargs)`` once and return the peak of its memory, in bytes above that at the start.

    It covers everything that goes through the allocator of PyTorch: results, saved activations, gradients,
    and the temporaries inside kernels that no graph shows. Garbage is collected first.

    On a CPU, the bytes are those asked of the allocator, exact to the byte, as a profiler sees them. It says
    nothing of blocks that were allocated before the start: if ``fn`` frees one (a gradient that it sets to
    None, say), the bytes still count as allocated, and the figure is an upper bound. It does not see what
    other libraries allocate for themselves (oneDNN, BLAS), nor threads that ``fn`` starts itself; backward
    passes are seen, in whichever thread autograd runs them.

    On a CUDA device, the bytes are those of ``torch.cuda.max_memory_allocated``: every block is rounded up to
    512 bytes, blocks freed count negative whenever they were allocated, and the peak statistics of the device
    are reset.

    Parameters
    ----------
    fn, *args, **kwargs
        What to measure. Its result is discarded after the measurement.
    device
        Whose memory is counted: a CPU or CUDA device. The default is the device of the first tensor among
        the arguments, or the CPU if there is none: when ``fn`` takes no tensor and works on a GPU, name it.

    Raises
    ------
    ValueError
        If the device is neither a CPU nor a CUDA device.
    RuntimeError
        On a CPU, if a profiler is already running in this thread.

    Examples
    --------
    One MiB for ``2 * x`` and one for its square; the former is still alive when the latter is made.

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
    if device.type == "cuda":
        return _cuda_peak(lambda: fn(*args, **kwargs), device)
    return cpu_peaks([lambda: fn(*args, **kwargs)])[0]


def _cuda_peak(call: Callable[[], Any], device: torch.device) -> int:
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
    cpu = torch.profiler.ProfilerActivity.CPU
    with _quiet_profiler(), torch.profiler.profile(activities=[cpu], profile_memory=True) as profiler:
        for call in calls:
            with torch.profiler.record_function(_REGION):
                call()
            del call  # and its inputs, before the generator makes the next
    return [_peak(events) for events in _cpu_memory_events(profiler)]


def _peak(events: Iterable[tuple[int, int, int]]) -> int:
    """Maximum of the bytes in blocks that the events (time, address, bytes) show being allocated.

    The allocator's table of sizes outlives a profile: the free of a block that was allocated outside of any
    profile is silent, unless an earlier profile saw another block at the same address, whose size it then
    reports. So blocks are followed by address, and a free that has no allocation among the events is skipped.
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
    """Time, address and bytes (negative: freed) of the CPU allocator's events, for each ``_REGION`` in turn.

    ``profiler.events()`` does not do: it folds the events into the operators that caused them and so loses
    their order. The event tree keeps address, size and time, from every profiled thread.
    """
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


@contextlib.contextmanager
def _quiet_profiler() -> Iterator[None]:
    """Keep the profiler's start and stop lines (torch 2.13) off stderr, unless the user has set their level.

    The variable is read when the first profile of a process starts. Severities end at 5.
    """
    if "KINETO_LOG_LEVEL" in os.environ:
        yield
        return
    os.environ["KINETO_LOG_LEVEL"] = "6"
    try:
        yield
    finally:
        os.environ.pop("KINETO_LOG_LEVEL", None)


def free_memory(device: torch.device) -> int | None:
    """Bytes that this process can have on the device by now; None where neither device nor system tells.

    On a CUDA device that includes what the caching allocator holds and does not use, and the limit of
    ``torch.cuda.set_per_process_memory_fraction`` counts. On a CPU it is what Linux says can be had without
    swapping; on other systems the pages that are free.
    """
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        reserved = torch.cuda.memory_reserved(device)
        number = torch.cuda.current_device() if device.index is None else device.index
        allowed = int(torch.cuda.get_per_process_memory_fraction(number) * total) - reserved
        return min(free, allowed) + reserved - torch.cuda.memory_allocated(device)
    if device.type != "cpu":
        return None
    with contextlib.suppress(OSError, KeyError), _MEMINFO.open() as lines:
        sizes = dict(line.split(":", 1) for line in lines)
        return int(sizes["MemAvailable"].split()[0]) * 1024
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return None
