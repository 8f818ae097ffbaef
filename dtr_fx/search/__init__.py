"""How a plan is found: one pass of the runtime, or many, steered.  Without torch."""

import importlib
from typing import TYPE_CHECKING, Any

from .bound import Need, lower_bound
from .lifetimes import NOTHING, Lifetimes, Moved, Operators

if TYPE_CHECKING:
    from .execute import execute_order, reserved_by
    from .least import least_recomputed
    from .moves import smallest_with_moves, with_moves
    from .policies import Policy, paper, portfolio, run_policy
    from .scores import Scored, scores_of
    from .search import Infeasible, default_effort, find_plan, one_pass, smallest, smallest_by_passes
    from .starts import limit_saved, rerun, rerun_forward

__all__ = [
    "NOTHING",
    "Infeasible",
    "Lifetimes",
    "Moved",
    "Need",
    "Operators",
    "Policy",
    "Scored",
    "default_effort",
    "execute_order",
    "find_plan",
    "least_recomputed",
    "limit_saved",
    "lower_bound",
    "one_pass",
    "paper",
    "portfolio",
    "rerun",
    "rerun_forward",
    "reserved_by",
    "run_policy",
    "scores_of",
    "smallest",
    "smallest_by_passes",
    "smallest_with_moves",
    "with_moves",
]

# Imported when they are asked for: who finds a plan on disk makes none.
_HOMES = {
    "execute": ("execute_order", "reserved_by"),
    "least": ("least_recomputed",),
    "moves": ("smallest_with_moves", "with_moves"),
    "policies": ("Policy", "paper", "portfolio", "run_policy"),
    "scores": ("Scored", "scores_of"),
    "search": ("Infeasible", "default_effort", "find_plan", "one_pass", "smallest", "smallest_by_passes"),
    "starts": ("limit_saved", "rerun", "rerun_forward"),
}


def __getattr__(name: str) -> Any:
    for module, names in _HOMES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
