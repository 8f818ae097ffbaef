"""The tensors in a node's value, ``meta["val"]``, their storages, and their bytes on a device."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import repeat
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch.fx import GraphModule, Node

from dtr_fx.torch_private import FakeTensor, pytree, unset_fake_temporarily
from dtr_fx.torch_private import storage_key as key_of

_T = TypeVar("_T")

UPDATE = "is_update"  # the tag of what an optimizer does, beside those of AOTAutograd


def described(node: Node, value: Any) -> dict[str, Any]:
    """What ``meta`` says of a node, for one that stands for it with another value."""
    own = ("val", "tensor_meta", "dtr_held", "dtr_facts")
    return {"val": value} | {name: fact for name, fact in node.meta.items() if name not in own}


def is_selection(node: Node) -> bool:
    """True if the node takes an element of another node's tuple, list or mapping."""
    return (
        node.op == "call_function"
        and node.target is operator.getitem
        and isinstance(node.args[0], Node)
        and not isinstance(node.args[0].meta.get("val"), torch.Tensor)
    )


def is_backward(node: Node) -> bool:
    """True if AOTAutograd made the node for the backward pass."""
    return node.meta.get("partitioner_tag") in ("is_backward", "must_be_in_backward")


def is_update(node: Node) -> bool:
    """True if the node is of an optimizer's update, in a whole step."""
    return node.meta.get("partitioner_tag") == UPDATE


def called_module(node: Node) -> torch.nn.Module:
    """The module that a ``call_module`` node calls."""
    return node.graph.owning_module.get_submodule(str(node.target))  # type: ignore[union-attr]


def counts(node: Node) -> bool:
    """True of an input that takes memory by the budget: one that is read, and any of a whole step."""
    return bool(node.users) or bool(node.meta.get("dtr_counts"))


def constant_kind(node: Node) -> str:
    """The kind of what a ``placeholder`` or ``get_attr`` node gives, as reports name it."""
    if node.meta.get("dtr_state"):
        return "optimizer"
    return "parameter" if node.op == "get_attr" or node.meta.get("dtr_parameter") else "input"


def parameters_first(given: Iterable[_T], kind_of: Callable[[_T], str]) -> list[_T]:
    """What is there before a graph runs in the order in which a training loop makes it."""
    return sorted(given, key=lambda each: kind_of(each) != "parameter")


def is_tangent(node: Node) -> bool:
    """True if AOTAutograd passes this input to the backward pass only."""
    return node.op == "placeholder" and is_backward(node)


def tensors_of(value: Any) -> list[torch.Tensor]:
    """The tensors in a node's value, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if value is None:
        return []
    if isinstance(value, (tuple, list)):
        return [tensor for leaf in value for tensor in tensors_of(leaf)]
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def storage_key(tensor: torch.Tensor) -> int:
    """The key that two tensors share when they share memory; a tensor without a storage has its own."""
    try:
        return key_of(tensor.untyped_storage())
    except (NotImplementedError, RuntimeError):
        return id(tensor)


class Held(NamedTuple):
    """A held tensor: its storage's key, the type of its device, and the bytes of the storage there.

    ``elements`` are the bytes of its elements, which are those that reading or writing it moves.
    """

    storage: int
    device: str
    nbytes: int
    elements: int


def held_by(node: Node) -> list[Held]:
    """The storages of the tensors in a node's value, in order; looked up once for each value."""
    value = node.meta.get("val")
    found = node.meta.get("dtr_held")
    if found is None or found[0] is not value:
        held = list(map(held_by_tensor, tensors_of(value)))
        if held and getattr(node.target, "overloadpacket", None) in _COPIES_STORAGE:
            whole = held_by(cast(Node, node.args[0]))[0].nbytes
            held = [held[0]._replace(nbytes=max(whole, held[0].nbytes))]
        if held and getattr(node.target, "overloadpacket", None) in _BATCH_NORMS:
            held[1:3] = map(_of_statistics, held[1:3], repeat(node))
        found = node.meta["dtr_held"] = value, held
    return cast("list[Held]", found[1])


# Of a view these copy all of its storage, which their fake values do not show.
_aten = torch.ops.aten
_BATCH_NORMS = (
    _aten._native_batch_norm_legit,
    _aten._native_batch_norm_legit_functional,
    _aten.native_batch_norm,
)
_COPIES_STORAGE = (_aten.copy, _aten.slice_scatter, _aten.select_scatter, _aten.diagonal_scatter)


def _of_statistics(held: Held, node: Node) -> Held:
    """Batch norm on a CPU keeps them in the type of its weight; their fake values have the input's."""
    if held.device != "cpu":
        return held
    read = [tensor for used in node.all_input_nodes for tensor in tensors_of(used.meta.get("val"))]
    width = max(tensor.element_size() for tensor in read) // read[0].element_size()
    return held._replace(nbytes=held.nbytes * width, elements=held.elements * width)


def held_by_tensor(tensor: torch.Tensor) -> Held:
    """The storage of one tensor."""
    device = tensor.device
    return Held(storage_key(tensor), device.type, storage_bytes(tensor, device), nbytes_of(tensor))


def storage_keys(node: Node) -> list[int]:
    """The storages of the tensors in a node's value, in order; see ``storage_key``."""
    return [held.storage for held in held_by(node)]


