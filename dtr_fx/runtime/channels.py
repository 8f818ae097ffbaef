"""Transfers beside the compute clock: out of the device's memory and back, one queue for each direction.

The model of time: operators run one after the other.  A copy out starts when what it copies is there and the
queue is free, and takes the latency and its bytes at the bandwidth; the bytes are held until compute has
waited for its end.  A copy back holds its bytes from where it is issued, starts there, or when the queue is
free and the copy out has ended, and the first operator that reads them waits for its end.
"""

from __future__ import annotations

from typing import NamedTuple


class Link(NamedTuple):
    """The way out and back: bytes per unit of cost (per second in FX graphs), and the latency of a copy."""

    out: float
    back: float
    latency: float = 0.0

    def time_out(self, nbytes: int) -> float:
        """What one copy out of so many bytes takes."""
        return self.latency + nbytes / self.out

    def time_back(self, nbytes: int) -> float:
        """What one copy back takes."""
        return self.latency + nbytes / self.back


class Channels:
    """The two queues of a link: each copy starts when the one before it has ended.

    >>> channels = Channels(Link(out=2.0, back=4.0))
    >>> channels.move_out(0.0, 8), channels.move_out(1.0, 8), channels.bring_back(9.0, 8, since=8.0)
    (4.0, 8.0, 11.0)
    """

    def __init__(self, link: Link) -> None:
        self.link = link
        self._out_ends = self._back_ends = 0.0

    def move_out(self, now: float, nbytes: int) -> float:
        """When a copy out that is asked for ``now`` ends."""
        self._out_ends = max(now, self._out_ends) + self.link.time_out(nbytes)
        return self._out_ends

    def bring_back(self, now: float, nbytes: int, since: float) -> float:
        """When a copy back ends of what is outside ``since`` then."""
        self._back_ends = max(now, since, self._back_ends) + self.link.time_back(nbytes)
        return self._back_ends
