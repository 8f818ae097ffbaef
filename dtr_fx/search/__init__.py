"""How a plan is found: one pass of the runtime, or many, steered.  Without torch."""

import importlib
from typing import TYPE_CHECKING, Any

from .bound import Need, lower_bound
from .execute import execute_order, reserved_by
from .least import least_recomputed
from .lifetimes import NOTHING, Lifetimes, Moved, Operators
from .policies import Policy, paper, portfolio, run_policy
from .search import Infeasible, default_effort, one_pass, search, smallest, smallest_by_passes

if TYPE_CHECKING:
    from .moves import smallest_with_moves, with_moves
    from .scores import Scored, scores_of
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
    "least_recomputed",
    "reserved_by",
    "limit_saved",
    "lower_bound",
    "one_pass",
    "paper",
    "portfolio",
    "rerun",
    "rerun_forward",
    "run_policy",
    "scores_of",
    "search",
    "smallest",
    "smallest_by_passes",
    "smallest_with_moves",
    "with_moves",
]

# Imported when they are asked for: few graphs need them.
_SELDOM = {
    "moves": ("smallest_with_moves", "with_moves"),
    "scores": ("Scored", "scores_of"),
    "starts": ("limit_saved", "rerun", "rerun_forward"),
}


def __getattr__(name: str) -> Any:
    for module, names in _SELDOM.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
