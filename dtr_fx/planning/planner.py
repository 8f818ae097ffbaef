"""A plan that fits a budget: one pass of the runtime, or a search.

Requires: a ``GraphProgram``.  Ensures: a run within the budget; the same program, budget and options
give the same run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

from dtr_fx import search
from dtr_fx.passes.storages import KEEP, SAVE_RNG, GraphProgram
from dtr_fx.planning.options import Options
from dtr_fx.runtime import resolve
from dtr_fx.runtime.program import Program
from dtr_fx.search import Policy, Run, paper


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


def lower_bound(program: GraphProgram) -> Need:
    """What any plan holds at once, at some time; see ``_Bounds``."""
    bounds = _Bounds(program)
    need = Need(program.constant_bytes, 0)
    for number, nbytes in enumerate(bounds.alone):
        if nbytes > need.nbytes:
            need = Need(nbytes, number)
    for number in range(len(program.steps)):
        need = bounds.joint(number, need)
    return need


class _Bounds:
    """What plans cannot do without.

    A step runs with the constants, the results pinned by then, and its own inputs and outputs: ``alone`` says
    how much that is.  Before it does, the last of those that make its inputs has run, and the others' were
    there meanwhile; whichever of them that was, a plan holds at least the least of these sums.
    """

    def __init__(self, program: GraphProgram) -> None:
        self._steps = program.steps
        self._size = [value.nbytes for value in program.values]
        self._storage = [value.alias_of for value in program.values]
        self._optional = {n for n, value in enumerate(program.values) if value.kind in _ONLY_TO_RECOMPUTE}
        self._reads = [self._storages(step.inputs) for step in program.steps]
        self._held: list[frozenset[int]] = []
        self._held_bytes: list[int] = []
        self._maker: dict[int, int] = {}
        held = {program.storage(value) for value in program.constants}
        nbytes = program.constant_bytes
        known = frozenset(held)
        for number, step in enumerate(program.steps):
            self._held.append(known)
            self._held_bytes.append(nbytes)
            if step.pins:
                pinned = set(map(program.storage, step.pins)) - held
                held |= pinned
                nbytes += self._bytes(pinned)
                known = frozenset(held)
            self._maker.update(dict.fromkeys(step.outputs, number))
        self.alone = [self._while_running(number, self._reads[number]) for number in range(len(self._steps))]

    def joint(self, number: int, known: Need) -> Need:
        """While the last of those runs that make a step's inputs; what is ``known`` if this is no more."""
        inputs = self._reads[number]
        makers = {self._maker[storage] for storage in inputs if storage in self._maker}
        if not makers or min(map(self.alone.__getitem__, makers)) + self._bytes(inputs) <= known.nbytes:
            return known
        touched = {maker: self._reads[maker] | inputs for maker in makers}
        nbytes, maker = min((self._while_running(maker, touched[maker]), maker) for maker in makers)
        return Need(nbytes, maker) if nbytes > known.nbytes else known

    def _while_running(self, number: int, there: set[int]) -> int:
        """The bytes while a step runs and these are there."""
        step = self._steps[number]
        if step.role in (SAVE_RNG, KEEP):
            return 0
        there = (there | self._storages(step.outputs)) - self._held[number]
        return self._held_bytes[number] + self._bytes(there) + step.workspace

    def _bytes(self, storages: Iterable[int]) -> int:
        return sum(map(self._size.__getitem__, storages))

    def _storages(self, values: Iterable[int]) -> set[int]:
        """The values' storages that any plan has."""
        return set(map(self._storage.__getitem__, values)) - self._optional


# A plan that does not recompute their readers does without them.
_ONLY_TO_RECOMPUTE = ("rng state", "kept copy")


class Planner:
    """Plans for one program, in the way that the options say.

    Parameters
    ----------
    make_program:
        Gives the program for the runtime; a graph that fits as it is needs none.
    options:
        Of which the heuristic, the planner and its effort count here, not the budget.
    bound:
        The program's lower bound.
    """

    def __init__(self, make_program: Callable[[], Program], options: Options, bound: int) -> None:
        self._make_program = make_program
        self._bound = bound
        self._seconds = options.plan_seconds
        self._online = options.planner == "online"
        heuristic = resolve(options.heuristic)
        self._policy = paper(heuristic) if self._online else Policy(heuristic)

    @cached_property
    def program(self) -> Program:
        """The program for the runtime."""
        return self._make_program()

    def plan(self, budget: int) -> Run:
        """A plan within ``budget`` bytes.

        Raises
        ------
        Infeasible
            None was found, neither at this budget nor at a smaller one.
        """
        run = self._try(budget, self.program) if budget >= self._bound else None
        if run is None:
            run = self.smallest
            if run.runtime.peak > budget:
                raise Infeasible(run.runtime.peak)
        return run

    def plan_saving(self, budget: int, held: int, saved: int) -> Run:
        """A plan that holds, between the passes, ``saved`` bytes besides ``held``, or as few as are found.

        Raises
        ------
        Infeasible
            As ``plan`` does.
        """
        free = self.plan(budget)
        repaired = self._repaired(free, budget, held + saved)
        if repaired is not None and repaired.cost <= free.cost:
            return free
        limited = search.holding_between_passes(self.program, held + saved, budget)
        run = _cheapest([repaired, self._try(budget, limited)])
        while run is None:
            saved = 2 * saved + 1
            run = self._repaired(free, budget, held + saved)
        return search.follow(self.program, run.order, budget)

    def _repaired(self, free: Run, budget: int, most: int) -> Run | None:
        """A plan that was made without a limit between the passes, changed to keep it."""
        limited = search.holding_between_passes(self.program, most, budget)
        orders = (free.order, search.restarted(self.program, free.order))
        return _cheapest(search.followed(limited, order, budget) for order in orders)

    @cached_property
    def smallest(self) -> Run:
        """The plan with the lowest peak that is found."""
        if self._online:
            return search.smallest_by_passes(self.program, self._bound, [self._policy])
        return search.smallest(self.program, self._bound, self._seconds)

    def _try(self, budget: int, program: Program) -> Run | None:
        if self._online:
            return search.first_that_fits(program, budget, [self._policy])
        try:
            return search.search(program, budget, self._policy, self._seconds)
        except search.Infeasible:
            return None


def _cheapest(runs: Iterable[Run | None]) -> Run | None:
    return min(filter(None, runs), key=lambda run: run.cost, default=None)
