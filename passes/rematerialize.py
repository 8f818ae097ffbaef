"""A plan that fits a budget: passes of the DTR interpreter under different policies, until one does.

Requires: a ``Program``.  Ensures: an interpreter whose plan keeps within the budget; the same program,
budget and heuristic give the same plan.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from dtr_fx.runtime import HEURISTICS, Heuristic, OutOfBudget, Thrash

from .interpreter import DTRInterpreter, Policy
from .storages import Program

# A pass that recomputes this many times the whole program is given up for another policy.
_THRASH = 8.0


@dataclass(frozen=True)
class Need:
    """What no plan can do without: ``nbytes`` while step ``step`` runs."""

    nbytes: int
    step: int


def lower_bound(program: Program) -> Need:
    """The largest, over operators, of constants + outputs pinned by then + its own inputs and outputs."""
    values = program.values
    held = {program.storage(value) for value in program.constants}
    held_bytes = program.constant_bytes
    worst = Need(held_bytes, 0)
    for number, step in enumerate(program.steps):
        own = {program.storage(value) for value in (*step.inputs, *step.outputs)} - held
        need = held_bytes + sum(values[value].nbytes for value in own) + step.workspace
        if need > worst.nbytes:
            worst = Need(need, number)
        for value in {program.storage(value) for value in step.pins} - held:
            held.add(value)
            held_bytes += values[value].nbytes
    return worst


def baseline(program: Program) -> DTRInterpreter:
    """The program as it is: nothing dropped but what is dead."""
    return _run(program, math.inf, Policy(HEURISTICS["dtr-local"]))


def fit(program: Program, budget: int, heuristic: Heuristic) -> DTRInterpreter | None:
    """The first policy's plan that fits, or None."""
    for policy in _policies(heuristic):
        try:
            return _run(program, budget, policy, _THRASH)
        except (OutOfBudget, Thrash):
            continue
    return None


def _policies(heuristic: Heuristic) -> Iterator[Policy]:
    yield Policy(heuristic, keep_passed=False)
    yield Policy(heuristic, keep_passed=True)
    for name in ("next-use", "msps", "dtr"):
        yield Policy(HEURISTICS[name], keep_passed=True)
        yield Policy(HEURISTICS[name], keep_passed=False)


def _run(program: Program, budget: float, policy: Policy, thrash: float = math.inf) -> DTRInterpreter:
    interpreter = DTRInterpreter(program, budget, policy, max_cost=thrash * max(program.base_cost, 1e-9))
    interpreter.plan()
    return interpreter
