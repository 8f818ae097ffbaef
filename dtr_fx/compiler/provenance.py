"""The module and the user's line of each operator, in a graph that is traced without Dynamo.

They stand where Dynamo puts them: ``meta["nn_module_stack"]`` and ``stack_trace``.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn
from torch.fx import GraphModule
from torch.fx.traceback import get_current_meta, preserve_node_meta
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

_FACTS = ("nn_module_stack", "stack_trace")
_TORCH = torch.__path__[0]


@contextmanager
def provenance_of(model: nn.Module) -> Iterator[None]:
    """Operators that are traced here are told the modules of ``model`` that run, and the line that calls."""
    paths = {id(module): path for path, module in model.named_modules()}
    stack = [("", type(model))]

    def enter(module: nn.Module, _: Any) -> None:
        stack.append((paths.get(id(module), stack[-1][0]), type(module)))

    def leave(*_: Any) -> None:
        stack.pop()

    before = register_module_forward_pre_hook(enter)
    after = register_module_forward_hook(leave, always_call=True)
    caller = sys._getframe(2).f_code  # whose own lines are not the user's
    try:
        with preserve_node_meta(), _Provenance(stack, caller):  # whose end is also that of what is told
            yield
    finally:
        before.remove()
        after.remove()


class _Provenance(TorchFunctionMode):
    """Writes into the meta data of the trace before each operator of PyTorch."""

    def __init__(self, stack: Sequence[tuple[str, type]], caller: CodeType) -> None:
        super().__init__()
        self._stack, self._caller = stack, caller

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        meta = get_current_meta()
        meta["nn_module_stack"] = {
            f"{path}@{at}": (path, kind) for at, (path, kind) in enumerate(self._stack)
        }
        meta["stack_trace"] = self._line()
        return func(*args, **(kwargs or {}))

    def _line(self) -> str:
        """The innermost line that is not PyTorch's, as a traceback has it."""
        frame: FrameType | None = sys._getframe(2)
        while frame is not None and frame.f_code is not self._caller:
            path, line = frame.f_code.co_filename, frame.f_lineno
            if not path.startswith(_TORCH):
                code = linecache.getline(path, line).strip()
                return f'  File "{path}", line {line}, in {frame.f_code.co_name}\n    {code}\n'
            frame = frame.f_back
        return ""


def mark_backward(gm: GraphModule) -> None:
    """Tell the operators of the backward pass what their forward operators know."""
    forward = {
        node.meta["seq_nr"]: node
        for node in reversed(gm.graph.nodes)
        if node.meta.get("nn_module_stack") and "seq_nr" in node.meta
    }
    for node in gm.graph.nodes:
        known = forward.get(node.meta.get("seq_nr"))
        if known is not None and not node.meta.get("nn_module_stack"):
            node.meta.update({fact: known.meta[fact] for fact in _FACTS if fact in known.meta})
