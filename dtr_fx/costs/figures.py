"""What a device can do, in figures, and those of a CPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dtr_fx.tiers.tier import Bandwidth

# What generated code computes on a CPU (see ``kernels``).
FUNCTION = "function"  # vectorized
SCALAR = "scalar"  # one element after the other


@dataclass(frozen=True)
class Device:
    """FLOP/s by bytes per element, bytes/s of memory, seconds of launching, bytes of memory.

    ``transfer`` is the speed of copies to the host and back; cards older than Ampere have no flash attention.
    ``arithmetic`` is seconds per element of what
    Inductor generates code for, by kind, where that is slow.  The launch and the latency of
    a transfer are our own estimates.
    """

    flops: Mapping[int, float]
    bandwidth: float
    launch: float = 4e-6
    arithmetic: Mapping[str, float] = field(default_factory=dict)
    memory: float = 0
    transfer: Bandwidth | None = None
    has_flash: bool = True
    source: str = ""


CPU = Device(
    {4: 2e11, 2: 1e11, 8: 1e11}, 3e10, 2e-6, {FUNCTION: 1.5e-10, SCALAR: 1.2e-9}, source="an estimate"
)
