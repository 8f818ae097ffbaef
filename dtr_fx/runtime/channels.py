"""Transfers beside the compute clock: out of the device's memory and back, one queue for each direction.

The model of time: operators run one after the other.  A copy out starts when what it copies is there and the
queue is free, and takes the latency and its bytes at the bandwidth; the bytes are held until compute has
waited for its end.  A copy back holds its bytes from where it is issued, starts there, or when the queue is
free and the copy out has ended, and the first operator that reads them waits for its end.
"""

from __future__ import annotations

from dtr_fx.tiers.tier import Bandwidth


class Channels:
    """The two queues: each copy starts when the one before it has ended, at ``out_ends`` or ``back_ends``.

    >>> channels = Channels(Bandwidth(out=2.0, back=4.0))
    >>> channels.move_out(0.0, 8), channels.move_out(1.0, 8), channels.bring_back(9.0, 8, since=8.0)
    (4.0, 8.0, 11.0)
    """

    def __init__(self, bandwidth: Bandwidth) -> None:
        self.bandwidth = bandwidth
        self.out_ends = self.back_ends = 0.0

    def move_out(self, now: float, nbytes: int) -> float:
        """When a copy out that is asked for ``now`` ends."""
        self.out_ends = max(now, self.out_ends) + self.bandwidth.seconds_out(nbytes)
        return self.out_ends

    def bring_back(self, now: float, nbytes: int, since: float) -> float:
        """When a copy back ends of what is outside ``since`` then."""
        self.back_ends = max(now, since, self.back_ends) + self.bandwidth.seconds_back(nbytes)
        return self.back_ends
