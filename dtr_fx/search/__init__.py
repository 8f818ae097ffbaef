"""How a plan is found: one pass of the runtime, or many, steered.  Without torch."""

from dtr_fx.search.execute import follow, followed
from dtr_fx.search.policies import Policy, Run, paper, run_policy
from dtr_fx.search.saved_tensors import holding_between_passes, restarted
from dtr_fx.search.scores import Watched, watch
from dtr_fx.search.search import (
    Infeasible,
    default_effort,
    first_that_fits,
    search,
    smallest,
    smallest_by_passes,
)

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
