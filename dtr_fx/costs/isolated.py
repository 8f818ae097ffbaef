"""An operator run in isolation, on made-up tensors, whatever is being traced around it.

Floating-point tensors are random, since max pooling on equal numbers takes a third of its time.  Integers are
zero, which is a valid index, and booleans true, which is the most that a mask can select.

Requires: ``meta["val"]`` on every node.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import Node

from dtr_fx.passes.tensors import held_by, hint
from dtr_fx.torch_private import disable_current_modes, no_python_dispatcher, pytree


@contextlib.contextmanager
def outside_of_tracing(device: torch.device) -> Iterator[None]:
    """Real tensors and plain kernels while a compiler traces on fake ones; random generators are left alone.

    AOTAutograd has the Python dispatcher on, under which operators take up to four times as long, and some
    are decomposed and so take more memory.
    """
    with (
        disable_current_modes(),
        no_python_dispatcher(),
        torch.no_grad(),
        torch.random.fork_rng(devices=[device] if device.type == "cuda" else []),
        torch.cuda.device(device) if device.type == "cuda" else contextlib.nullcontext(),
    ):
        yield


class Maker:
    """Makes tensors up, the same ones every time, with generators of its own."""

    def __init__(self) -> None:
        self._generators: dict[torch.device, torch.Generator] = {}

    def arguments(self, arguments: Any) -> Any:
        """A node's arguments, with one made-up value in the place of each other node."""

        @functools.cache
        def value(node: Node) -> Any:
            return pytree.tree_map(self._leaf, node.meta.get("val"))

        return torch.fx.node.map_arg(arguments, value)

    def module(self, module: nn.Module) -> nn.Module:
        """A copy of the module with parameters and buffers that are made up."""
        made: dict[int, Any] = {id(state): self.tensor(state) for state in module.buffers()}
        for parameter in module.parameters():
            made[id(parameter)] = nn.Parameter(self.tensor(parameter), requires_grad=False)
        return deepcopy(module, made)

    def tensor(self, like: Tensor) -> Tensor:
        """A tensor of the same layout."""
        dtype, device, elements = like.dtype, like.device, extent(like)
        if dtype.is_floating_point or dtype.is_complex:
            if device not in self._generators:
                self._generators[device] = torch.Generator(device).manual_seed(0)
            made = torch.rand(elements, generator=self._generators[device], device=device).to(dtype)
        else:
            made = torch.full((elements,), int(dtype == torch.bool), dtype=dtype, device=device)
        return made.as_strided(*sizes(like))

    def _leaf(self, value: Any) -> Any:
        return self.tensor(value) if isinstance(value, Tensor) else known(value)


def fresh_storages(node: Node) -> dict[int, int]:
    """The storages that a node's operator makes, with their bytes; a view makes none."""
    old = {held.storage for used in node.all_input_nodes for held in held_by(used)}
    return {held.storage: held.nbytes for held in held_by(node) if held.storage not in old}


def known(value: Any) -> Any:
    """A symbol's value in the trace at hand, None for what only the data says; anything else as it is."""
    symbols = (torch.SymInt, torch.SymFloat, torch.SymBool)
    return value.node.hint if isinstance(value, symbols) else value


def sizes(tensor: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides in the trace at hand, in elements."""
    return tuple(map(hint, tensor.shape)), tuple(map(hint, tensor.stride()))


def extent(tensor: Tensor) -> int:
    """Elements from the tensor's first to its last, gaps included."""
    shape, stride = sizes(tensor)
    return 0 if 0 in shape else 1 + sum((size - 1) * step for size, step in zip(shape, stride))
