"""An operator by itself: run on made-up tensors, whatever is being traced, and all that decides its time.

Floats are random, since max pooling on equal numbers takes a third of its time; integers are zero, which is
a valid index, and booleans true, which is the most that a mask can select.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Node

from dtr_fx.passes import rng
from dtr_fx.passes.effects import may_run_twice
from dtr_fx.passes.modes import largest_to_run
from dtr_fx.passes.subgraphs import is_higher_order
from dtr_fx.passes.tensors import called_module, nbytes_of, sizes_of, tensors_of
from dtr_fx.torch_private import (
    OpOverload,
    disable_current_modes,
    is_traceable_wrapper_subclass,
    no_python_dispatcher,
    pytree,
    schema_of,
)


@contextlib.contextmanager
def outside_of_tracing(device: torch.device) -> Iterator[None]:
    """Real tensors and plain kernels while a compiler traces on fake ones; generators are left alone."""
    with on_real_tensors(device), generators_kept(device):
        yield


@contextlib.contextmanager
def on_real_tensors(device: torch.device) -> Iterator[None]:
    """Real tensors and plain kernels."""
    # AOTAutograd has the Python dispatcher on, under which operators take up to four times as long, and some
    # are decomposed and so take more memory.
    with (
        disable_current_modes(),
        no_python_dispatcher(),
        torch.no_grad(),
        torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext(),
    ):
        yield


def generators_kept(device: torch.device) -> contextlib.AbstractContextManager[None]:
    """The generators that draw in between are afterwards as they were before."""
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


# Bytes of a kept state, and one to be given back.
KEPT_BYTES = 2 * 5056
# Elements that are drawn of a tensor, and the types that can be.
_PIECE = 4096
_DRAWN = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class Maker:
    """Makes tensors up, the same ones every time, with generators of its own."""

    def __init__(self) -> None:
        self._generators: dict[torch.device, torch.Generator] = {}

    def value(self, like: Any) -> Any:
        """A made-up value in the place of a node's."""
        return pytree.tree_map(self._leaf, like)

    def arguments(self, arguments: Any) -> Any:
        """A node's arguments, with one made-up value in the place of each other node."""

        @functools.cache
        def value(node: Node) -> Any:
            return self.value(node.meta.get("val"))

        return torch.fx.node.map_arg(arguments, value)

    def module(self, module: nn.Module) -> nn.Module:
        """A copy of the module with parameters and buffers that are made up."""
        made: dict[int, Any] = {id(state): self.tensor(state) for state in module.buffers()}
        for parameter in module.parameters():
            made[id(parameter)] = nn.Parameter(self.tensor(parameter), requires_grad=False)
        return deepcopy(module, made)

    def tensor(self, like: Tensor) -> Tensor:
        """A tensor of the same layout."""
        dtype, device, elements = like.dtype, like.device, _extent(like)
        if dtype.is_floating_point or dtype.is_complex:
            made = torch.empty(elements, dtype=dtype, device=device)
            self._fill(made)
        else:
            made = torch.full((elements,), int(dtype == torch.bool), dtype=dtype, device=device)
        return made.as_strided(*sizes_of(like))

    def _fill(self, made: Tensor) -> None:
        """Random numbers, a piece of them again and again: to draw each takes ten times as long."""
        device = made.device
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(0)
        piece = made[:_PIECE]
        if made.dtype in _DRAWN:
            piece.uniform_(generator=self._generators[device])
        else:
            piece.copy_(torch.rand(len(piece), generator=self._generators[device], device=device))
        whole = len(made) // _PIECE * _PIECE
        if whole:
            made[:whole].view(-1, _PIECE)[1:] = piece
            made[whole:] = piece[: len(made) - whole]

    def _leaf(self, value: Any) -> Any:
        return self.tensor(value) if isinstance(value, Tensor) else value_of(value)


def bytes_made_up(node: Node) -> int:
    """Those of a made-up value in the place of the node's."""
    return sum(_extent(tensor) * tensor.element_size() for tensor in tensors_of(node.meta.get("val")))


def bytes_to_run(node: Node) -> int:
    """Those of its operands and results, and of a module's own tensors."""
    module = called_module(node) if node.op == "call_module" else None
    state = () if module is None else (*module.parameters(), *module.buffers())
    return sum(map(bytes_made_up, (node, *node.all_input_nodes))) + sum(map(nbytes_of, state))


def is_too_large(node: Node) -> bool:
    """True if the node is of a model without memory, and too large to be run for a figure."""
    return bytes_to_run(node) > largest_to_run(node)


def prepared(node: Node, room: float) -> Callable[[], Any]:
    """The node's operator on made-up tensors, which live as long as the function and fit into ``room``."""
    if not (node.op in _GIVEN or may_run_twice(node)):
        raise CannotRunAlone("it may not run twice")
    if is_too_large(node):
        raise CannotRunAlone("it is large, and the model has no memory")
    needed = bytes_to_run(node)
    # As much again for what the operator takes for itself.
    if 2 * needed > room:
        raise CannotRunAlone(f"{needed} bytes of operands are too many for {room}")
    return on_made_up(node, *_call(node))


def on_made_up(node: Node, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Callable[[], Any]:
    """A call for a node, with made-up tensors in the place of what its arguments name."""
    maker = Maker()
    args, kwargs = maker.arguments((args, kwargs))
    if node.op == "call_module":
        target = maker.module(called_module(node))
    elif node.op == "call_method":
        target, args = getattr(args[0], target), args[1:]
    return lambda: target(*args, **kwargs)


def value_of(value: Any) -> Any:
    """A symbol's value in the trace at hand, None for what only the data says; anything else as it is."""
    symbols = (torch.SymInt, torch.SymFloat, torch.SymBool)
    return value.node.hint if isinstance(value, symbols) else value


def _extent(tensor: Tensor) -> int:
    """Elements from the tensor's first to its last, gaps included."""
    shape, stride = sizes_of(tensor)
    return 0 if 0 in shape else 1 + sum((size - 1) * step for size, step in zip(shape, stride))


# --- by what an operator is known --------------------------------------------------------------------------

_PLAIN = (
    bool, int, float, complex, str, type(None), type(...),
    torch.dtype, torch.device, torch.layout, torch.memory_format,
)  # fmt: skip


_GIVEN = ("placeholder", "get_attr")


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
    target, args, kwargs = _call(node)
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


def _call(node: Node) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Target and arguments; an input of the graph stands for a copy of it."""
    if node.op in _GIVEN:
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