def fresh_storages(node: Node) -> dict[int, int]:
    """The storages that a node's operator makes, with their bytes; a view makes none."""
    old = {held.storage for used in node.all_input_nodes for held in held_by(used)}
    return {held.storage: held.nbytes for held in held_by(node) if held.storage not in old}


def is_view(node: Node) -> bool:
    """True if the node's value lies in the storage of something that it reads."""
    made = set(storage_keys(node))
    return bool(made) and any(made.intersection(storage_keys(used)) for used in node.all_input_nodes)


def view_like(tensor: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    """The view of ``base`` that the tensor is of its own storage."""
    if tensor.layout is not torch.strided:
        return base
    at = base.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride()
    return _made_like(base, lambda device: torch.empty(0, dtype=tensor.dtype, device=device).set_(*at))


def empty_like(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor laid out as this one, in a storage of its own."""
    if tensor.layout is not torch.strided:
        return torch.empty_like(tensor)
    layout = tensor.shape, tensor.stride()
    return _made_like(tensor, lambda device: torch.empty_strided(*layout, dtype=tensor.dtype, device=device))


def _made_like(like: torch.Tensor, make: Callable[[torch.device], torch.Tensor]) -> torch.Tensor:
    """A tensor as real, or as fake, as another; by hand: the mode itself takes five times as long."""
    if not isinstance(like, FakeTensor):
        return make(like.device)
    with unset_fake_temporarily():
        return FakeTensor(like.fake_mode, make(torch.device("meta")), like.fake_device)


# Devices whose allocators hand out what is asked for; those of cards have blocks of 512 bytes.
_EXACT = ("cpu", "meta")


def storage_bytes(tensor: torch.Tensor, device: torch.device) -> int:
    """Bytes of the tensor's storage on ``device``, as its allocator hands them out; 0 on another device."""
    if tensor.device.type != device.type or tensor.layout is not torch.strided:
        return 0
    nbytes = hint(tensor.untyped_storage().nbytes())
    return nbytes if device.type in _EXACT else -(-nbytes // 512) * 512


def nbytes_of(tensor: torch.Tensor) -> int:
    """Bytes of the tensor's elements, in the trace at hand."""
    return hint(tensor.numel()) * tensor.element_size()


def hint(size: int | torch.SymInt) -> int:
    """The size in the trace at hand, without a guard on it (``SymNode.hint``).

    Of a size that only the data tell it is the most that it can be, as of ``nonzero``; 0 if there is no most.
    """
    if isinstance(size, int):
        return size
    if size.node.hint is not None:
        return int(size.node.hint)
    most = size.node.shape_env.bound_sympy(size.node.expr).upper
    return int(most) if most.is_Integer else 0


def sizes_of(tensor: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides in the trace at hand, in elements."""
    return tuple(map(hint, tensor.shape)), tuple(map(hint, tensor.stride()))


def layout(tensor: torch.Tensor) -> tuple[str, ...]:
    """Shape, strides, type, device and storage, as text: symbols for sizes are not to be compared."""
    nbytes = tensor.untyped_storage().nbytes()
    return tuple(map(str, (tensor.shape, tensor.stride(), tensor.dtype, tensor.device, nbytes)))


def graph_device(gm: GraphModule) -> torch.device:
    """The device that holds most of the graph's tensors."""
    values = (node.meta.get("val") for node in gm.graph.nodes)
    count = Counter(value.device for value in values if isinstance(value, torch.Tensor))
    accelerators = [device for device in count if device.type not in ("cpu", "meta")]
    return max(accelerators or count or [torch.device("cpu")], key=count.__getitem__)


def is_here(device: torch.device) -> bool:
    """False of a device that a graph is planned for on another machine."""
    module = getattr(torch, device.type, None)  # none of "meta"
    return module is not None and bool(module.is_available())


def constant_bytes(gm: GraphModule) -> int:
    """Bytes of a graph's inputs that are there before it runs, and of what modules read."""
    given = (node for node in gm.graph.nodes if node.op in ("placeholder", "get_attr"))
    held = [held for node in given if counts(node) and not is_tangent(node) for held in held_by(node)]
    held += [held_by_tensor(tensor) for _, tensor in module_state(gm)]
    return sum({each.storage: each.nbytes for each in held}.values())


def module_state(gm: GraphModule) -> list[tuple[str, torch.Tensor]]:
    """Parameters and buffers that modules read without a node for it."""
    if not any(node.op == "call_module" for node in gm.graph.nodes):
        return []
    named = {node.target for node in gm.graph.find_nodes(op="get_attr")}
    tensors = [*gm.named_parameters(), *gm.named_buffers()]
    return [(name, tensor) for name, tensor in tensors if name not in named]


def is_movable(value: object) -> bool:
    """True of a tensor of fixed sizes that fills its storage: one that can be moved out, and made anew.

    >>> is_movable(torch.ones(2, 3).t()), is_movable(torch.ones(2, 3)[:, 1])
    (True, False)
    """
    if type(value) is not torch.Tensor and not hasattr(value, "fake_mode"):
        return False
    assert isinstance(value, torch.Tensor)
    dims = (*value.shape, *value.stride(), value.storage_offset())
    if value.layout != torch.strided or not all(isinstance(dim, int) for dim in dims):
        return False
    is_whole = value.numel() * value.element_size() == value.untyped_storage().nbytes()
    return is_whole and not value.storage_offset() and not (value.is_conj() or value.is_neg())
