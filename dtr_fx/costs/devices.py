"""What devices can do, by name: figures of data sheets, so that a graph can be planned for an absent one.

Memory is what PyTorch finds on such a card, the "total capacity" that its errors tell of: the least that was
seen, rounded down.  Drivers and error correction take a part of what the data sheet has.  Arithmetic is
dense, without sparsity.
"""

from __future__ import annotations

import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dtr_fx.costs.figures import CPU, Device
from dtr_fx.errors import OptionError, did_you_mean
from dtr_fx.tiers.tier import Bandwidth

_PCIE3, _PCIE4, _PCIE5 = 16e9, 32e9, 64e9  # 16 lanes, one direction
_LATENCY = 1e-5  # seconds of a transfer, beside its bytes


def _card(
    memory: float, bandwidth: float, flops: tuple[float, float, float], transfer: float, source: str
) -> Device:
    """A card of so many GiB, TB/s, and TFLOP/s in 2, 4 and 8 bytes per element."""
    by_width = {width: each * 1e12 for width, each in zip((2, 4, 8), flops)}
    return Device(
        by_width, bandwidth * 1e12, memory=memory * 2**30, transfer=_link(transfer, source), source=source
    )


def _link(speed: float, source: str) -> Bandwidth:
    return Bandwidth(speed, speed, _LATENCY, source)


def _old(card: Device) -> Device:
    return replace(card, has_flash=False)


# The figures in 4 bytes are without TF32, as PyTorch multiplies by default.
CARDS = {
    "h200": _card(139.7, 4.8, (989, 67, 34), _PCIE5, "data sheet of NVIDIA H200 SXM"),
    "h100": _card(79.1, 3.35, (989, 67, 34), _PCIE5, "data sheet of NVIDIA H100 SXM"),
    "a100-80": _card(79.1, 2.039, (312, 19.5, 9.7), _PCIE4, "data sheet of NVIDIA A100 80GB SXM"),
    "a100-40": _card(39.3, 1.555, (312, 19.5, 9.7), _PCIE4, "data sheet of NVIDIA A100 40GB SXM"),
    "l40s": _card(44.3, 0.864, (362, 91.6, 1.43), _PCIE4, "data sheet of NVIDIA L40S, 64 bits by its chip"),
    "l4": _card(22.0, 0.3, (121, 30.3, 0.47), _PCIE4, "data sheet of NVIDIA L4, 64 bits by its chip"),
    "v100": _old(_card(15.7, 0.9, (125, 15.7, 7.8), _PCIE3, "data sheet of NVIDIA V100 16GB SXM2")),
    "t4": _old(_card(14.7, 0.32, (65, 8.1, 0.25), _PCIE3, "data sheet of NVIDIA T4, 64 bits by its chip")),
    "rtx4090": _card(23.5, 1.008, (165.2, 82.6, 1.29), _PCIE4, "NVIDIA's Ada whitepaper, GeForce RTX 4090"),
    "rtx3090": _card(23.5, 0.936, (71, 35.6, 0.56), _PCIE4, "NVIDIA's GA102 whitepaper, GeForce RTX 3090"),
    "mi300x": _card(191.6, 5.3, (1307.4, 163.4, 81.7), _PCIE5, "data sheet of AMD Instinct MI300X"),
}
_UNKNOWN_CARD = Device({2: 100e12, 4: 15e12, 8: 7e12}, 1e12, source="an estimate")
_WIDTHS = {torch.float16: 2, torch.bfloat16: 2, torch.float32: 4, torch.float64: 8}


def device_figures(device: torch.device) -> Device:
    """The figures of an accelerator that is here, by its name."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" and torch.cuda.is_available() else ""
    plain = name.lower().replace(" ", "")
    found = (card for key, card in CARDS.items() if all(part in plain for part in key.split("-")))
    return next(found, _UNKNOWN_CARD)


def named_device(name: str) -> Device:
    """The figures of a device by its name, or of a TOML file; OptionError for neither."""
    if name.endswith(".toml"):
        return _from_file(Path(name))
    if name == "cpu":
        return replace(CPU, memory=os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    if name not in CARDS:
        known = ", ".join(("cpu", *CARDS))
        raise OptionError(f"no device {name!r}: write one of {known}, or a file, as in card.toml")
    return CARDS[name]


def _from_file(path: Path) -> Device:
    try:
        import tomllib  # since Python 3.11
    except ImportError:
        raise OptionError(f"{path}: files of devices need Python 3.11; name a device that is known") from None
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise OptionError(f"{path} cannot be read: {error}") from None
    return _of_table(given, path)


def _of_table(given: dict[str, Any], path: Path) -> Device:
    numbers = ("memory", "bandwidth", "launch", "transfer")
    for name in given:
        if name not in (*numbers, "flops"):
            raise OptionError(f"{path}: unknown {name!r}{did_you_mean(name, (*numbers, 'flops'))}")
    speeds = given.pop("flops", None)
    speeds = speeds if isinstance(speeds, dict) else {}
    widths = {str(kind).removeprefix("torch."): width for kind, width in _WIDTHS.items()}
    is_whole = (
        {"memory", "bandwidth"} <= given.keys() and "float32" in speeds and speeds.keys() <= widths.keys()
    )
    values = (*given.values(), *speeds.values())
    if not is_whole or not all(type(value) in (int, float) and 0 < value < math.inf for value in values):
        raise OptionError(
            f"{path}: write memory (bytes), bandwidth (bytes/s), and a table flops (FLOP/s) of "
            f"{', '.join(widths)}, float32 at least; launch (s) and transfer (bytes/s) if known; all above 0"
        )
    if "transfer" in given:
        given["transfer"] = _link(given["transfer"], str(path))
    return Device({widths[kind]: speed for kind, speed in speeds.items()}, source=str(path), **given)
