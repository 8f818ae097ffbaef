"""The part of the table of ``cuts`` that adds nothing up: element by element, views, copies, indices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch.fx import Node

from dtr_fx.passes.cut_forms import Call, Form, Label, Labels, Made, Rules, broadcast, named, numbers

RULES = Rules()

# --- element by element ------------------------------------------------------------------------------------


@RULES.of(
    "where.ScalarOther where.ScalarSelf where.Scalar masked_fill.Tensor elu_backward leaky_relu_backward"
)
@RULES.of(
    "hardtanh_backward hardsigmoid_backward hardswish hardswish_backward softplus_backward mish_backward"
)
@RULES.of("softshrink_backward hardshrink_backward log_sigmoid_backward _prelu_kernel _prelu_kernel_backward")
@RULES.of("huber_loss_backward", reduces=True)
@RULES.of("mse_loss mse_loss_backward smooth_l1_loss smooth_l1_loss_backward huber_loss", reduces=True)
@RULES.of("binary_cross_entropy binary_cross_entropy_backward binary_cross_entropy_with_logits", reduces=True)
@RULES.of("clone _to_copy copy lift_fresh_copy alias detach", moves=True)
@RULES.of("full_like zeros_like ones_like", moves=True)
def pointwise(call: Call, *, moves: bool = False, reduces: bool = False) -> Form | None:
    """Element by element, operands broadcast; ``moves``: without arithmetic; ``reduces``: or then reduced."""
    nodes = [value for value in call.given.values() if isinstance(value, Node)]
    if not all(isinstance(result, torch.Tensor) for result in call.results):
        return None
    shapes = [tuple(node.meta["val"].shape) for node in nodes]
    whole = tuple(torch.broadcast_shapes(*shapes))
    labels, made = named(len(whole)), {tuple(result.shape) for result in call.results}
    if (reduces and call["reduction"] == _MEAN) or len(_devices(call, nodes)) > 1:
        return None
    if made == {whole}:
        makes = [Made(labels)] * len(call.results)
    elif reduces and made == {()}:
        makes = [Made((), numbers(len(whole)))]
    else:
        return None
    calculates = any(result.is_floating_point() or result.is_complex() for result in call.results)
    measured = numbers(len(whole)) if calculates and not moves else frozenset()
    return Form([(node, broadcast(shape, whole)) for node, shape in zip(nodes, shapes)], makes, measured)


def _devices(call: Call, nodes: Iterable[Node]) -> set[torch.device]:
    """Those of the operands, except numbers, and of the results."""
    values = [node.meta["val"] for node in nodes if node.meta["val"].dim()]
    return {value.device for value in (*values, *call.results)}


_MEAN = 1  # of the reductions of losses: none, mean, sum


@RULES.of("full zeros ones new_zeros new_ones new_full")
def _filled(call: Call) -> Form:
    labels = named(len(call.made()))
    like = call.reads({"self": labels}) if "self" in call.given and call.shape("self") == call.made() else []
    return Form(like, [Made(labels)], shapes={"size": (labels, call.made())})


# --- views, and what only moves elements -------------------------------------------------------------------


@RULES.of("view _unsafe_view reshape")
def _view(call: Call) -> Form | None:
    size = "size" if "size" in call.given else "shape"
    read, made = _segments(call.shape("self"), call.made())
    return Form(call.reads({"self": read}), [Made(made)], shapes={size: (made, call.made())})


def _segments(one: Sequence[int], other: Sequence[int]) -> tuple[list[Label | None], list[Label | None]]:
    """Labels for two shapes of the same elements: the shortest runs of dimensions that hold as many."""
    labels: tuple[list[Label | None], list[Label | None]] = [None] * len(one), [None] * len(other)
    if 0 in one:
        return labels
    left, right = ([(at, size) for at, size in enumerate(shape) if size != 1] for shape in (one, other))
    place = [0, 0]
    segment = 0
    while place[0] < len(left):
        counts = [1, 1]
        while counts[0] != counts[1] or counts[0] == 1:
            side = int(counts[0] > counts[1])
            at, size = (left, right)[side][place[side]]
            labels[side][at] = segment
            counts[side] *= size
            place[side] += 1
        segment += 1
    return labels


@RULES.of("squeeze.dim squeeze.dims unsqueeze")
def _squeeze(call: Call) -> Form | None:
    """Dimensions of size 1 taken out or put in; one that is named but longer stays, and stays whole."""
    shape = call.shape("self")
    taken = call.dims("dim", len(shape)) if "dim" in call.given and len(call.made()) <= len(shape) else ()
    made = iter(range(len(shape)))
    read = [None if dim in taken else next(made) for dim in range(len(shape))]
    kept = iter(label for label, size in zip(read, shape) if size != 1)
    longer = [size for dim, size in enumerate(shape) if dim in taken and size != 1]
    if longer:
        return None
    return Form(
        call.reads({"self": read}), [Made([None if size == 1 else next(kept) for size in call.made()])]
    )


@RULES.of("expand")
def _expand(call: Call) -> Form:
    made = named(len(call.made()))
    read = broadcast(call.shape("self"), call.made())
    return Form(call.reads({"self": read}), [Made(made)], shapes={"size": (made, call.made())})


@RULES.of("permute t transpose.int")
def _permute(call: Call) -> Form:
    rank = len(call.made())
    order = list(range(rank))
    if "dims" in call.given:
        order = [dim % rank for dim in call["dims"]]
    elif "dim0" in call.given and rank:
        one, other = call.dim("dim0", rank), call.dim("dim1", rank)
        order[one], order[other] = order[other], order[one]
    elif "dim0" not in call.given:
        order.reverse()
    return Form(call.reads({"self": named(rank)}), [Made(order)])


@RULES.of("slice.Tensor")
def _slice(call: Call) -> Form:
    """A slice that takes all of its dimension leaves it as it is."""
    shape = call.shape("self")
    dim = call.dim("dim", len(shape))
    is_whole = shape == call.made() and call["start"] in (0, None) and call["step"] == 1
    end = call["end"]
    is_open = end is None or end >= shape[dim]
    labels = named(len(shape), () if is_whole and is_open else [dim])
    return Form(call.reads({"self": labels}), [Made(labels)])


@RULES.of("select.int unbind.int")
def _select(call: Call) -> Form:
    rank = len(call.shape("self"))
    dim = call.dim("dim", rank)
    labels = named(rank, [dim])
    return Form(call.reads({"self": labels}), [Made(labels[:dim] + labels[dim + 1 :])] * len(call.results))


@RULES.of("split.Tensor split_with_sizes cumsum cumprod flip sort sort.stable topk")
@RULES.of("roll", needs="dims")
def _along(call: Call, *, needs: str = "") -> Form | None:
    """All that happens is along some dimensions, of which none goes."""
    name = "dim" if "dim" in call.given else "dims"
    if needs and not call[needs]:
        return None
    rank = len(call.shape("self"))
    labels = named(rank, call.dims(name, rank) if call[name] != [] else ())
    return Form(call.reads({"self": labels}), [Made(labels)] * len(call.results))


@RULES.of("tril triu")
def _triangle(call: Call) -> Form:
    rank = len(call.made())
    labels = named(rank, [rank - 2, rank - 1])
    return Form(call.reads({"self": labels}), [Made(labels)])


@RULES.of("cat stack")
def _cat(call: Call) -> Form | None:
    rank = len(call.made())
    dim = call.dim("dim", rank)
    labels = named(rank, [dim])
    tensors = [node for node in call["tensors"] if node.meta["val"].shape != (0,)]
    if all(node.meta["val"].dim() == rank - 1 for node in tensors):  # stack
        return Form([(node, labels[:dim] + labels[dim + 1 :]) for node in tensors], [Made(labels)])
    return Form([(node, labels) for node in tensors], [Made(labels)])


@RULES.of("constant_pad_nd")
def _pad(call: Call) -> Form:
    rank, pad = len(call.made()), call["pad"]
    padded = {rank - 1 - at // 2 for at, size in enumerate(pad) if size}
    labels = named(rank, padded)
    return Form(call.reads({"self": labels}), [Made(labels)])


@RULES.of("slice_backward select_backward slice_scatter select_scatter")
def _put_back(call: Call) -> Form:
    rank = len(call.made())
    dim = call.dim("dim", rank)
    labels = named(rank, [dim])
    part = labels if "step" in call.given else labels[:dim] + labels[dim + 1 :]
    reads = call.reads({"src" if "src" in call.given else "grad_output": part})
    if "src" in call.given:
        return Form([*call.reads({"self": labels}), *reads], [Made(labels)])
    return Form(reads, [Made(labels)], shapes={"input_sizes": (labels, call.made())})


# --- by index ----------------------------------------------------------------------------------------------


@RULES.of("gather")
def _gather(call: Call) -> Form:
    """Rows of an index are independent, along the dimension that it picks from, too."""
    shape, index = call.shape("self"), call.shape("index")
    dim = call.dim("dim", len(shape))
    same = [at if at != dim and size == index[at] else None for at, size in enumerate(shape)]
    made: list[Label | None] = [at if at == dim else label for at, label in enumerate(same)]
    return Form(call.reads({"self": same, "index": made}), [Made(made)])


@RULES.of("scatter.value scatter.src scatter_add")
def _scatter(call: Call) -> Form:
    shape, index = call.shape("self"), call.shape("index")
    source = call.shape("src") if "src" in call.given else index
    dim = call.dim("dim", len(shape))
    labels = [at if at != dim and size == index[at] == source[at] else None for at, size in enumerate(shape)]
    reads = {name: labels for name in ("self", "index", "src") if name in call.given}
    return Form(call.reads(reads), [Made(labels)], numbers(len(shape)))


@RULES.of("index_select")
def _index_select(call: Call) -> Form:
    rank = len(call.made())
    dim = call.dim("dim", rank)
    return Form(call.reads({"self": named(rank, [dim]), "index": [dim]}), [Made(named(rank))])


@RULES.of("index.Tensor _unsafe_index.Tensor index_put _unsafe_index_put")
def _index(call: Call) -> Form | None:
    """By tensors of integers that stand side by side; an index itself may be cut where nothing is written."""
    shape, indices = call.shape("self"), list(call["indices"])
    at = [dim for dim, index in enumerate(indices) if index is not None]
    tensors = [indices[dim].meta["val"] for dim in at]
    if not at or at[-1] - at[0] + 1 != len(at) or any(tensor.dtype is torch.bool for tensor in tensors):
        return None
    picked = tuple(torch.broadcast_shapes(*(tensor.shape for tensor in tensors)))
    kept = named(len(shape), at)
    before, after = kept[: at[0]], kept[at[-1] + 1 :]
    if "values" in call.given:
        sizes = [*shape[: at[0]], *picked, *shape[at[-1] + 1 :]]
        values = _relabelled([*before, *[None] * len(picked), *after], call.shape("values"), sizes)
        return Form(call.reads({"self": kept, "values": values}), [Made(kept)], numbers(len(shape)))
    names: list[Label | None] = [f"index {dim}" for dim in range(len(picked))]
    picks = [(indices[dim], _relabelled(names, tensor.shape, picked)) for dim, tensor in zip(at, tensors)]
    return Form([*call.reads({"self": kept}), *picks], [Made([*before, *names, *after])])


def _relabelled(labels: Labels, shape: Sequence[int], sizes: Sequence[int]) -> Labels:
    """The labels of an operand that is broadcast to dimensions of these labels and sizes."""
    offset = len(sizes) - len(shape)
    return [labels[offset + dim] if size == sizes[offset + dim] else None for dim, size in enumerate(shape)]


@RULES.of("embedding")
def _embedding(call: Call) -> Form:
    rows = named(len(call.shape("indices")))
    return Form(call.reads({"weight": [None, "e"], "indices": rows}), [Made([*rows, "e"])])


@RULES.of("embedding_dense_backward")
def _embedding_backward(call: Call) -> Form:
    rows = named(len(call.shape("indices")))
    over = frozenset() if call["scale_grad_by_freq"] else numbers(len(rows))
    reads = call.reads({"grad_output": [*rows, "e"], "indices": rows})
    return Form(reads, [Made([None, "e"], over)], numbers(len(rows)) | {"e"})
