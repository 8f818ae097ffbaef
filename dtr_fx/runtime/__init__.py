"""The paper's runtime: storages, operators, heuristics and eviction, without torch."""

from dtr_fx.runtime.collector import collector_paused
from dtr_fx.runtime.events import Event, trace
from dtr_fx.runtime.future import next_uses
from dtr_fx.runtime.graph import Operator, Storage, Tensor
from dtr_fx.runtime.heuristics import HEURISTICS, Heuristic, parameterized, random, resolve
from dtr_fx.runtime.runtime import Deallocation, Order, OutOfBudget, RunFailed, Runtime, Thrash

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
