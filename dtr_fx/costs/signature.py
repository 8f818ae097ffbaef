"""All that decides the time of a node's operator, as text: its name, layouts and numbers.

Requires: ``meta["val"]`` on every node.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Node

from dtr_fx.costs.isolated import known, sizes
from dtr_fx.passes import rng
from dtr_fx.passes.effects import may_run_twice
from dtr_fx.passes.subgraphs import is_higher_order
from dtr_fx.passes.tensors import called_module
from dtr_fx.torch_private import OpOverload, is_traceable_wrapper_subclass

_PLAIN = (
    bool, int, float, complex, str, type(None), type(...),
    torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip


class CannotRunAlone(Exception):
    """Why an operator cannot be run by itself."""


def signature(node: Node, described: dict[Node, str]) -> str:
    """All that decides the time of a node's operator, as text; ``CannotRunAlone`` says why it cannot be.

    ``described`` takes what each node makes, in words, from one call to the next: as a rule several read it.
    """
    target, args, kwargs = call(node)
    numbers: dict[Node, int] = {}

    def describe(value: Any) -> str:
        if isinstance(value, Node):
            if value in numbers:
                return f"%{numbers[value]}"
            numbers[value] = len(numbers)
            return made_by(value)
        if isinstance(value, (list, tuple)):
            return f"[{', '.join(map(describe, value))}]"
        if isinstance(value, slice):
            return f"{describe(value.start)}:{describe(value.stop)}:{describe(value.step)}"
        if isinstance(value, Tensor):
            return _layout(value)
        value = known(value)
        if not isinstance(value, _PLAIN):
            raise CannotRunAlone(f"a {type(value).__name__} among its arguments or results")
        return repr(value)

    def made_by(node: Node) -> str:
        if node not in described:
            described[node] = describe(node.meta.get("val"))
        return described[node]

    given = [*map(describe, args), *(f"{name}={describe(value)}" for name, value in sorted(kwargs.items()))]
    return f"{_name(node, target)}({', '.join(given)}) -> {made_by(node)}"


def call(node: Node) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Target and arguments; an input of the graph stands for a copy of it."""
    if node.op in ("placeholder", "get_attr"):
        return torch.ops.aten.clone.default, (node,), {}
    if not may_run_twice(node):
        raise CannotRunAlone("it may not run twice")
    if is_higher_order(node):
        raise CannotRunAlone("it runs graphs of its own")
    return node.target, node.args, node.kwargs


def module_of(node: Node) -> nn.Module:
    """The module that the node calls."""
    module = called_module(node)
    for part in module.modules():
        if not type(part).__module__.startswith("torch.nn."):
            raise CannotRunAlone(f"{type(part).__name__} is no module of PyTorch's own")
    return module


def _name(node: Node, target: Any) -> str:
    if node.op == "call_module":
        return _describe_module(module_of(node))
    if isinstance(target, OpOverload):
        return str(target)
    name = rng.reference(node)
    if name is None:
        raise CannotRunAlone("its function has no name to be known by")
    return str(name)


def _describe_module(module: nn.Module) -> str:
    """Its parts with their plain attributes (``repr`` does not tell the number of heads), and its tensors."""
    parts = [
        type(part).__name__ + repr({k: v for k, v in vars(part).items() if isinstance(v, (*_PLAIN, tuple))})
        for part in module.modules()
    ]
    state = map(_layout, [*module.parameters(), *module.buffers()])
    return f"{', '.join(parts)} [{', '.join(state)}]"


def _layout(tensor: Tensor) -> str:
    if tensor.layout is not torch.strided or is_traceable_wrapper_subclass(tensor):
        raise CannotRunAlone(f"a {type(tensor).__name__} of layout {tensor.layout}")
    shape, stride = sizes(tensor)
    return f"{tensor.device.type} {str(tensor.dtype).removeprefix('torch.')}{shape}@{stride}"
