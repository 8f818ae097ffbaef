"""The paper's runtime: storages, operators, heuristics and eviction, without torch."""

from .collector import collector_paused
from .events import Event, trace
from .future import next_uses
from .graph import Operator, Storage, Tensor
from .heuristics import HEURISTICS, Heuristic, parameterized, random, resolve
from .runtime import Deallocation, Order, OutOfBudget, RunFailed, Runtime, Thrash

__all__ = [
    "HEURISTICS",
    "Deallocation",
    "Event",
    "Heuristic",
    "Operator",
    "Order",
    "OutOfBudget",
    "RunFailed",
    "Runtime",
    "Storage",
    "Tensor",
    "Thrash",
    "collector_paused",
    "next_uses",
    "parameterized",
    "random",
    "resolve",
    "trace",
]
