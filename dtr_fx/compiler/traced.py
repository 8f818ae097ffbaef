"""What AOTAutograd traced once, compiled as often as there are plans for it."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.fx import GraphModule

from dtr_fx.passes.split import split
from dtr_fx.torch_private import aot_compile, aot_module, enable_python_dispatcher, read


class Traced:
    """AOTAutograd's own ``state`` and ``capture``, as they were before it compiled them, without the graph.

    ``forward`` and ``backward`` are the compilers of the two passes.
    """

    def __init__(self, state: Any, capture: Any, forward: Any, backward: Any) -> None:
        self._state, self._capture = _copied(state), _copied(capture, graph_module=None)
        self._forward, self._backward = forward, backward

    def compile(self, graph: GraphModule) -> Callable[..., Any]:
        """Compile a graph that was traced so, as it is rewritten by now; the arguments come one by one."""
        state, capture = _copied(self._state), _copied(self._capture, graph_module=graph)
        with torch.autograd.set_multithreading_enabled(False), state.fake_mode, enable_python_dispatcher():
            run, _ = aot_compile(state, capture, split, self._forward, self._backward)
        return lambda *arguments: run([*arguments])


def _copied(record: Any, **changes: Any) -> Any:
    """A copy with copies of all that a compilation changes: collections, settings, facts of the inputs."""
    copied = copy.copy(record)
    for name, value in vars(record).items():
        if name in ("fw_metadata", "aot_config"):
            vars(copied)[name] = _copied(value)
        elif isinstance(value, tuple):  # of lists: for the forward pass, and for the backward pass
            vars(copied)[name] = tuple(map(copy.copy, value))
        elif isinstance(value, (list, dict, set)):
            vars(copied)[name] = copy.copy(value)
    vars(copied).update(changes)
    return copied


@contextlib.contextmanager
def traces_kept() -> Iterator[list[Traced]]:
    """Keep what AOTAutograd traces meanwhile."""
    compile_trace = read(aot_module, "aot_stage2_compile")
    kept: list[Traced] = []

    def keep(state: Any, capture: Any, partition_fn: Any, *compilers: Any) -> Any:
        kept.append(Traced(state, capture, *compilers[:2]))
        return compile_trace(state, capture, partition_fn, *compilers)

    aot_module.aot_stage2_compile = keep
    try:
        yield kept
    finally:
        aot_module.aot_stage2_compile = compile_trace
