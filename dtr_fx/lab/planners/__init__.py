"""Static planners on operator graphs, to hold DTR against; one verifier judges them all."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dtr_fx.lab.planners.chain import training_chain
from dtr_fx.lab.planners.checkmate import solve_checkmate
from dtr_fx.lab.planners.chen import plan_chen_greedy, plan_chen_sqrt
from dtr_fx.lab.planners.dtr import plan_dtr
from dtr_fx.lab.planners.gaps import Gap, gaps
from dtr_fx.lab.planners.graph import Node, OperatorGraph
from dtr_fx.lab.planners.moccasin import solve_moccasin
from dtr_fx.lab.planners.plan import CannotPlan, Cost, PlanError, check, plan_order
from dtr_fx.lab.planners.revolve import plan_revolve
from dtr_fx.lab.planners.solution import Solution
from dtr_fx.runtime import Plan

PLANNERS: Mapping[str, Callable[[OperatorGraph, float], Plan]] = {
    "Chen √N": plan_chen_sqrt,
    "Chen greedy": plan_chen_greedy,
    "Revolve": plan_revolve,
}
"""The planners that need no solver: ``plan(graph, budget)``, which raises ``CannotPlan`` with its reason."""

__all__ = [
    "PLANNERS",
    "CannotPlan",
    "Cost",
    "Gap",
    "Node",
    "OperatorGraph",
    "PlanError",
    "Solution",
    "check",
    "gaps",
    "plan_chen_greedy",
    "plan_chen_sqrt",
    "plan_dtr",
    "plan_order",
    "plan_revolve",
    "solve_checkmate",
    "solve_moccasin",
    "training_chain",
]
