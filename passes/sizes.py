"""Numbers for the symbols in a graph's sizes, as if it had been traced with tensors of these sizes."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import torch
from sympy import Expr, Integer, Symbol
from torch import SymBool, SymFloat, SymInt, Tensor
from torch.fx import GraphModule

from dtr_fx.errors import GraphError
from dtr_fx.passes.propagate import static_mode
from dtr_fx.passes.tensors import storage_key
from dtr_fx.torch_private import FakeTensor, pytree, unset_fake_temporarily


def give_sizes(gm: GraphModule, values: Mapping[Symbol, Integer]) -> None:
    """Put fake tensors of these sizes into ``meta["val"]``, which share storages as those before did.

    GraphError for a tensor that is no strided one, or has a size that no value tells.
    """
    mode = static_mode()
    meta = torch.device("meta")
    storages: dict[int, torch.UntypedStorage] = {}

    @functools.cache
    def value_of(expression: Expr) -> Any:
        value = expression.xreplace(values)
        if value.free_symbols:
            raise GraphError(f"the data tell {expression}, not the sizes of the inputs")
        return value

    def number(size: int | SymInt) -> int:
        return int(value_of(size.node.expr)) if isinstance(size, SymInt) else size

    def sized(value: Any) -> Any:
        if isinstance(value, SymInt):
            return number(value)
        if isinstance(value, (SymBool, SymFloat)):
            kind = bool if isinstance(value, SymBool) else float
            return kind(value_of(value.node.expr))
        if not isinstance(value, FakeTensor):
            return value
        if value.layout is not torch.strided:
            raise GraphError(f"a tensor is {value.layout}: its sizes cannot be given")
        key = storage_key(value)
        if key not in storages:
            nbytes = number(value.untyped_storage().nbytes())
            storages[key] = torch.empty(nbytes, dtype=torch.uint8, device=meta).untyped_storage()
        shape, stride = map(number, value.shape), map(number, value.stride())
        tensor = torch.empty(0, dtype=value.dtype, device=meta)
        tensor.set_(storages[key], number(value.storage_offset()), tuple(shape), tuple(stride))
        return FakeTensor(mode, tensor, value.fake_device)

    with unset_fake_temporarily(), torch.no_grad():
        for node in gm.graph.nodes:
            if "val" in node.meta:
                value = node.meta["val"]
                is_one = isinstance(value, (Tensor, SymInt))
                node.meta["val"] = sized(value) if is_one else pytree.tree_map(sized, value)
