"""The plan: what is done with a program's operators and storages, in order, as a value."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from .program import Program
from .steps import COMPUTE, DROP, OFFLOAD, RECOMPUTE, RELOAD, WAIT, Step, trace

if TYPE_CHECKING:
    from .runtime import Runtime


@dataclass(frozen=True)
class Plan:
    """The steps of a program under a budget.

    They are compute, recompute, drop, banish (free for good), offload, reload and wait.

    Steps name operators and storages by their numbers in the program.  ``budget`` and ``peak`` are bytes,
    ``cost`` is that of the recomputed operators, in the program's unit.  ``decided_by`` is the heuristic
    that chose what to drop, or ``"search"``.  ``refused`` counts the orders of the search that the runtime
    could not carry out: each is a defect.  ``waited`` is the time in which compute waits for transfers, and
    ``outside`` are the most bytes that are moved out at once.

    Examples
    --------
    >>> steps = Step("compute", 0, -1, 4), Step("drop", 1, 0, 0), Step("recompute", 0, -1, 4)
    >>> print(Plan(steps, budget=4, peak=4, cost=1.0))
    C f0, D t0, R f0
    """

    steps: tuple[Step, ...]
    budget: float
    peak: int
    cost: float
    decided_by: str = "search"
    refused: int = 0
    waited: float = 0.0
    outside: int = 0

    @classmethod
    def of(cls, program: Program, runtime: Runtime, decided_by: str) -> Plan:
        """The plan that a runtime has carried out with a program."""
        steps = _with_reasons(program, _without_idle_copies(runtime.steps))
        return cls(
            steps,
            runtime.budget,
            runtime.peak,
            runtime.recompute_cost,
            decided_by,
            waited=sum(step.seconds for step in steps if step.kind == WAIT),
            outside=_outside(program, steps),
        )

    @property
    def order(self) -> list[int]:
        """The operators as they run, first and again; ``~op`` where what one made is brought back."""
        order: list[int] = []
        for step, before in zip(self.steps, (None, *self.steps)):
            if step.kind in (COMPUTE, RECOMPUTE):
                order.append(step.op)
            elif step.kind == RELOAD and (before is None or (before.kind, before.op) != (RELOAD, step.op)):
                order.append(~step.op)
        return order

    @property
    def moved(self) -> dict[int, int | None]:
        """The operators whose results are moved out, and the one after which compute waits for that."""
        moved: dict[int, int | None] = {step.op: None for step in self.steps if step.kind == OFFLOAD}
        leaving: set[int] = set()
        done = 0
        for step in self.steps:
            if step.kind == COMPUTE:
                done = step.op
            elif step.kind == OFFLOAD:
                leaving.add(step.storage)
            elif step.kind == WAIT and step.storage in leaving:
                leaving.remove(step.storage)
                if step.seconds > 0:
                    moved[step.op] = done
        return moved

    @property
    def extra(self) -> float:
        """What the plan adds to the program's own cost: what is computed again, and what waits."""
        return self.cost + self.waited

    def __str__(self) -> str:
        """The plan in the paper's notation."""
        return trace(self.steps, "f{}".format, "t{}".format)

    def to_json(self) -> str:
        """The plan as text; ``from_json`` reads it."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        """The plan that ``to_json`` wrote; raises ValueError if the text is none."""
        fields = json.loads(text)
        try:
            return cls(**{**fields, "steps": tuple(Step(*step) for step in fields["steps"])})
        except (TypeError, KeyError, IndexError) as error:
            raise ValueError(f"this is no plan: {error}") from None


def _without_idle_copies(steps: Sequence[Step]) -> list[Step]:
    """The steps without copies out that nothing brings back, made ahead in vain."""
    back = {step.storage for step in steps if step.kind == RELOAD}
    return [step for step in steps if step.kind not in (OFFLOAD, WAIT) or step.storage in back]


def _outside(program: Program, steps: Sequence[Step]) -> int:
    """The most bytes that are moved out at once, each from its copy out to its last copy back."""
    if program.tier is None:
        return 0
    transfers = [step for step in steps if step.kind in (OFFLOAD, RELOAD, WAIT)]
    last = {step.storage: number for number, step in enumerate(transfers)}
    taken = most = 0
    for number, step in enumerate(transfers):
        nbytes = program.tier.taken_by(program.sizes[step.storage])
        if step.kind == OFFLOAD:
            taken += nbytes
            most = max(most, taken)
        elif last[step.storage] == number:
            taken -= nbytes
    return most


def _with_reasons(program: Program, steps: Sequence[Step]) -> tuple[Step, ...]:
    """The steps; each drop of a storage that comes back with what it frees and what that costs."""
    calls = list(program.calls())
    clock = 0.0
    # Of each storage, at what time before the end it is made next, and for how much.
    made: dict[int, tuple[float, float]] = {}
    backwards = []
    for step in reversed(steps):
        if step.kind in (COMPUTE, RECOMPUTE):
            call = calls[step.op]
            clock += call.cost
            for output in call.outputs:
                if output.alias is None:
                    made[output.tensor] = clock, call.cost
        elif step.kind == RELOAD:
            made[step.storage] = clock, step.seconds
        elif step.kind == DROP and step.storage in made:
            start, again = made.pop(step.storage)
            step = step._replace(nbytes=program.sizes[step.storage], again=again, away=clock - start)
        backwards.append(step)
    return tuple(reversed(backwards))
