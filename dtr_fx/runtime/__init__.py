"""The paper's runtime, without torch: programs, plans, storages, operators, heuristics and eviction."""

import importlib
from typing import TYPE_CHECKING, Any

from .collector import collector_paused
from .failures import OutOfBudget, RunFailed, Thrash
from .heuristics import HEURISTICS, Heuristic, parameterized, random, resolve
from .plan import Plan
from .program import Program
from .steps import Step, trace

if TYPE_CHECKING:
    from .graph import Operator, Storage, Tensor
    from .memory import Deallocation, Order
    from .runtime import Runtime

__all__ = [
    "HEURISTICS",
    "Deallocation",
    "Heuristic",
    "Operator",
    "Order",
    "OutOfBudget",
    "Plan",
    "Program",
    "RunFailed",
    "Runtime",
    "Step",
    "Storage",
    "Tensor",
    "Thrash",
    "collector_paused",
    "parameterized",
    "random",
    "resolve",
    "trace",
]

# Imported when they are asked for: who finds a plan on disk runs nothing.
_HOMES = {
    "Deallocation": "memory",
    "Operator": "graph",
    "Order": "memory",
    "Runtime": "runtime",
    "Storage": "graph",
    "Tensor": "graph",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
