"""A plan that fits a budget: one pass of the runtime, or a search.

Requires: a ``Program``.  Ensures: a run that keeps within the budget; the same program, budget and options
give the same run.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from dtr_fx import search
from dtr_fx.options import Options
from dtr_fx.runtime import resolve
from dtr_fx.search import Policy, Run, paper
from dtr_fx.simulate.schedule import Schedule

from .storages import KEEP, SAVE_RNG, Program


class Infeasible(Exception):
    """No plan was found in the budget; ``smallest`` is the smallest, in bytes, that one was found for."""

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


class Planner:
    """Plans for one program, in the way that the options say.

    Parameters
    ----------
    program:
        The graph, analysed.
    options:
        Of which the heuristic, the planner and its effort count here, not the budget.
    bound:
        The program's lower bound.
    """

    def __init__(self, program: Program, options: Options, bound: int) -> None:
        self._program = program
        self._bound = bound
        self._seconds = options.plan_seconds
        self._online = options.planner == "online"
        heuristic = resolve(options.heuristic)
        self._policy = paper(heuristic) if self._online else Policy(heuristic)

    @cached_property
    def schedule(self) -> Schedule:
        """The program for the runtime; a graph that fits as it is needs none."""
        return self._program.schedule()

    def plan(self, budget: int) -> Run:
        """A plan within ``budget`` bytes.

        Raises
        ------
        Infeasible
            None was found, neither at this budget nor at a smaller one.
        """
        run = self._try(budget) if budget >= self._bound else None
        if run is None:
            run = self.smallest
            if run.runtime.peak > budget:
                raise Infeasible(run.runtime.peak)
        return run

    @cached_property
    def smallest(self) -> Run:
        """The plan with the lowest peak that is found."""
        if self._online:
            return search.smallest_by_passes(self.schedule, self._bound, [self._policy])
        return search.smallest(self.schedule, self._bound, self._seconds)

    def _try(self, budget: int) -> Run | None:
        if self._online:
            return search.first_that_fits(self.schedule, budget, [self._policy])
        try:
            return search.search(self.schedule, budget, self._policy, self._seconds)
        except search.Infeasible:
            return None
