"""How a plan is found: one pass of the runtime, or many, steered.  Without torch."""

from .bound import Need, lower_bound
from .execute import execute_order, reserved_by
from .least import least_recomputed
from .lifetimes import NOTHING, Lifetimes, Moved, Operators
from .moves import smallest_with_moves, with_moves
from .policies import Policy, Scored, paper, portfolio, run_policy, scores_of
from .search import Infeasible, default_effort, one_pass, search, smallest, smallest_by_passes
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
