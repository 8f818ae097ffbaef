"""The paper's runtime, without torch: programs, plans, storages, operators, heuristics and eviction."""

import importlib
from typing import TYPE_CHECKING, Any

from .collector import collector_paused as collector_paused
from .failures import OutOfBudget as OutOfBudget
from .failures import RunFailed as RunFailed
from .failures import Thrash as Thrash
from .heuristics import HEURISTICS as HEURISTICS
from .heuristics import Heuristic as Heuristic
from .heuristics import parameterized as parameterized
from .heuristics import random as random
from .heuristics import resolve as resolve
from .plan import Plan as Plan
from .program import Program as Program
from .steps import Step as Step
from .steps import trace as trace

if TYPE_CHECKING:
    from .graph import Operator as Operator
    from .graph import Storage as Storage
    from .graph import Tensor as Tensor
    from .memory import Deallocation as Deallocation
    from .memory import Order as Order
    from .runtime import Runtime as Runtime

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
