"""How a plan is found: one pass of the runtime, or many, steered.  Without torch."""

from .policy import Policy, Run, paper, run_policy
from .search import Infeasible, default_effort, first_that_fits, search, smallest, smallest_by_passes
from .watch import Watched, watch

__all__ = [
    "Infeasible",
    "Policy",
    "Run",
    "Watched",
    "default_effort",
    "first_that_fits",
    "paper",
    "run_policy",
    "search",
    "smallest",
    "smallest_by_passes",
    "watch",
]
