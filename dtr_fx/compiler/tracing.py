"""Tracing again at any time: what torch counts with then, and what it would keep of each trace for ever.

Its locks, contexts, settings and stores are private: checked on torch 2.11 and 2.13.
"""

from __future__ import annotations

import contextlib
import linecache
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch._dynamo.convert_frame import compile_lock
from torch._guards import CompileContext, TracingContext, compile_context, tracing
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.graph_module import _loader
from torch.utils._python_dispatch import _disable_current_modes

from dtr_fx.passes.propagate import fake_mode_of_values, static_mode

# The backward graph is compiled with the forward one, not by whoever comes to it first.  Each such patch that
# is made leaves something in its thread (a ``ContextVar``, torch 2.13), so this one is made once.
_BACKWARD_TOO = torch._functorch.config.patch(force_non_lazy_backward_lowering=True)
# A few MB; a graph of a thousand operators has some hundred.
_MOST_RESULTS = 4096


@contextlib.contextmanager
def tracing_again(context: CompileContext | None, arguments: Sequence[Any]) -> Iterator[FakeTensorMode]:
    """As in a compilation by Dynamo, at any time; sizes are as they are, and what only data tell a symbol.

    One at a time, and not while Dynamo itself compiles in another thread.
    """
    mode = fake_mode_of_values(arguments) or static_mode()
    with (
        compile_lock,
        _disable_current_modes(),
        compile_context(context or CompileContext(None)),
        tracing(TracingContext(mode)),
        _BACKWARD_TOO,
        _compiled_functions_callable(),
    ):
        yield mode


def keep_what_is_saved() -> None:
    """Let the step that is being traced go backward twice: AOTAutograd is to donate nothing that is saved."""
    context = TracingContext.try_get()
    if context is not None and context.fw_metadata is not None:
        context.fw_metadata.bw_donated_idxs = []


@contextlib.contextmanager
def _compiled_functions_callable() -> Iterator[None]:
    """Let other threads call compiled functions while this one traces.

    Dynamo refuses such calls as long as FX traces anywhere in the process, unless a setting says otherwise.
    What is set is a thread's own (since torch 2.12), but its default is the process's.
    """
    settings = vars(torch._dynamo.config)["_config"]
    setting = settings["force_compile_during_fx_trace"]
    before, setting.default = setting.default, True
    try:
        yield
    finally:
        setting.default = before


@contextlib.contextmanager
def stores_watched() -> Iterator[set[str]]:
    """Of what torch keeps for ever of each graph: the names of the source texts that FX keeps meanwhile.

    Operators' results by shape, which are asked for again while the same graph is traced, are never many.
    """
    if len(FakeTensorMode.cache) > _MOST_RESULTS:
        FakeTensorMode.cache_clear()
    before = set(_loader.eval_cache)
    made: set[str] = set()
    try:
        yield made
    finally:
        made.update(_loader.eval_cache.keys() - before)


def forget_with(owner: object, sources: Iterable[str]) -> None:
    """Have FX forget source texts, which tracebacks show, when an object is gone."""
    weakref.finalize(owner, _forget, sources).atexit = False


def _forget(sources: Iterable[str]) -> None:
    for name in sources:
        _loader.eval_cache.pop(name, None)
        linecache.cache.pop(name, None)
