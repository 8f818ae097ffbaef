"""An operator as it is timed: by what it is known, whether it may be run, and the bytes that this takes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Node

from dtr_fx.passes import rng
from dtr_fx.passes.effects import may_run_twice
from dtr_fx.passes.modes import largest_to_run
from dtr_fx.passes.subgraphs import is_higher_order
from dtr_fx.passes.tensors import called_module, fresh_storages, is_selection, nbytes_of, sizes_of, tensors_of
from dtr_fx.torch_private import OpOverload, is_traceable_wrapper_subclass, schema_of

_PLAIN = (
    bool, int, float, complex, str, type(None), type(...),
    torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip
GIVEN = ("placeholder", "get_attr")


class CannotRunAlone(Exception):
    """Why an operator cannot be run by itself."""


def may_run(node: Node) -> bool:
    """True if the node's operator does no more than compute, or write to what it is given."""
    target = node.target
    writes = isinstance(target, OpOverload) and target.namespace == "aten" and schema_of(target).is_mutable
    return writes or may_run_twice(node)


def is_custom(node: Node) -> bool:
    """True of an operator that is not PyTorch's own."""
    return isinstance(node.target, OpOverload) and node.target.namespace not in ("aten", "prims")


def signature(node: Node, described: dict[Node, str]) -> str:
    """All that decides the time of a node's operator, as text; ``CannotRunAlone`` says why it cannot be.

    ``described`` takes what each node makes, in words, from one call to the next: as a rule several read it.
    """
    target, args, kwargs = call_of(node)
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
        value = value_of(value)
        if not isinstance(value, _PLAIN):
            raise CannotRunAlone(f"a {type(value).__name__} among its arguments or results")
        return repr(value)

    def made_by(node: Node) -> str:
        if node not in described:
            described[node] = describe(node.meta.get("val"))
        return described[node]

    given = [*map(describe, args), *(f"{name}={describe(value)}" for name, value in sorted(kwargs.items()))]
    return f"{_name(node, target)}({', '.join(given)}) -> {made_by(node)}"


def call_of(node: Node) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Target and arguments; an input of the graph stands for a copy of it."""
    if node.op in GIVEN:
        return torch.ops.aten.clone.default, (node,), {}
    if not may_run(node):
        raise CannotRunAlone("it does more than compute")
    if is_higher_order(node):
        raise CannotRunAlone("it runs graphs of its own")
    return node.target, node.args, node.kwargs


def _name(node: Node, target: Any) -> str:
    if node.op == "call_module":
        return _describe_module(called_module(node))
    if isinstance(target, OpOverload):
        return str(target)
    name = rng.reference(node)
    if name is None:
        raise CannotRunAlone("its function has no name to be known by")
    return str(name)


def _describe_module(module: nn.Module) -> str:
    """Its parts with their plain attributes (``repr`` does not tell the number of heads), and its tensors."""
    parts = []
    for part in module.modules():
        kind = type(part)
        if not kind.__module__.startswith("torch.nn."):
            raise CannotRunAlone(f"{kind.__name__} is no module of PyTorch's own")
        plain = {name: value for name, value in vars(part).items() if isinstance(value, (*_PLAIN, tuple))}
        parts.append(f"{kind.__name__}{plain}")
    state = map(_layout, [*module.parameters(), *module.buffers()])
    return f"{', '.join(parts)} [{', '.join(state)}]"


def _layout(tensor: Tensor) -> str:
    if tensor.layout is not torch.strided or is_traceable_wrapper_subclass(tensor):
        raise CannotRunAlone(f"a {type(tensor).__name__} of layout {tensor.layout}")
    shape, stride = sizes_of(tensor)
    return f"{tensor.device.type} {str(tensor.dtype).removeprefix('torch.')}{shape}@{stride}"


def is_free(node: Node) -> bool:
    """True if the node's operator makes no storage and does nothing else."""
    is_pure = node.op.startswith("call") and may_run_twice(node)
    return is_selection(node) or (is_pure and not fresh_storages(node))


def value_of(value: Any) -> Any:
    """A symbol's value in the trace at hand, None for what only the data says; anything else as it is."""
    symbols = (torch.SymInt, torch.SymFloat, torch.SymBool)
    return value.node.hint if isinstance(value, symbols) else value


def bytes_made_up(node: Node) -> int:
    """Those of a made-up value in the place of the node's."""
    return sum(extent(tensor) * tensor.element_size() for tensor in tensors_of(node.meta.get("val")))


def bytes_to_run(node: Node) -> int:
    """Those of its operands and results, and of a module's own tensors."""
    module = called_module(node) if node.op == "call_module" else None
    state = () if module is None else (*module.parameters(), *module.buffers())
    return sum(map(bytes_made_up, (node, *node.all_input_nodes))) + sum(map(nbytes_of, state))


def is_too_large(node: Node) -> bool:
    """True if the node is of a model without memory, and too large to be run for a figure."""
    return bytes_to_run(node) > largest_to_run(node)


def extent(tensor: Tensor) -> int:
    """Elements from the tensor's first to its last, gaps included."""
    shape, stride = sizes_of(tensor)
    return 0 if 0 in shape else 1 + sum((size - 1) * step for size, step in zip(shape, stride))
