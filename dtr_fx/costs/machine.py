"""The memory that this process can have, and the other processes of its job."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import torch
import torch.distributed as dist

_MEMINFO = Path("/proc/meminfo")


def free_memory(device: torch.device) -> int | None:
    """Bytes that this process can have on the device by now; None where neither device nor system tells.

    On CUDA: what the caching allocator holds and does not use, too, within the limit of
    ``torch.cuda.set_per_process_memory_fraction``.  On a CPU: without swapping, and of that this rank's part.
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
        return int(sizes["MemAvailable"].split()[0]) * 1024 // _ranks_here()
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // _ranks_here()
    return None


def are_several() -> bool:
    """True if other ranks take part in this program."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def _ranks_here() -> int:
    """The processes of this job on this host; all of them, where the launcher does not tell."""
    if not (dist.is_available() and dist.is_initialized()):
        return 1
    return int(os.environ.get("LOCAL_WORLD_SIZE") or dist.get_world_size())
