"""Bytes, shares and seconds: how they are shown, and how bytes and shares are read."""

from __future__ import annotations

import re
from decimal import Decimal

_STEPS = {"K": 1, "M": 2, "G": 3, "T": 4}
_UNITS = (
    {"B": 1, "kB": 1000}
    | {f"{prefix}B": 1000**step for prefix, step in _STEPS.items()}
    | {f"{prefix}iB": 1024**step for prefix, step in _STEPS.items()}
)
_AMOUNT = re.compile(r"(?P<number>[+-]?(\d+\.?\d*|\.\d+))\s*(?P<unit>%|[a-z]*)", re.IGNORECASE)


def format_bytes(nbytes: int) -> str:
    """Bytes in binary units, to three digits.

    >>> format_bytes(1000), format_bytes(3 * 2**19), format_bytes(2**30)
    ('1000 B', '1.50 MiB', '1.00 GiB')
    """
    size, unit = float(abs(nbytes)), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if size < 1023.5:  # 1023.5 would be shown as 1024
            break
        size, unit = size / 1024, larger
    number = f"{size:.0f}" if unit == "B" else _three_digits(size)
    return f"{'-' if nbytes < 0 else ''}{number} {unit}"


def format_count(number: int, noun: str) -> str:
    """A number of things: ``1 drop``, ``2 drops``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def format_percent(fraction: float) -> str:
    """A share to a tenth of a percent; what is not nothing is never shown as nothing.

    >>> format_percent(0.083), format_percent(0.0001), format_percent(0.0)
    ('8.3%', '<0.1%', '0.0%')
    """
    return "<0.1%" if 0 < fraction < 0.0005 else f"{100 * fraction:.1f}%"


def format_source(source: str) -> str:
    """A user's line behind what comes from it; nothing where none is known."""
    return f" ({source})" if source else ""


def format_seconds(seconds: float) -> str:
    """Seconds, to three digits.

    >>> format_seconds(0.0123), format_seconds(75.0)
    ('12.3 ms', '75.0 s')
    """
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= 0.9995 * scale:
            return f"{_three_digits(seconds / scale)} {unit}"
    return f"{_three_digits(seconds * 1e9)} ns"


def parse_bytes(text: str) -> int:
    """Whole bytes in ``"8GiB"`` (binary), ``"8GB"`` (decimal) or ``"123 B"``; ``ValueError`` for others.

    >>> parse_bytes("8GiB"), parse_bytes("1.5 KB")
    (8589934592, 1500)
    """
    amount = _amount(text)
    unit = amount["unit"]
    if unit in _UNITS:
        return int(Decimal(amount["number"]) * _UNITS[unit])
    size = amount["number"] + unit[:1].upper()
    meant = f", did you mean '{size}iB' (binary) or '{size}B' (decimal)" if size[-1] in _STEPS else ""
    raise ValueError(f"{unit!r} is not a unit of bytes{meant}")


def parse_percent(text: str) -> float:
    """The fraction that ``"60%"`` stands for; ``ValueError`` for anything but a number and ``%``.

    >>> parse_percent("60%")
    0.6
    """
    amount = _amount(text)
    if amount["unit"] != "%":
        raise ValueError(f"{text!r} is not a number followed by '%'")
    return float(Decimal(amount["number"]) / 100)


def _amount(text: str) -> re.Match[str]:
    amount = _AMOUNT.fullmatch(text.strip())
    if amount is None:
        raise ValueError(f"{text!r} is not a number with a unit")
    return amount


def _three_digits(value: float) -> str:
    decimals = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{decimals}f}"
