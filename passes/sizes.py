"""Other values in a traced graph, as if it had been traced at other sizes, or on another device."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from sympy import Expr, Integer, Symbol
from torch import SymBool, SymFloat, SymInt, Tensor
from torch.fx import GraphModule
from torch.fx.node import map_aggregate

from dtr_fx.errors import GraphError
from dtr_fx.passes.modes import static_mode
from dtr_fx.passes.tensors import hint, nbytes_of, storage_key, tensors_of
from dtr_fx.torch_private import FakeTensor, FakeTensorMode, pytree, unset_fake_temporarily


class _Resized:
    """Tensors of other sizes, which share storages as those that they stand for."""

    def __init__(self) -> None:
        self._storages: dict[int, torch.UntypedStorage] = {}

    def tensor(
        self,
        old: FakeTensor,
        mode: FakeTensorMode,
        nbytes: int,
        offset: int,
        shape: Iterable[int],
        stride: Iterable[int],
    ) -> FakeTensor:
        key = storage_key(old)
        if key not in self._storages:
            self._storages[key] = torch.empty(nbytes, dtype=torch.uint8, device="meta").untyped_storage()
        tensor = torch.empty(0, dtype=old.dtype, device="meta")
        tensor.set_(self._storages[key], offset, tuple(shape), tuple(stride))
        return FakeTensor(mode, tensor, old.fake_device)


class _Numbers:
    """The numbers that sizes are under the ``values`` of their symbols."""

    def __init__(self, values: Mapping[Symbol, Integer]) -> None:
        self._values = values
        self._known: dict[Expr, Any] = {}

    def of(self, expression: Expr) -> Any:
        if expression not in self._known:
            value = expression.xreplace(self._values)
            if value.free_symbols:
                raise GraphError(f"the data tell {expression}, not the sizes of the inputs")
            self._known[expression] = value
        return self._known[expression]

    def size(self, size: int | SymInt) -> int:
        return int(self.of(size.node.expr)) if isinstance(size, SymInt) else size


def give_sizes(gm: GraphModule, values: Mapping[Symbol, Integer]) -> None:
    """Put fake tensors of these sizes into ``meta["val"]``, which share storages as those before did.

    GraphError for a tensor that is no strided one, or has a size that no value tells.
    """
    mode, numbers, resized = static_mode(), _Numbers(values), _Resized()

    def sized(value: Any) -> Any:
        if isinstance(value, SymInt):
            return numbers.size(value)
        if isinstance(value, (SymBool, SymFloat)):
            kind = bool if isinstance(value, SymBool) else float
            return kind(numbers.of(value.node.expr))
        if not isinstance(value, FakeTensor):
            return value
        if value.layout is not torch.strided:
            raise GraphError(f"a tensor is {value.layout}: its sizes cannot be given")
        nbytes, offset = map(numbers.size, (value.untyped_storage().nbytes(), value.storage_offset()))
        shape, stride = map(numbers.size, value.shape), map(numbers.size, value.stride())
        return resized.tensor(value, mode, nbytes, offset, shape, stride)

    with unset_fake_temporarily(), torch.no_grad():
        for node in gm.graph.nodes:
            if "val" in node.meta:
                value = node.meta["val"]
                is_one = isinstance(value, (Tensor, SymInt))
                node.meta["val"] = sized(value) if is_one else pytree.tree_map(sized, value)


def extrapolate(graphs: Sequence[GraphModule], traced: int, batch: int) -> None:
    """Put values into the first graph's ``meta["val"]`` as for another batch than the one that was traced.

    The other graphs are those of twice and of three times that: by two graphs sizes are on a line, by three
    on a parabola.  GraphError where the graphs differ in more than sizes.
    """
    _check_alike(graphs)
    more, resized = batch - traced, _Resized()

    def along(*sizes: int | SymInt) -> int:
        first, second, *third = map(hint, sizes)
        bend = third[0] - 2 * second + first if third else 0
        above = 2 * traced * more * (second - first) + more * (more - traced) * bend
        return first + above // (2 * traced**2)

    def sized(*values: Any) -> Any:
        if not isinstance(values[0], FakeTensor):
            return values[0]
        nbytes = along(*(value.untyped_storage().nbytes() for value in values))
        offset = along(*(value.storage_offset() for value in values))
        shape = map(along, *(value.shape for value in values))
        stride = map(along, *(value.stride() for value in values))
        return resized.tensor(values[0], values[0].fake_mode, nbytes, offset, shape, stride)

    with unset_fake_temporarily(), torch.no_grad():
        for node, *twins in zip(*(gm.graph.nodes for gm in graphs)):
            if "val" in node.meta:
                values = (twin.meta["val"] for twin in twins)
                node.meta["val"] = pytree.tree_map(sized, node.meta["val"], *values)


def grows_faster(gm: GraphModule, other: GraphModule) -> bool:
    """True if a tensor is more than twice as large in the other graph, that of twice the batch."""
    _check_alike([gm, other])

    def sizes(gm: GraphModule) -> list[int]:
        return [nbytes_of(each) for node in gm.graph.nodes for each in tensors_of(node.meta.get("val"))]

    return any(twin > 2 * size for size, twin in zip(sizes(gm), sizes(other)))


def _check_alike(graphs: Iterable[GraphModule]) -> None:
    """GraphError where the graphs have other operators than each other."""
    first, *others = ([(node.op, node.target) for node in gm.graph.nodes] for gm in graphs)
    if any(other != first for other in others):
        raise GraphError(
            "the operators differ with the batch, so that none is planned for batches at large: give a "
            "factory that has no argument of that name"
        )


def put_on(gm: GraphModule, device: torch.device) -> None:
    """Have the graph's tensors on a device, which need not be here, in the storages that they share."""

    def moved(value: Any) -> Any:
        if isinstance(value, torch.device):
            return device
        if not isinstance(value, FakeTensor) or value.layout is not torch.strided:
            return value
        tensor = torch.empty(0, dtype=value.dtype, device="meta")
        tensor.set_(value.untyped_storage(), value.storage_offset(), value.shape, value.stride())
        return FakeTensor(value.fake_mode, tensor, device)

    with unset_fake_temporarily(), torch.no_grad():
        for node in gm.graph.nodes:
            node.args, node.kwargs = map_aggregate((node.args, node.kwargs), moved)
            if "val" in node.meta:
                node.meta["val"] = pytree.tree_map(moved, node.meta["val"])
