"""The paper's own experiments, on the same runtime and without torch."""

from .linear import LinearRun, run_linear
from .log import LogError, read_log
from .replay import Replay, replay
from .schedule import Schedule
from .sweep import Sweep

__all__ = ["LinearRun", "LogError", "Replay", "Schedule", "Sweep", "read_log", "replay", "run_linear"]
