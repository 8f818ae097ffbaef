"""How a plan is found: one pass of the runtime, or many, steered.  Without torch."""

import importlib
from typing import TYPE_CHECKING, Any

from .bound import Need as Need
from .bound import lower_bound as lower_bound
from .lifetimes import NOTHING as NOTHING
from .lifetimes import Lifetimes as Lifetimes
from .lifetimes import Moved as Moved
from .lifetimes import Operators as Operators

if TYPE_CHECKING:
    from .execute import execute_order as execute_order
    from .execute import reserved_by as reserved_by
    from .least import least_recomputed as least_recomputed
    from .moves import smallest_with_moves as smallest_with_moves
    from .moves import with_moves as with_moves
    from .policies import Policy as Policy
    from .policies import paper as paper
    from .policies import portfolio as portfolio
    from .policies import run_policy as run_policy
    from .scores import Scored as Scored
    from .scores import scores_of as scores_of
    from .search import Infeasible as Infeasible
    from .search import default_effort as default_effort
    from .search import find_plan as find_plan
    from .search import one_pass as one_pass
    from .search import smallest as smallest
    from .search import smallest_by_passes as smallest_by_passes
    from .starts import limit_saved as limit_saved
    from .starts import rerun as rerun
    from .starts import rerun_forward as rerun_forward

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
