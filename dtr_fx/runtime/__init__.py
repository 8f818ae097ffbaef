"""The paper's runtime, without torch: programs, plans, storages, operators, heuristics and eviction."""

from .driver import collector_paused
from .failures import OutOfBudget, RunFailed, Thrash
from .graph import Operator, Storage, Tensor
from .heuristics import HEURISTICS, Heuristic, parameterized, random, resolve
from .memory import Deallocation, Order
from .plan import Plan
from .program import Program
from .runtime import Runtime
from .steps import Step, trace

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
