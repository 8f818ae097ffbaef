"""A tier that values are moved to, and the speed of one.  No torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dtr_fx.units import format_seconds

_PAGE = 4096  # bytes of a file that are copied fastest


@dataclass(frozen=True)
class Bandwidth:
    """The speed of copies to a tier and back, in bytes per second each way; ``latency`` is seconds per copy.

    ``source`` tells where the figures are from.

    >>> link = Bandwidth(out=4e9, back=2e9, latency=1e-5, source="given")
    >>> link.seconds_out(4_000_000), link.seconds_back(4_000_000)
    (0.00101, 0.00201)
    """

    out: float
    back: float
    latency: float = 0.0
    source: str = ""

    def __str__(self) -> str:
        return (
            f"{self.out / 1e9:.3g} GB/s out, {self.back / 1e9:.3g} GB/s back, "
            f"{format_seconds(self.latency)} each ({self.source})"
        )

    def seconds_out(self, nbytes: int) -> float:
        """Seconds of one copy to the tier, alone."""
        return self.latency + nbytes / self.out

    def seconds_back(self, nbytes: int) -> float:
        """Seconds of one copy back, alone."""
        return self.latency + nbytes / self.back


@dataclass(frozen=True)
class Tier:
    """Host memory, or a file in a ``folder``, of at most ``limit`` bytes (None: of any size).

    ``speed`` is None if it is to be measured.

    ``str(tier)`` is a text that ``tier_of`` reads again, in another process, too.

    >>> str(Tier("disk", "/tmp", limit=1024))
    '/tmp:1024B'
    """

    kind: Literal["host", "disk"]
    folder: str = ""
    limit: int | None = None
    speed: Bandwidth | None = None

    def __str__(self) -> str:
        place = self.folder or self.kind
        return place if self.limit is None else f"{place}:{self.limit}B"

    def taken_by(self, nbytes: int) -> int:
        """The bytes that a tensor of ``nbytes`` takes: PyTorch pins powers of two, a file has whole pages.

        >>> Tier("host").taken_by(1000), Tier("disk", "/tmp").taken_by(5000)
        (1024, 8192)
        """
        return 1 << max(0, nbytes - 1).bit_length() if self.kind == "host" else -(-nbytes // _PAGE) * _PAGE
