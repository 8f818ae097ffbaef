"""Tracing again at any time: what torch counts with then, and what it would keep of each trace for ever."""

from __future__ import annotations

import contextlib
import linecache
import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from dtr_fx.passes.propagate import fake_mode_of_values, static_mode
from dtr_fx.torch_private import (
    CompileContext,
    FakeTensorMode,
    TracingContext,
    compile_context,
    compile_lock,
    disable_current_modes,
    donate_nothing,
    dynamo_config,
    functorch_config,
    setting_of,
    source_loader,
    tracing,
)

# The backward graph is compiled with the forward one, not by whoever comes to it first.  Each such patch that
# is made leaves something in its thread (a ``ContextVar``, torch 2.13), so this one is made once.
_BACKWARD_TOO = functorch_config.patch(force_non_lazy_backward_lowering=True)
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
        disable_current_modes(),
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
        donate_nothing(context.fw_metadata)


@contextlib.contextmanager
def _compiled_functions_callable() -> Iterator[None]:
    """Let other threads call compiled functions while this one traces.

    Dynamo refuses such calls as long as FX traces anywhere in the process, unless a setting says otherwise.
    What is set is a thread's own (since torch 2.12), but its default is the process's.
    """
    setting = setting_of(dynamo_config, "force_compile_during_fx_trace")
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
    before = set(source_loader.eval_cache)
    made: set[str] = set()
    try:
        yield made
    finally:
        made.update(source_loader.eval_cache.keys() - before)


def forget_with(owner: object, sources: Iterable[str]) -> None:
    """Have FX forget source texts, which tracebacks show, when an object is gone."""
    weakref.finalize(owner, _forget, sources).atexit = False


def _forget(sources: Iterable[str]) -> None:
    for name in sources:
        source_loader.eval_cache.pop(name, None)
        linecache.cache.pop(name, None)
