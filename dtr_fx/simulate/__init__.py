"""The paper's own experiments, on the same runtime: operator logs and synthetic networks, no model runs."""

from . import networks
from .adversary import AdversaryRun, run_adversary
from .linear import LinearRun, run_linear
from .log import LogError, read_log
from .replay import Replay, replay
from .schedule import Schedule
from .sweep import Sweep

__all__ = [
    "AdversaryRun",
    "LinearRun",
    "LogError",
    "Replay",
    "Schedule",
    "Sweep",
    "networks",
    "read_log",
    "replay",
    "run_adversary",
    "run_linear",
]
