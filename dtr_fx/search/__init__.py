"""How a plan is found: one pass of the runtime, or many, steered.  Without torch."""

from .follow import follow, followed
from .policy import Policy, Run, paper, run_policy
from .saving import holding_between_passes, restarted
from .search import Infeasible, default_effort, first_that_fits, search, smallest, smallest_by_passes
from .watch import Watched, watch

__all__ = [
    "Infeasible",
    "Policy",
    "Run",
    "Watched",
    "default_effort",
    "first_that_fits",
    "follow",
    "followed",
    "holding_between_passes",
    "paper",
    "restarted",
    "run_policy",
    "search",
    "smallest",
    "smallest_by_passes",
    "watch",
]
