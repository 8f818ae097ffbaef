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

_TORCH = str(Path(torch.__file__).parent)
# Each patch that is made leaves something in its thread (a ``ContextVar``, torch 2.13): made once.
_ALLOW_RNN = dynamo_config.patch(allow_rnn=True)
# The functions that torch.compile made of this backend and that have been told of, by id.
_told: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


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
                converted = convert(self, frame, *args, **kwargs)
        except Unsupported as error:
            if not read(self, "_one_graph"):  # else the user gets the error
                _tell(backend, options, frame.f_code.co_name, str(error), read(error, "real_stack"))
            raise
        for broken in graph_break_reasons[earlier:]:
            if "torch.compiler.disable" in broken.reason:
                _tell(backend, options, "the call", broken.reason, broken.user_stack)
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
        options = Options.from_mapping(given.get("options"))
    except OptionError:
        return None  # told when the graph is called
    return options if options.limits else None


def _tell(backend: Any, options: Options, name: str, reason: str, stack: Iterable[Any]) -> None:
    lines = [line for line in stack if not line.filename.startswith(_TORCH)]
    where = f" ({lines[-1].filename}:{lines[-1].lineno})" if lines else ""
    error = UncompiledError(options.asked, f"{name}{where}", reason.strip().partition("\n")[0])
    if options.strict:
        raise error from None
    log.log(logging.INFO if id(backend) in _told else logging.WARNING, "%s", error)
    _told[id(backend)] = backend
