"""Static planners on operator graphs, to hold DTR against; one verifier judges them all."""

from collections.abc import Callable, Mapping

from dtr_fx.runtime import Plan

from .checkmate import solve_checkmate
from .checkpointing import plan_chen_greedy, plan_chen_sqrt, plan_revolve
from .clock import Action, Timing, as_actions, link_of, time_plan
from .gaps import MOVERS, Gap, Mover, TransferGap, find_gap, find_transfer_gap
from .graph import Node, OperatorGraph, training_chain
from .moccasin import solve_moccasin
from .moving import plan_moving
from .plan import CannotPlan, PlanError, Solution, check, plan_dtr, plan_order
from .transfers import Moved, solve_transfers

PLANNERS: Mapping[str, Callable[[OperatorGraph, float], Plan]] = {
    "Chen √N": plan_chen_sqrt,
    "Chen greedy": plan_chen_greedy,
    "Revolve": plan_revolve,
}
"""The planners that need no solver: ``plan(graph, budget)``, which raises ``CannotPlan`` with its reason."""

__all__ = [
    "MOVERS",
    "PLANNERS",
    "Action",
    "CannotPlan",
    "Gap",
    "Moved",
    "Mover",
    "Node",
    "OperatorGraph",
    "PlanError",
    "Solution",
    "Timing",
    "TransferGap",
    "as_actions",
    "check",
    "find_gap",
    "find_transfer_gap",
    "link_of",
    "plan_chen_greedy",
    "plan_chen_sqrt",
    "plan_dtr",
    "plan_moving",
    "plan_order",
    "plan_revolve",
    "solve_checkmate",
    "solve_moccasin",
    "solve_transfers",
    "time_plan",
    "training_chain",
]
