"""A report in other tools' forms: networkx's graphs, Chrome's traces, PyTorch's memory snapshots."""

from .chrome import to_chrome_trace
from .graph import to_networkx
from .memory import to_memory_snapshot

__all__ = ["to_chrome_trace", "to_memory_snapshot", "to_networkx"]
