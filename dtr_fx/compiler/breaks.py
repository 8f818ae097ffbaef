"""Where Dynamo broke a graph: what runs uncompiled there, and computes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

_TORCH = Path(torch.__file__).parent
_MODULES = _TORCH / "nn" / "modules"
# Dynamo's reasons to break a graph at an operator, which then runs between the parts, and its name.
_OPERATORS = (
    re.compile(
        r"(Dynamic shape operator|Operator does not support).*debug context: ([^\n]* )?(?P<name>\S+)",
        re.DOTALL,
    ),
    re.compile(r"Attempted to (?P<name>copy\.deepcopy) a tensor"),
    re.compile(r"using `(?P<name>torch\.autograd\.grad)`"),
    # These read a value; the two that are left out allocate nothing.
    re.compile(
        r"Data dependent operator.*debug context: (?!aten\.(?:_local_scalar_dense|equal)\b)(?P<name>\S+)",
        re.DOTALL,
    ),
)
# Those to break it at a function of torch's that it is not to trace.
_FUNCTION = re.compile(
    r"Attempted to (call|inline) function marked as skipped.* function `(?P<name>[\w.]+)`.*"
    rf" (in file|filename:) `{re.escape(str(_TORCH))}/(nn|ao|distributions|utils/checkpoint)\b",
    re.DOTALL,
)
# Those to break it in a function that reads a value, as a branch on one does.
_READS = re.compile(r"Data[- ]dependent|generic_jump|Unsupported Tensor\.item|Tensor\.tolist")


def left_uncompiled(breaks: Iterable[Any], frame: Any) -> Iterator[tuple[str, str, Sequence[Any]]]:
    """What runs between the graphs of a frame, with Dynamo's reason and the stack of the call."""
    for broken in breaks:
        stack, reason = broken.user_stack, broken.reason
        if "torch.compiler.disable" in reason:
            yield "the call", reason, stack
        elif (at := _called_in_torch(stack, frame, reason)) is not None:
            yield f"the call of {Path(stack[at].filename).relative_to(_TORCH.parent)}", reason, stack[:at]
        elif operator := next(filter(None, (each.match(reason) for each in _OPERATORS)), None):
            yield f"the operator {operator['name']}", reason, stack
        elif function := _FUNCTION.match(reason):
            yield f"the function {function['name']}", reason, stack


def _called_in_torch(stack: Sequence[Any], frame: Any, reason: str) -> int | None:
    """The place in a graph break's stack of the first of torch's own functions that computes.

    The frame that breaks is compiled in parts; what it calls there is compiled by itself, but torch's own
    modules never are, nor are its functions, as those of its distributions, which check their arguments.
    """
    models = [value for value in frame.f_locals.values() if isinstance(value, torch.nn.Module)]
    calls = {_MODULES / "module.py"}  # calls a module's hooks and its forward, nothing else
    if not any(map(_runs_torchs_modules, models)):
        calls.add(_MODULES / "container.py")
    paths = [Path(line.filename) for line in stack]
    reads = _READS.match(reason) is not None and _is_torchs(paths[-1])
    return next(
        (
            at
            for at, path in enumerate(paths)
            if path not in calls and (path.parent == _MODULES or (reads and _is_torchs(path)))
        ),
        None,
    )


def _is_torchs(path: Path) -> bool:
    """True of a file of torch's, unless Dynamo runs it in place of another's."""
    return _TORCH in path.parents and _TORCH / "_dynamo" not in path.parents


def _runs_torchs_modules(model: torch.nn.Module) -> bool:
    """True if a container in the model has a module of torch's beside modules of others."""
    for container in model.modules():
        if isinstance(container, torch.nn.Sequential):
            own = [type(child).__module__.startswith("torch.") for child in container]
            if any(own) and not all(own):
                return True
    return False
