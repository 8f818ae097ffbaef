"""Models without memory, on ``meta`` or made of fake tensors: what is traced in their place."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import CellType
from typing import Any

import torch
from torch import Tensor, nn

from dtr_fx.passes.modes import WithoutMemory
from dtr_fx.torch_private import FakeTensor, FakeTensorMode, pytree


def has_no_memory(tensor: Tensor) -> bool:
    return tensor.is_meta or isinstance(tensor, FakeTensor)


def fake(tensor: Tensor, mode: FakeTensorMode) -> Tensor:
    """As the tensor, without its memory; one of no device is taken for one of the CPU."""
    if not has_no_memory(tensor):
        return mode.from_tensor(tensor.detach(), static_shapes=True)
    device = "cpu" if tensor.device.type == "meta" else tensor.device
    with mode:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)


@contextlib.contextmanager
def traceable(model: Callable[..., Any], inputs: Any) -> Iterator[Any]:
    """Make a model that has no memory one that can be traced with its backward pass, as long as this lasts.

    It is the inputs to trace it with: both as they were, or tensors of a ``WithoutMemory`` in their place.
    """
    modules = _modules_of(model)
    state = [
        (module, name, value)
        for module in modules
        for values in (vars(module)["_parameters"], vars(module)["_buffers"], vars(module))
        for name, value in values.items()
        if isinstance(value, Tensor)
    ]
    tensors = [value for _, _, value in state]
    if not any(map(has_no_memory, [*tensors, *_tensors(inputs)])):
        yield inputs
        return
    mode = _mode_for([*tensors, *_tensors(inputs)])
    stand_ins = {id(value): _stand_in(value, mode) for value in (*tensors, *_tensors(inputs))}
    try:
        for module, name, value in state:
            setattr(module, name, stand_ins[id(value)])
        with mode:
            yield pytree.tree_map_only(Tensor, lambda value: stand_ins[id(value)], inputs)
    finally:
        for module, name, value in state:
            setattr(module, name, value)


def _mode_for(tensors: Iterable[Tensor]) -> WithoutMemory:
    """A mode that runs what those of the tensors run; on ``meta`` that is little."""
    absent = [tensor for tensor in tensors if has_no_memory(tensor)]
    modes = {tensor.fake_mode for tensor in absent if isinstance(tensor, FakeTensor)}
    given = [mode.largest for mode in modes if isinstance(mode, WithoutMemory)]
    is_known = given and not any(tensor.is_meta for tensor in absent)
    return WithoutMemory(min(given)) if is_known else WithoutMemory()


def _stand_in(tensor: Tensor, mode: FakeTensorMode) -> Tensor:
    found = fake(tensor, mode)
    if isinstance(tensor, nn.Parameter):
        return nn.Parameter(found, tensor.requires_grad)
    return found.requires_grad_(tensor.requires_grad)


def _tensors(inputs: Any) -> list[Tensor]:
    leaves = pytree.tree_leaves(dict(inputs) if isinstance(inputs, Mapping) else inputs)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def _modules_of(model: Callable[..., Any]) -> list[nn.Module]:
    """Of a module its parts, of a function those of the modules that it is bound to or has in its closure."""
    cells = (cell.cell_contents for cell in getattr(model, "__closure__", None) or () if cell != CellType())
    roots = (model, getattr(model, "__self__", None), *cells)
    parts = (part for root in roots if isinstance(root, nn.Module) for part in root.modules())
    return list(dict.fromkeys(parts))
