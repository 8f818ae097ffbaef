"""What Dynamo leaves uncompiled, where no budget is in force: said aloud, or with ``strict`` an error.

Dynamo asks a backend only for what it compiles, so its conversion of frames is looked at, of those that are
compiled by ``dtr`` under a budget.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import re
import weakref
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch

from dtr_fx.errors import OptionError, UncompiledError
from dtr_fx.planning.options import Options
from dtr_fx.torch_private import (
    ConvertFrameAssert,
    Unsupported,
    dynamo_config,
    graph_break_reasons,
    innermost_backend,
    read,
)

log = logging.getLogger(__name__)

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
)
# Each patch that is made leaves something in its thread (a ``ContextVar``, torch 2.13): made once.
_ALLOW_RNN = dynamo_config.patch(allow_rnn=True)
# The functions that torch.compile made of this backend and that have been told of, by id.
_told: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def with_room(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call a function with room for the frames of all that it calls.

    CPython keeps frames in chunks of 16 KiB, and calls that go back and forth over the end of one map memory
    and unmap it each time: up to a quarter of the time of a trace.  A frame as large as this function's gets
    a chunk of 1 MiB, of which half is left.
    """
    return function(*arguments, **named)


with_room.__code__ = with_room.__code__.replace(co_stacksize=66_000)


def watch_frames(dtr: Callable[..., Any]) -> None:
    """From now on look at each frame that Dynamo converts for this backend."""
    convert = ConvertFrameAssert.__call__

    @functools.wraps(convert)
    def watched(self: Any, frame: Any, *args: Any, **kwargs: Any) -> Any:
        backend = innermost_backend(self)
        options = _options(backend, dtr)
        if options is None:
            return convert(self, frame, *args, **kwargs)
        earlier = len(graph_break_reasons)
        try:
            # A compilation inside another has the setting by then.
            with contextlib.nullcontext() if dynamo_config.allow_rnn else _ALLOW_RNN:
                converted = with_room(convert, self, frame, *args, **kwargs)
        except Unsupported as error:
            if not read(self, "_one_graph"):  # else the user gets the error
                _warn_or_raise(backend, options, frame.f_code.co_name, str(error), read(error, "real_stack"))
            raise
        for broken in graph_break_reasons[earlier:]:
            stack = broken.user_stack
            if "torch.compiler.disable" in broken.reason:
                _warn_or_raise(backend, options, "the call", broken.reason, stack)
            elif (at := _called_in_torch(stack, frame)) is not None:
                name = f"the call of {Path(stack[at].filename).relative_to(_TORCH.parent)}"
                _warn_or_raise(backend, options, name, broken.reason, stack[:at])
            elif operator := next(filter(None, (each.match(broken.reason) for each in _OPERATORS)), None):
                _warn_or_raise(backend, options, f"the operator {operator['name']}", broken.reason, stack)
        return converted

    ConvertFrameAssert.__call__ = watched


def _called_in_torch(stack: Sequence[Any], frame: Any) -> int | None:
    """The place in a graph break's stack of the first module of torch's own that computes.

    The frame that breaks is compiled in parts; what it calls there is compiled by itself, but torch's own
    modules never are.
    """
    models = [value for value in frame.f_locals.values() if isinstance(value, torch.nn.Module)]
    calls = {_MODULES / "module.py"}  # calls a module's hooks and its forward, nothing else
    if not any(map(_runs_torchs_modules, models)):
        calls.add(_MODULES / "container.py")
    paths = [Path(line.filename) for line in stack]
    return next((at for at, path in enumerate(paths) if path.parent == _MODULES and path not in calls), None)


def _runs_torchs_modules(model: torch.nn.Module) -> bool:
    """True if a container in the model has a module of torch's beside modules of others."""
    for container in model.modules():
        if isinstance(container, torch.nn.Sequential):
            own = [type(child).__module__.startswith("torch.") for child in container]
            if any(own) and not all(own):
                return True
    return False


def _options(backend: Any, dtr: Callable[..., Any]) -> Options | None:
    """Of a backend that is ``dtr`` under a budget."""
    function: Any = getattr(backend, "compiler_fn", backend)
    given = getattr(backend, "kwargs", {})
    if isinstance(function, functools.partial):
        function, given = function.func, {**function.keywords, **given}
    if function is not dtr:
        return None
    try:
        options = Options.of_backend(given.get("options"))
    except OptionError:
        return None  # told when the graph is called
    return options if options.limits else None


def _warn_or_raise(backend: Any, options: Options, name: str, reason: str, stack: Iterable[Any]) -> None:
    lines = [line for line in stack if _TORCH not in Path(line.filename).parents]
    where = f" ({lines[-1].filename}:{lines[-1].lineno})" if lines else ""
    error = UncompiledError(options.asked, f"{name}{where}", reason.strip().partition("\n")[0])
    if options.strict:
        raise error from None
    log.log(logging.INFO if id(backend) in _told else logging.WARNING, "%s", error)
    _told[id(backend)] = backend
