"""A program, instruction by instruction, through the runtime."""

from __future__ import annotations

from .graph import Tensor
from .program import Call, Constant, Program, Release
from .runtime import Runtime


def drive(runtime: Runtime, program: Program, *, reserve: int = 0) -> dict[int, Tensor]:
    """Let the runtime do a program's instructions; its tensors, by their numbers.

    ``reserve`` bytes of the budget are left alone until the backward pass starts.  Raises ``RunFailed``.
    """
    tensors: dict[int, Tensor] = {}
    expectations = iter(program.expectations if runtime.heuristic.time == "next_use" else ())
    budget = runtime.budget
    runtime.budget -= reserve
    number = 0
    for step in program.instructions:
        if isinstance(step, Call):
            if number == program.backward:
                runtime.budget = budget
            perform(runtime, step, tensors, number)
            number += 1
            for storage, time in next(expectations, ()):
                runtime.expect(tensors[storage], time)
        elif isinstance(step, Release):
            runtime.release(tensors[step.tensor])
        elif isinstance(step, Constant):
            constant(runtime, step, tensors)
        else:
            keep(runtime, tensors[step.tensor])
    runtime.budget = budget
    return tensors


def constant(runtime: Runtime, given: Constant, tensors: dict[int, Tensor]) -> None:
    """A tensor that is there from the start; its storage has its number."""
    tensor = tensors[given.tensor] = runtime.constant(given.size)
    tensor.storage.id = given.tensor


def perform(runtime: Runtime, call: Call, tensors: dict[int, Tensor], op: int) -> None:
    """Let the runtime run a call as operator ``op``; fresh storages have their tensors' numbers."""
    outputs = runtime.perform_op(
        [tensors[number] for number in call.inputs],
        [out.size if out.alias is None else tensors[out.alias] for out in call.outputs],
        call.cost,
        workspace=call.workspace + call.replay_workspace,
        recomputable=call.recomputable,
        movable=call.movable,
        number=op,
    )
    for output, tensor in zip(call.outputs, outputs):
        tensors[output.tensor] = tensor
        if output.alias is None:
            tensor.storage.id = output.tensor


def keep(runtime: Runtime, tensor: Tensor) -> None:
    """From now on the tensor is there."""
    runtime.access(tensor)
    runtime.pin(tensor)
