"""Bytes that no plan of a program can do without."""

from __future__ import annotations

from collections.abc import Iterable

from dtr_fx.runtime.program import Call, Keep, Program


def largest_operator(program: Program) -> int:
    """The most bytes that one operator reads, makes and works in, constants aside."""
    return _needs(program)[0]


def lower_bound(program: Program) -> int:
    """Bytes that no plan can do without: the constants, and the largest operator or the results at the end.

    Examples
    --------
    >>> from dtr_fx.runtime.program import Constant, Output
    >>> calls = Call("f", (0,), (Output(1, 4),), 1.0), Call("g", (1,), (Output(2, 3),), 1.0)
    >>> lower_bound(Program("two", (Constant(0, 10), *calls, Keep(2))))
    17
    """
    return program.constants + max(_needs(program))


def _needs(program: Program) -> tuple[int, int]:
    """The bytes of the largest operator, and those of the results."""
    storages = program.storages
    outputs = (output for call in program.calls() for output in call.outputs)
    sizes = {output.tensor: output.size for output in outputs if output.alias is None}

    def nbytes(tensors: Iterable[int]) -> int:
        return sum(sizes.get(storage, 0) for storage in {storages[tensor] for tensor in tensors})

    operators = (call.workspace + nbytes(_touched(call)) for call in program.calls())
    kept = nbytes(step.tensor for step in program.instructions if isinstance(step, Keep))
    return max(operators, default=0), kept


def _touched(call: Call) -> Iterable[int]:
    return (*call.inputs, *(output.tensor for output in call.outputs))
