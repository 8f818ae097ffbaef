"""Bytes that an operator allocates for itself while it runs, and frees before it returns.

A rule says how many: mostly none, else a formula read off the kernel (checked on torch 2.13, CPU).  What no
rule covers is measured, see ``measured_workspaces``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node

from dtr_fx.passes.liveness import liveness
from dtr_fx.passes.subgraphs import InSlices, graphs_of, is_higher_order
from dtr_fx.passes.tensors import (
    fresh_storages,
    graph_device,
    held_by,
    hint,
    is_tangent,
    nbytes_of,
    sizes_of,
    storage_keys,
    tensors_of,
)
from dtr_fx.report import Point
from dtr_fx.torch_private import OpOverload, schema_of

aten = torch.ops.aten

# A Python number among the arguments becomes a 0-dimensional tensor or two for the kernel's sake.
SCALARS = 24


def memory_timeline(gm: GraphModule) -> list[Point]:
    """The bytes that are live at each node of a graph as it is, on the device that holds most of it."""
    own = workspaces(node for node in gm.graph.nodes if node.op.startswith("call"))
    return liveness(gm, {node.name: nbytes for node, nbytes in own.items()}, graph_device(gm))


def workspaces(nodes: Iterable[Node]) -> dict[Node, int]:
    """Hidden temporary bytes of each operator, those of other devices than the CPU taken as none."""
    by_rule = {node: _inside(node) if is_higher_order(node) else _by_rule(node) for node in nodes}
    unknown = [node for node, nbytes in by_rule.items() if nbytes is None]
    measured: dict[Node, int] = {}
    if unknown:
        # Only here: most graphs have rules for all that they call.
        from dtr_fx.costs.measured_workspaces import measured_workspaces

        measured = measured_workspaces(unknown)
    return {node: measured[node] if nbytes is None else nbytes for node, nbytes in by_rule.items()}


def _inside(node: Node) -> int:
    """The most that one of its graphs holds above its inputs, and where it is a branch above its outputs."""
    if isinstance(node.target, InSlices):
        return above_inputs(node.target.runs) + node.target.accumulator_bytes
    made = _fresh_bytes(node) if node.target is torch.ops.higher_order.cond else 0
    return max([0, *(above_inputs(gm) - made for gm in graphs_of(node))])


def least_room(graph: Graph) -> int:
    """Bytes beside its inputs that no plan for a graph does without, as one operator needs them."""
    calls = [node for node in graph.nodes if node.op.startswith("call")]
    own = workspaces(calls)
    given = {key for node in graph.nodes if _is_given(node) for key in storage_keys(node)}

    def beside_inputs(node: Node) -> int:
        touched = (held for used in (node, *node.all_input_nodes) for held in held_by(used))
        sizes = {held.storage: held.nbytes for held in touched}
        return own[node] + sum(nbytes for storage, nbytes in sizes.items() if storage not in given)

    return max(map(beside_inputs, calls))


def _is_given(node: Node) -> bool:
    """True if what the node gives is there before the graph runs."""
    return node.op in ("placeholder", "get_attr") and not is_tangent(node)


def above_inputs(gm: GraphModule) -> int:
    """The most bytes that a graph holds at once beside its inputs."""
    device = graph_device(gm).type
    read = (node for node in gm.graph.find_nodes(op="placeholder") if node.users)
    held = [held for node in read for held in held_by(node) if held.device == device]
    given = sum({each.storage: each.nbytes for each in held}.values())
    return max((point.live for point in memory_timeline(gm)), default=given) - given


def _by_rule(node: Node) -> int | None:
    """None where no rule covers the operator."""
    target = node.target
    held = held_by(node) or [held for used in node.all_input_nodes for held in held_by(used)]
    if held and held[0].device != "cpu":
        return 0
    is_made = bool(fresh_storages(node))
    if not isinstance(target, OpOverload) or target.namespace != "aten":
        return None if is_made else 0
    if not is_made:
        return SCALARS if schema_of(target).is_mutable else 0
    rule = _RULES.get(target.overloadpacket)
    return None if rule is None else rule(node)


def _inputs(node: Node) -> list[Tensor]:
    return [tensor for source in node.all_input_nodes for tensor in tensors_of(source.meta.get("val"))]


def _first_input(node: Node) -> Tensor:
    return cast(Tensor, cast(Node, node.args[0]).meta["val"])


def _fresh_bytes(node: Node) -> int:
    return sum(fresh_storages(node).values())


# --- rules -------------------------------------------------------------------------------------------------
# A rule answers None where it does not apply: then the operator is measured.

_Rule = Callable[[Node], "int | None"]


def _none(node: Node) -> int | None:
    return SCALARS


def _plain(node: Node) -> int | None:
    """Nothing, if all operands are of one floating type: kernels copy an operand that they must convert."""
    operands = [*_inputs(node), *tensors_of(node.meta.get("val"))]
    types = {tensor.dtype for tensor in operands if tensor.dim() > 0}
    if not types or (len(types) == 1 and types <= _FLOATS):
        return SCALARS
    # mul(x, mask) converts its mask; where and comparisons do not.
    takes_bool = node.target.overloadpacket in _TAKES_BOOL  # type: ignore[union-attr]
    selectors = {torch.bool} if takes_bool else set()
    return SCALARS if len(types - {torch.bool}) == 1 and types <= _FLOATS | selectors else None


_FLOATS = {torch.float32, torch.float64, torch.bfloat16, torch.float16}
_TAKES_BOOL = {
    aten.where, aten.masked_fill, aten.eq, aten.ne, aten.lt, aten.le, aten.gt, aten.ge,
    aten.logical_not, aten.logical_and, aten.logical_or, aten.bitwise_not, aten.bitwise_and, aten.bitwise_or,
}  # fmt: skip


def _full_precision(node: Node) -> int | None:
    """Nothing, in single and double precision: low precision is accumulated in a wider copy."""
    wide = all(tensor.dtype in (torch.float32, torch.float64) for tensor in _inputs(node))
    return _plain(node) if wide else None


def _same_layout(node: Node) -> int | None:
    """Nothing, if moreover the operands are laid out alike: kernels that want them contiguous copy them."""
    return _plain(node) if _are_contiguous(node) else None


def _softmax(node: Node) -> int | None:
    return _full_precision(node) if _are_contiguous(node) else None


def _with_indices(node: Node) -> int | None:
    return SCALARS if _are_contiguous(node) else None


def _are_contiguous(node: Node) -> bool:
    return all(tensor.is_contiguous() for tensor in _inputs(node))


def _matmul(node: Node) -> int | None:
    """Nothing, where BLAS takes the operands as they are; oneDNN has low precision and its own scratchpad."""
    operands = _inputs(node)
    if any(tensor.dtype not in (torch.float32, torch.float64) for tensor in operands):
        return None
    is_copied = any(bias.dim() > 1 and not bias.is_contiguous() for bias in operands[:-2])
    return SCALARS if not is_copied and all(map(_blas_reads, operands)) else None


def _blas_reads(tensor: Tensor) -> bool:
    if tensor.dim() < 2:
        return True
    shape, stride = sizes_of(tensor)
    (rows, columns), (down, across) = shape[-2:], stride[-2:]
    return (
        (across == 1 and down >= max(1, columns))
        or (down == 1 and across >= max(1, rows))
        or rows * columns <= 1
    )


def _copy(node: Node) -> int | None:
    """A transposed matrix is copied by way of a 60×60 tile."""
    sources, [copy] = _inputs(node), tensors_of(node.meta.get("val"))
    tiled = copy.dim() == 2 and hint(copy.numel()) >= 3600 and copy.dtype == sources[0].dtype
    transposed = sizes_of(sources[0])[1] != sizes_of(copy)[1]
    return SCALARS + (3600 * copy.element_size() if tiled and transposed else 0)


def _dropout(node: Node) -> int | None:
    """A mask in floating point, before it becomes booleans."""
    training = node.args[2] if len(node.args) > 2 else node.kwargs.get("train")
    return SCALARS + (nbytes_of(_first_input(node)) if training is not False else 0)


def _dropout_backward(node: Node) -> int | None:
    """The mask in floating point; or the product with it, when that is scaled."""
    return SCALARS + nbytes_of(_first_input(node))


def _layer_norm_backward(node: Node) -> int | None:
    """Partial sums of the two parameter gradients for each thread."""
    if not _are_contiguous(node):
        return None
    normalized = cast("list[Any]", node.args[2])
    width = math.prod(hint(size.meta["val"] if isinstance(size, Node) else size) for size in normalized)
    return 2 * torch.get_num_threads() * width * max(tensor.element_size() for tensor in _inputs(node))


def _safe_softmax(node: Node) -> int | None:
    """Which elements, and which rows, are masked."""
    x = _first_input(node)
    count = hint(x.numel())
    rows = count // max(1, hint(x.shape[node.args[1]])) if x.dim() else 1  # type: ignore[index]
    return SCALARS + count + rows if _same_layout(node) is not None else None


def _opaque(node: Node) -> int | None:
    """As much again as the outputs: it crashes on anything but what its forward kernel wrote."""
    return _fresh_bytes(node)


_OPERATORS: dict[_Rule, str] = {
    _plain: """
        abs add sub rsub mul div neg exp log log1p sqrt rsqrt reciprocal sin cos tanh sigmoid relu silu pow
        erf clamp clamp_min clamp_max maximum minimum where lerp addcmul addcdiv leaky_relu eq
        ne lt le gt ge logical_not logical_and logical_or bitwise_not bitwise_and bitwise_or
        sigmoid_backward tanh_backward threshold_backward leaky_relu_backward hardtanh hardtanh_backward cat
        stack constant_pad_nd select_backward flip
    """,
    _full_precision: "sum mean amax amin",
    _same_layout: """
        gelu gelu_backward silu_backward native_layer_norm native_group_norm masked_fill slice_backward
    """,
    _softmax: "_softmax _log_softmax _softmax_backward_data _log_softmax_backward_data",
    _none: """
        zeros ones full empty arange scalar_tensor zeros_like ones_like full_like empty_like new_zeros
        new_ones new_full new_empty empty_strided new_empty_strided rand rand_like randn randn_like
        _unsafe_view bernoulli
    """,
    _with_indices: """
        embedding embedding_dense_backward nll_loss_forward nll_loss_backward nll_loss2d_forward
        nll_loss2d_backward tril triu max_pool2d_with_indices max_pool2d_with_indices_backward
    """,
    _matmul: "mm addmm bmm baddbmm",
    _copy: "clone _to_copy",
    _dropout: "native_dropout",
    _dropout_backward: "native_dropout_backward",
    _layer_norm_backward: "native_layer_norm_backward",
    _safe_softmax: "_safe_softmax",
    _opaque: "mkldnn_rnn_layer_backward",
}
_RULES = {getattr(aten, name): rule for rule, names in _OPERATORS.items() for name in names.split()}
