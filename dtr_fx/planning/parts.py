"""Budgets of parts of a model: what a part's operators make takes no more than so many bytes at any moment.

A part is planned as a program in which nothing else takes memory.  What that plan runs again, every plan of
the whole runs again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from dtr_fx.passes.verify import VerificationError
from dtr_fx.report import HintStats
from dtr_fx.runtime import Plan, Program
from dtr_fx.runtime.program import Call, Constant
from dtr_fx.runtime.steps import COMPUTE, RECOMPUTE


@dataclass(frozen=True)
class Part:
    """The operators of a program, by number, that a hint's ``pattern`` covers, and their budget in bytes.

    ``limit`` counts what they make but for the program's results.
    """

    pattern: str
    calls: frozenset[int]
    limit: int

    def of(self, program: Program) -> Program:
        """The program in which only the part takes memory, and only it runs again."""
        results = {program.storages[tensor] for kept in program.kept_after.values() for tensor in kept}

        def of_part(number: int, call: Call) -> Call:
            outputs = tuple(
                output
                if number in self.calls and program.storages[output.tensor] not in results
                else output._replace(size=0)
                for output in call.outputs
            )
            again = call.recomputable and number in self.calls
            call = call._replace(outputs=outputs, recomputable=again, may_defer=False)
            return call._replace(workspace=0, replay_workspace=0)

        part_program = program.with_calls(of_part)
        steps = (
            step._replace(size=0) if isinstance(step, Constant) else step
            for step in part_program.instructions
        )
        return replace(part_program, instructions=tuple(steps))


@dataclass(frozen=True)
class Parts:
    """The parts of a program that have a budget of their own."""

    program: Program
    parts: tuple[Part, ...]

    @cached_property
    def programs(self) -> list[tuple[Part, Program]]:
        return [(part, part.of(self.program)) for part in self.parts]

    def above(self, plan: Plan) -> Iterator[tuple[Part, int]]:
        """The parts that take more than their budget in a plan, and how much."""
        for part, program in self.programs:
            taken = most_held(program, plan)
            if taken > part.limit:
                yield part, taken

    def hold(self, plan: Plan) -> bool:
        return next(self.above(plan), None) is None


def most_held(program: Program, plan: Plan) -> int:
    """The most bytes that are there at once in a plan, of those that a program of the same calls has."""
    made = [
        {output.tensor: output.size for output in call.outputs if output.alias is None and output.size}
        for call in program.calls()
    ]
    resident: dict[int, int] = {}
    live = most = 0
    for step in plan.steps:
        if step.kind in (COMPUTE, RECOMPUTE):
            for tensor, size in made[step.op].items():
                live += size - resident.get(tensor, 0)
                resident[tensor] = size
            most = max(most, live)
        else:
            live -= resident.pop(step.storage, 0)
    return most


def check_parts(hints: Sequence[HintStats], parts: Sequence[Part]) -> None:
    """Raise VerificationError where a part takes more than its budget in a graph that was rewritten."""
    limits = {part.pattern: part.limit for part in parts}
    for hint in hints:
        if hint.most > limits.get(hint.pattern, hint.most):
            raise VerificationError(f"{hint}, which is above {limits[hint.pattern]} bytes")


def merged(orders: Sequence[Sequence[int]]) -> list[int]:
    """One order with the repeated runs of all; each has the first runs in the program's order."""
    again: dict[int, list[int]] = {}
    for order in orders:
        reached = -1
        waiting: list[int] = []
        for op in order:
            if op > reached:
                again.setdefault(op, []).extend(waiting)
                reached, waiting = op, []
            else:
                waiting.append(op)
    found: list[int] = []
    for op, before in sorted(again.items()):
        found += [*before, op]
    return found
