"""The speed of a tier: measured with a few copies out and back, once for a machine and a place."""

from __future__ import annotations

import functools
import json
import logging
import math
import platform
import re
import statistics
import time
from dataclasses import replace
from pathlib import Path

import torch

from dtr_fx.costs.files import cache_folder, replace_file
from dtr_fx.errors import OffloadError, OptionError
from dtr_fx.tiers.operators import make_store
from dtr_fx.tiers.pinned import check_device
from dtr_fx.tiers.store import Store
from dtr_fx.tiers.tier import Bandwidth, Tier
from dtr_fx.torch_private import disable_current_modes
from dtr_fx.units import format_bytes

log = logging.getLogger(__name__)

_SMALL, _LARGE = 4096, 8 * 2**20  # bytes
_SECONDS = {_SMALL: 0.05, _LARGE: 0.2}
_FEWEST = 3  # copies of a size, of which the first counts not


def with_speed(tier: Tier, device: torch.device) -> Tier:
    """The tier with its speed, which is measured where it is not given; OptionError if it has no use here."""
    check_device(tier, device)
    return replace(tier, speed=tier.speed or measured_bandwidth(tier, device))


def measured_bandwidth(tier: Tier, device: torch.device) -> Bandwidth:
    """The speed of copies from the device to the tier and back, alone on a machine that does nothing else.

    What was measured before is in the ``cache_folder``.  Of a disk it is what the system's cache of files
    takes, which is faster than the disk: where more is moved than that holds, give the figures.
    OptionError if the device's tensors cannot be moved there, or a copy fails.
    """
    check_device(tier, device)
    return _known(Tier(tier.kind, tier.folder), device, cache_folder())


@functools.lru_cache
def _known(tier: Tier, device: torch.device, folder: Path | None) -> Bandwidth:
    file = None if folder is None else folder / _file_name(tier, device)
    if file is not None and (found := _read(file)):
        return found
    bandwidth = _measure(tier, device)
    log.info("%s: %s", tier, bandwidth)
    if file is not None:
        content = {"out": bandwidth.out, "back": bandwidth.back, "latency": bandwidth.latency}
        try:
            replace_file(file, json.dumps(content).encode())
        except OSError as error:
            log.warning("the speed of %s cannot be kept in %s: %s", tier, file, error.strerror)
    return bandwidth


def _file_name(tier: Tier, device: torch.device) -> str:
    place = [torch.cuda.get_device_name(device)] if device.type == "cuda" else []
    if tier.kind == "disk":
        place.append(tier.folder)
    return re.sub(r"[^\w.+]+", "-", "-".join(["bandwidth", tier.kind, platform.node(), *place])) + ".json"


def _read(file: Path) -> Bandwidth | None:
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        out, back, latency = (float(content[name]) for name in ("out", "back", "latency"))
        if all(0 < figure < math.inf for figure in (out, back, latency)):
            return Bandwidth(out, back, latency, "measured")
        log.warning("%s is ignored, the tier is measured anew: it has %s", file, content)
    except FileNotFoundError:
        pass
    except (OSError, ValueError, TypeError, KeyError) as error:
        log.warning("%s is ignored, the tier is measured anew: %s", file, error)
    return None


def _measure(tier: Tier, device: torch.device) -> Bandwidth:
    store = make_store(tier)
    try:
        with disable_current_modes():  # of a compiler that traces a graph
            small_out, small_back = _seconds(store, _SMALL, device)
            out, back = _seconds(store, _LARGE, device)
    except OffloadError as error:
        raise OptionError(f"a trial of {format_bytes(_LARGE)} failed: {error}") from None
    finally:
        store.close()
    latency = (small_out + small_back) / 2
    out, back = (max(seconds - latency, seconds / 10) for seconds in (out, back))
    return Bandwidth(_LARGE / out, _LARGE / back, latency, "measured")


def _seconds(store: Store, nbytes: int, device: torch.device) -> tuple[float, float]:
    """Seconds of a copy out and of one back; the lower quartiles, since other work only makes them longer."""
    tensor = torch.zeros(nbytes, dtype=torch.uint8, device=device)
    rounds: list[tuple[float, float]] = []
    ends = time.perf_counter() + _SECONDS[nbytes]
    while len(rounds) < _FEWEST or time.perf_counter() < ends:
        started = _now(device)
        slot = store.offload(tensor)
        store.wait_offload(slot)
        between = _now(device)
        again = torch.empty_like(tensor)
        store.reload(slot, again)
        store.wait_reload(slot, again)
        rounds.append((between - started, _now(device) - between))
        del slot, again
    out, back = zip(*rounds[1:])
    return statistics.quantiles(out)[0], statistics.quantiles(back)[0]


def _now(device: torch.device) -> float:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
    return time.perf_counter()
