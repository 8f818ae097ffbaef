"""A program, step by step, through the runtime."""

from __future__ import annotations

from .graph import Tensor
from .program import Call, Constant, Program, Release
from .runtime import Runtime


def drive(runtime: Runtime, program: Program, *, reserve: int = 0) -> dict[int, Tensor]:
    """Let the runtime do a program's steps; its tensors, by their numbers.

    ``reserve`` bytes of the budget are left alone until the backward pass starts.

    Raises
    ------
    RunFailed
        See ``Runtime.perform_op``.
    """
    tensors: dict[int, Tensor] = {}
    expectations = iter(program.expectations if runtime.heuristic.time == "next_use" else ())
    backward = len(program.instructions) if program.backward is None else program.backward
    budget = runtime.budget
    number = 0
    for step in program.instructions:
        if isinstance(step, Call):
            runtime.budget = budget - reserve if number < backward else budget
            number += 1
            perform(runtime, step, tensors)
            for storage, time in next(expectations, ()):
                runtime.expect(tensors[storage], time)
        elif isinstance(step, Release):
            runtime.release(tensors[step.tensor])
        elif isinstance(step, Constant):
            tensors[step.tensor] = runtime.constant(step.size)
        else:
            keep(runtime, tensors[step.tensor])
    return tensors


def perform(runtime: Runtime, call: Call, tensors: dict[int, Tensor], op: int | None = None) -> None:
    """Let the runtime run a call, as operator ``op`` if not as the next, and remember what it returns."""
    outputs = runtime.perform_op(
        [tensors[number] for number in call.inputs],
        [out.size if out.alias is None else tensors[out.alias] for out in call.outputs],
        call.cost,
        workspace=call.workspace,
        recomputable=call.recomputable,
        number=op,
    )
    for output, tensor in zip(call.outputs, outputs):
        tensors[output.tensor] = tensor


def keep(runtime: Runtime, tensor: Tensor) -> None:
    """From now on the tensor is there."""
    runtime.access(tensor)
    runtime.pin(tensor)
