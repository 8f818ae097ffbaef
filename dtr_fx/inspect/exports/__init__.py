"""A report in other tools' forms: networkx's graphs, Chrome's traces, PyTorch's memory snapshots."""

from dtr_fx.inspect.exports.chrome import to_chrome_trace
from dtr_fx.inspect.exports.graph import to_networkx
from dtr_fx.inspect.exports.memory import to_memory_snapshot

__all__ = ["to_chrome_trace", "to_memory_snapshot", "to_networkx"]
