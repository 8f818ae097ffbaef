"""What Dynamo leaves uncompiled, where no budget is in force: said aloud, or with ``strict`` an error.

Dynamo asks a backend only for what it compiles, so its conversion of frames is looked at, of those that are
compiled by ``dtr`` under a budget.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import weakref
from collections.abc import Callable, Iterable
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
        if len(graph_break_reasons) > earlier:
            from dtr_fx.compiler.breaks import left_uncompiled  # only here: most models are one graph

            for each in left_uncompiled(graph_break_reasons[earlier:], frame):
                _warn_or_raise(backend, options, *each)
        return converted

    ConvertFrameAssert.__call__ = watched


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
