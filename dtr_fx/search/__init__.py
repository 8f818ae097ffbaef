"""How a plan is found: one pass of the runtime, or many, steered.  Without torch."""

from .bound import Need, lower_bound
from .execute import execute_order
from .lifetimes import Lifetimes, Operators
from .policies import Policy, Scored, paper, portfolio, run_policy, scores_of
from .search import Infeasible, default_effort, first_that_fits, search, smallest, smallest_by_passes
from .starts import limit_saved, rerun, rerun_forward

__all__ = [
    "Infeasible",
    "Lifetimes",
    "Need",
    "Operators",
    "Policy",
    "Scored",
    "default_effort",
    "execute_order",
    "first_that_fits",
    "limit_saved",
    "lower_bound",
    "paper",
    "portfolio",
    "rerun",
    "rerun_forward",
    "run_policy",
    "scores_of",
    "search",
    "smallest",
    "smallest_by_passes",
]
