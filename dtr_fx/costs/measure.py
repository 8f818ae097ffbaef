"""The peak memory that a call really reaches, read from the allocator, and the memory that is free.

A plan says what a step should need. This module says what it did need, so that tests, examples and
users can hold one against the other.
"""

from __future__ import annotations

import contextlib
import gc
import os
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from dtr_fx.torch_private import EventType, profile_tree, pytree

__all__ = ["cpu_peaks", "free_memory", "measure_peak"]

_REGION = "dtr_fx.costs.measure"
_MEMINFO = Path("/proc/meminfo")


def measure_peak(
    fn: Callable[..., Any], *args: Any, device: torch.device | str | None = None, **kwargs: Any
) -> int:
    """Call ``fn(*args, **kwargs)`` once and return the peak of its memory, in bytes.

    The peak counts from what was allocated when the call started. It covers everything that goes through
    the allocator of PyTorch: results, saved activations, gradients, and the temporaries inside kernels that
    no graph shows.

    Parameters
    ----------
    fn
        What to measure. Its result is discarded after the measurement.
    *args, **kwargs
        Passed to ``fn``.
    device
        Whose memory is counted: a CPU or CUDA device. The default is the device of the first tensor among
        the arguments, or the CPU if there is none: when ``fn`` takes no tensor and works on a GPU, name it.

    Returns
    -------
    int
        Bytes above the start. Never negative.

    Raises
    ------
    ValueError
        If the device is neither a CPU nor a CUDA device.
    RuntimeError
        On a CPU, if a profiler is already running in this thread.

    Notes
    -----
    Garbage is collected first, so that cycles left by earlier work do not die during the call.

    On a CPU, the bytes are those asked of the allocator, exact to the byte, as a profiler sees them. The
    allocator reports nothing about blocks that were allocated before the start: if ``fn`` frees one (a
    gradient that it sets to None, say), the bytes still count as allocated, and the figure is an upper bound.
    It does not see what other libraries allocate for themselves (oneDNN, BLAS), nor threads that ``fn``
    starts itself; backward passes are seen, in whichever thread autograd runs them.

    On a CUDA device, the bytes are those of ``torch.cuda.max_memory_allocated``: every block is rounded up to
    512 bytes, blocks freed count negative whenever they were allocated, and the peak statistics of the device
    are reset.

    Examples
    --------
    One MiB for ``2 * x`` and one for its square; the former is still alive when the latter is made.

    >>> import torch
    >>> from dtr_fx.costs.measure import measure_peak
    >>> x = torch.ones(512, 512)
    >>> measure_peak(lambda x: (2 * x).square(), x)
    2097152
    """
    chosen = torch.device(device) if device is not None else _device_of(pytree.tree_leaves((args, kwargs)))
    if chosen.type not in _MEASURES:
        raise ValueError(f"cannot measure memory on {chosen.type!r}: expected a CPU or CUDA device")
    gc.collect()
    return _MEASURES[chosen.type](lambda: fn(*args, **kwargs), chosen)


def _device_of(values: Iterable[Any]) -> torch.device:
    return next((value.device for value in values if isinstance(value, torch.Tensor)), torch.device("cpu"))


def _cuda_peak(call: Callable[[], Any], device: torch.device) -> int:
    torch.cuda.synchronize(device)
    start = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    call()
    torch.cuda.synchronize(device)
    return max(0, torch.cuda.max_memory_allocated(device) - start)


def _cpu_peak(call: Callable[[], Any], device: torch.device) -> int:
    return cpu_peaks([call])[0]


def cpu_peaks(calls: Iterable[Callable[[], Any]]) -> list[int]:
    """Peak of each call in bytes, as ``measure_peak`` counts them, under one profile.

    What happens between the calls is not counted, so ``calls`` may be a generator that makes the inputs of
    one call when the one before is over. Starting a profile costs milliseconds, a call in it next to none.
    """
    with (
        _quiet_profiler(),
        torch.profiler.profile(
            activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
        ) as profiler,
    ):
        for call in calls:
            with torch.profiler.record_function(_REGION):
                call()
            del call  # and its inputs, before the generator makes the next
    return [_peak(events) for events in _cpu_memory_events(profiler)]


_Measure = Callable[[Callable[[], Any], torch.device], int]
_MEASURES: dict[str, _Measure] = {"cpu": _cpu_peak, "cuda": _cuda_peak}


class _MemoryEvent(NamedTuple):
    """One block allocated (``nbytes`` positive) or freed (negative) at an address."""

    address: int
    nbytes: int


def _peak(events: Iterable[_MemoryEvent]) -> int:
    """Maximum of the bytes in blocks that the events show being allocated.

    The allocator's table of sizes outlives a profile: the free of a block that was allocated outside of any
    profile is silent, unless an earlier profile saw another block at the same address, whose size it then
    reports. So blocks are followed by address, and a free that has no allocation among the events is skipped.
    """
    live: dict[int, int] = {}
    now = peak = 0
    for event in events:
        now -= live.pop(event.address, 0)
        if event.nbytes > 0:
            live[event.address] = event.nbytes
            now += event.nbytes
            peak = max(peak, now)
    return peak


def _cpu_memory_events(profiler: torch.profiler.profile) -> list[list[_MemoryEvent]]:
    """The CPU allocator's events in time order, from every profiled thread, for each ``_REGION`` in turn.

    ``profiler.events()`` does not do: it folds the events into the operators that caused them and so loses
    their order. The event tree keeps address, size and time.
    """
    regions: list[tuple[int, int]] = []
    found: list[tuple[int, _MemoryEvent]] = []
    for event in _walk(profile_tree(profiler)):
        if event.name == _REGION:
            regions.append((event.start_time_ns, event.end_time_ns))
        elif event.tag == EventType.Allocation and event.extra_fields.device.type == "cpu":
            block = _MemoryEvent(event.extra_fields.ptr, event.extra_fields.alloc_size)
            found.append((event.start_time_ns, block))
    found.sort(key=lambda item: item[0])
    times = [time for time, _ in found]
    return [
        [block for _, block in found[bisect_left(times, start) : bisect_right(times, end)]]
        for start, end in sorted(regions)
    ]


def _walk(roots: Iterable[Any]) -> Iterator[Any]:
    # A stack, not recursion: nested modules and backward calls make deep trees.
    stack = list(roots)
    while stack:
        event = stack.pop()
        yield event
        stack.extend(event.children)


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

    On a CUDA device that includes what the caching allocator holds and does not use, and the limit that
    ``torch.cuda.set_per_process_memory_fraction`` has set counts. On a CPU it is what
    Linux says can be had without swapping; on other systems the pages that are free.
    """
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        reserved = torch.cuda.memory_reserved(device)
        number = torch.cuda.current_device() if device.index is None else device.index
        allowed = int(torch.cuda.get_per_process_memory_fraction(number) * total) - reserved
        return min(free, allowed) + reserved - torch.cuda.memory_allocated(device)
    return _free_on_linux() or _free_pages() if device.type == "cpu" else None


def _free_on_linux() -> int | None:
    try:
        with _MEMINFO.open() as lines:
            sizes = dict(line.split(":", 1) for line in lines)
        return int(sizes["MemAvailable"].split()[0]) * 1024
    except (OSError, KeyError):
        return None


def _free_pages() -> int | None:
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, AttributeError):
        return None
