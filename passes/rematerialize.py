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
from .storages import KEEP, SAVE_RNG, Program

# A pass that recomputes more than this many times the program's own compute is given up for another policy.
_THRASH = 11.0
# How closely the smallest budget is searched, as a share of the lower bound.
_TOLERANCE = 0.01


class Infeasible(Exception):
    """No policy fits the budget; ``smallest`` is the smallest budget, in bytes, that one was found for."""

    def __init__(self, smallest: int) -> None:
        super().__init__(f"the smallest budget that works is {smallest} bytes")
        self.smallest = smallest


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
        if step.role in (SAVE_RNG, KEEP):
            continue
        own = {program.storage(value) for value in (*step.inputs, *step.outputs)} - held
        own = {value for value in own if values[value].kind not in _ONLY_TO_RECOMPUTE}
        need = held_bytes + sum(values[value].nbytes for value in own) + step.workspace
        if need > worst.nbytes:
            worst = Need(need, number)
        for value in {program.storage(value) for value in step.pins} - held:
            held.add(value)
            held_bytes += values[value].nbytes
    return worst


# A plan that does not recompute their readers does without them.
_ONLY_TO_RECOMPUTE = ("rng state", "kept copy")


def fit(program: Program, budget: int, heuristic: Heuristic, *, bound: int) -> DTRInterpreter:
    """A plan within ``budget`` bytes: by the heuristic, else by the policies that reach furthest down.

    ``bound`` is the program's lower bound.

    Raises
    ------
    Infeasible
        No policy fits, neither at this budget nor at a smaller one.
    """
    if budget >= bound:
        for policy in _policies(heuristic):
            interpreter = _try(program, budget, policy)
            if interpreter is not None:
                return interpreter
    smallest, interpreter = _smallest(program, bound)
    if smallest > budget:
        raise Infeasible(smallest)
    return interpreter


def _policies(heuristic: Heuristic) -> Iterator[Policy]:
    yield Policy(heuristic)
    yield Policy(heuristic, keep_passed=False)
    yield from (policy for policy in _LOW if policy.heuristic is not heuristic or not policy.keep_passed)
    yield Policy(heuristic, keep_gradients=False)


# Between them these reached lowest on transformers, convolutional and recurrent networks.
_LOW = (
    Policy(HEURISTICS["next-use"]),
    Policy(HEURISTICS["dtr-eq"], keep_passed=False),
    Policy(HEURISTICS["next-use"], order="depth first"),
)


def _smallest(program: Program, bound: int) -> tuple[int, DTRInterpreter]:
    """The smallest budget that a bisection finds a plan for, and the plan."""
    best = _run(program, math.inf, _LOW[0])
    low, high = bound - 1, best.runtime.peak
    while high - low > max(1, _TOLERANCE * bound):
        middle = (low + high) // 2
        plans = (_try(program, middle, policy) for policy in _LOW)
        plan = next((plan for plan in plans if plan is not None), None)
        if plan is None:
            low = middle
        else:
            best, high = plan, plan.runtime.peak
    return high, best


def _try(program: Program, budget: float, policy: Policy) -> DTRInterpreter | None:
    try:
        return _run(program, budget, policy)
    except (OutOfBudget, Thrash):
        return None


def _run(program: Program, budget: float, policy: Policy) -> DTRInterpreter:
    interpreter = DTRInterpreter(program, budget, policy, max_recompute=_THRASH * program.base_cost)
    interpreter.plan()
    return interpreter
