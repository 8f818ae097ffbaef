"""Tests on this machine that an operator gives the same bits slice by slice.

What was found with MKL and oneDNN on an AVX-512 CPU, on one thread and on two.  A product cut by rows keeps
its bits where every slice has 4 rows (two threads: 8) in float32, or a multiple of 4 in float64; how many
columns it has makes no difference.  Cut by columns it does, as a rule, where slices have a multiple of 16.
A product over many rows is added up in blocks of 192 in float32: slices of as many, added in place, keep it.
``bmm`` and attention keep them for any cut by batch or heads, convolutions by batch unless a slice is one
image.  Functions like ``tanh`` keep them where no vector ends inside a slice.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import Node
from torch.fx.node import map_arg

from dtr_fx.costs.isolated import outside_of_tracing
from dtr_fx.costs.machine import free_memory
from dtr_fx.costs.operators import CannotRunAlone, signature
from dtr_fx.passes.cuts import Arguments, Axis, axes, is_elementwise
from dtr_fx.passes.slices import Cut, is_added_up
from dtr_fx.passes.tensors import tensors_of

# Of a longer dimension so much is measured, and what dividing by it leaves; of the one cut, so many rows.
_WHOLE, _ROWS = 512, 4096
_PLACES = 1 << 15  # elements on which a function is tried in pieces
_ENOUGH, _TRIALS = 1 << 15, 16  # elements that are compared, or so many attempts
_BLOCK = 64  # elements of two vectors, of any float: loops over them end at multiples of this
_LENGTHS = range(1, _BLOCK + 4)
_GRAIN = 32_768  # elements from which on a CPU's threads share a loop (at::internal::GRAIN_SIZE)

_known: dict[Any, bool] = {}


Orders = Mapping[Node, "tuple[int, ...]"]


def order_of(tensor: Tensor) -> tuple[int, ...]:
    """Its dimensions, from the one whose elements lie farthest apart to the one side by side."""
    return tuple(sorted(range(tensor.dim()), key=tensor.stride, reverse=True))


def may_be_exact(node: Node, axis: Axis) -> bool:
    """True if the cut adds nothing up but products, which libraries add up in blocks of rows."""
    dtype = tensors_of(node.meta["val"])[0].dtype
    return axis.is_exact or all(is_added_up(node, result, dtype) for result in axis.results)


def is_exact(node: Node, axis: Axis, rows: int, orders: Orders | None = None) -> bool:
    """True if slices of so many rows along the axis make the bits of the whole, by construction or measured.

    ``orders`` are those of the slices that it reads, where they lie in another than the whole's.
    Measured is on made-up data, once for every operator, layout and number of threads: with all of what is
    added up, and with a part of what is not where it is long.
    """
    if not may_be_exact(node, axis):
        return False
    if axis.is_exact and not axis.measured:
        return True
    if is_elementwise(node):
        if not (_keeps_everywhere(node) or _vectors_end_alike(node, axis, rows)):
            return False
        if _has_contiguous_slices(node, axis):
            return True  # else some kernels go by the layout
    rows = min(rows, _ROWS + rows % _ROWS)
    try:
        described = signature(node, {})
    except CannotRunAlone:
        return False
    cuts = tuple(axis.inputs.get(used) for used in node.all_input_nodes)
    orders = orders or {}
    laid_out = tuple(orders.get(used) for used in axis.inputs)
    key = described, cuts, axis.results, rows, laid_out, torch.get_num_threads()
    if key not in _known:
        _known[key] = _measured(node, axis, rows, orders)
    return _known[key]


# --- operators that add up ---------------------------------------------------------------------------------


def _measured(node: Node, axis: Axis, rows: int, orders: Orders) -> bool:
    given, shapes = _smaller(node, axis, rows)
    device = tensors_of(node.meta["val"])[0].device
    needed = sum(math.prod(shape) * used.meta["val"].element_size() for used, shape in shapes.items())
    free = free_memory(device)
    if not axis.inputs or (free is not None and 4 * needed > free):
        return False
    with outside_of_tracing(device):
        generator = torch.Generator(device).manual_seed(0)
        compared, trial = 0, 0
        while compared < _ENOUGH and trial < _TRIALS:
            values = _KINDS[trial % len(_KINDS)]
            tensors = {
                used: _made(used.meta["val"], shape, generator, values) for used, shape in shapes.items()
            }
            whole = _run(node, given, tensors)
            starts = range(0, _extent(axis, tensors), rows)
            if not axis.is_exact and not _total_is_same(node, axis, tensors, whole[0], starts, orders):
                return False
            if axis.is_exact and not all(
                _slice_is_same(node, axis, given, tensors, whole, start, rows, orders) for start in starts
            ):
                return False
            compared += sum(tensor.numel() for tensor in tensors_of(whole))
            trial += 1
        return True


def _extent(axis: Axis, tensors: Mapping[Node, Tensor]) -> int:
    used, cut = next(iter(axis.inputs.items()))
    return math.prod(tensors[used].shape[cut.first : cut.last + 1])


def _slice_is_same(
    node: Node,
    axis: Axis,
    given: Arguments,
    tensors: Mapping[Node, Tensor],
    whole: Sequence[Any],
    start: int,
    rows: int,
    orders: Orders,
) -> bool:
    """True if a slice of so many rows, or of what is left, is that part of the whole results."""
    count = min(rows, _extent(axis, tensors) - start)
    return all(
        same_bits(part(whole[at], place, start, count), made[at])
        for slices in _slices(axis, tensors, start, rows, orders)
        for made in [_run(node, axis.arguments(count, given), {**tensors, **slices})]
        for at, place in enumerate(axis.results)
        if isinstance(place, Cut) and isinstance(whole[at], Tensor)
    )


def _slices(
    axis: Axis, tensors: Mapping[Node, Tensor], start: int, rows: int, orders: Orders
) -> tuple[dict[Node, Tensor], ...]:
    """What a slice reads that is cut: as views, and as an operator makes it, without gaps and aligned."""
    count = min(rows, _extent(axis, tensors) - start)
    parts = {used: part(tensors[used], cut, start, count) for used, cut in axis.inputs.items()}
    return parts, {used: _packed(view, orders.get(used)) for used, view in parts.items()}


def _total_is_same(
    node: Node, axis: Axis, tensors: Mapping[Node, Tensor], whole: Tensor, starts: range, orders: Orders
) -> bool:
    """True if products of slices that the library adds up, as in ``Sliced``, are the whole one."""
    totals: list[Tensor] = []
    for start in starts:
        kinds = [
            [{**tensors, **slices}[used] for used in node.all_input_nodes]
            for slices in _slices(axis, tensors, start, starts.step, orders)
        ]
        if totals:
            totals = [total.addmm_(*kind) for total, kind in zip(totals, kinds)]
        else:
            totals = [torch.mm(*kind) for kind in kinds]
    return all(same_bits(whole, total) for total in totals)


def _packed(tensor: Tensor, order: tuple[int, ...] | None) -> Tensor:
    """The tensor in a storage of its own, without gaps, its dimensions in this order."""
    if order is None:
        return tensor.clone()
    there = tensor.permute(order).clone(memory_format=torch.contiguous_format)
    return there.permute([order.index(dim) for dim in range(tensor.dim())])


def _run(node: Node, given: Arguments, tensors: Mapping[Node, Tensor]) -> Sequence[Any]:
    args, kwargs = map_arg(given, tensors.__getitem__)
    made = cast(Callable[..., Any], node.target)(*args, **kwargs)
    return made if isinstance(made, (tuple, list)) else [made]


def _smaller(node: Node, axis: Axis, rows: int) -> tuple[Arguments, dict[Node, Sequence[int]]]:
    """Arguments of a call that tells as much as the node's, and the shapes of its tensors."""
    given: Arguments = (node.args, node.kwargs)
    shapes: dict[Node, Sequence[int]] = {used: used.meta["val"].shape for used in node.all_input_nodes}
    # So many rows that their own number decides nothing: a product of a few columns adds up in other ways.
    whole = (max(3, -(-_ROWS // rows)) * rows) + axis.extent % rows
    is_less = axis.is_exact and _is_single(axis) and whole < axis.extent
    fewer = [(axis, whole)] if is_less else []
    taken = {(used, dim) for used, cut in axis.inputs.items() for dim in range(cut.first, cut.last + 1)}
    for other in axes(node):
        places = {(used, cut.first) for used, cut in other.inputs.items()}
        if other.is_exact and _is_single(other) and taken.isdisjoint(places) and other.extent >= 2 * _WHOLE:
            fewer.append((other, _WHOLE + other.extent % _WHOLE))
            taken |= places
    for each, count in fewer:
        given = each.arguments(count, given)
        shapes.update({used: cut.slice_of(shapes[used], count) for used, cut in each.inputs.items()})
    return given, shapes


def _is_single(axis: Axis) -> bool:
    """True if no dimensions are cut as if they were one."""
    cuts = [*axis.inputs.values(), *(place for place in axis.results if isinstance(place, Cut))]
    return all(cut.first == cut.last for cut in cuts)


Values = Callable[[Sequence[int], torch.Generator], Tensor]


# In double precision: sums of rounded numbers may be exact, and then tell nothing of their order.
def _shares(sizes: Sequence[int], generator: torch.Generator) -> Tensor:
    return torch.rand(sizes, dtype=torch.float64, generator=generator, device=generator.device)


def _cubes(sizes: Sequence[int], generator: torch.Generator) -> Tensor:
    """Numbers of both signs and of many magnitudes, the order of whose sum shows."""
    return torch.randn(sizes, dtype=torch.float64, generator=generator, device=generator.device) ** 3


def _cancelling(sizes: Sequence[int], generator: torch.Generator) -> Tensor:
    """Ones of both signs, and numbers so small that what sums of ones round away of them is left in the end.

    A result of low precision is rounded once more, which hides the order of nearly all other sums.
    """
    drawn = torch.randn(sizes, dtype=torch.float64, generator=generator, device=generator.device)
    is_one = torch.rand(sizes, generator=generator, device=generator.device) < 0.5
    return torch.where(is_one, drawn.sign(), drawn * 2.0**-13)


_KINDS: tuple[Values, ...] = (_cancelling, _shares, _cubes)


def _made(like: Tensor, shape: Sequence[int], generator: torch.Generator, values: Values) -> Tensor:
    """A tensor of another shape, laid out in the same order; integers are 0, a valid index."""
    order = sorted(range(len(shape)), key=like.stride, reverse=True)
    sizes = [shape[dim] for dim in order]
    if like.is_complex():
        made = torch.complex(values(sizes, generator), values(sizes, generator)).to(like.dtype)
    elif like.is_floating_point():
        made = values(sizes, generator).to(like.dtype)
    else:
        made = torch.full(sizes, int(like.dtype == torch.bool), dtype=like.dtype, device=like.device)
    return made.permute([order.index(dim) for dim in range(len(shape))])


def part(tensor: Tensor, cut: Cut, start: int, rows: int) -> Tensor:
    """A slice of a tensor, as a view if there is one: so many rows from row ``start`` on."""
    rest = tensor.flatten(cut.first, cut.last).narrow(cut.first, start, rows)
    return rest.reshape(cut.slice_of(tensor.shape, rows))


def same_bits(one: Tensor, other: Tensor) -> bool:
    """True if two tensors have the same elements, bit for bit, wherever they are in memory."""
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    first, second = (tensor.flatten().clone(memory_format=torch.contiguous_format) for tensor in (one, other))
    return torch.equal(first.view(torch.uint8), second.view(torch.uint8))


# --- element by element ------------------------------------------------------------------------------------


def _keeps_everywhere(node: Node) -> bool:
    """True if the operator computes an element by the same function wherever it stands."""
    kinds = tuple((used.meta["val"].dtype, used.meta["val"].dim() > 0) for used in node.all_input_nodes)
    names = {used: f"%{at}" for at, used in enumerate(node.all_input_nodes)}
    call = repr(map_arg((node.args, node.kwargs), names.__getitem__))
    key = node.target, kinds, call, tensors_of(node.meta["val"])[0].device
    if key not in _known:
        _known[key] = _same_in_pieces(node, key[-1])
    return _known[key]


def _same_in_pieces(node: Node, device: torch.device) -> bool:
    """True if pieces of 1, 2, 3 and more elements have the bits of all of them together."""
    with outside_of_tracing(device):
        generator = torch.Generator(device).manual_seed(0)
        tensors = {used: _numbers(used.meta["val"], generator) for used in node.all_input_nodes}
        given: Arguments = (node.args, node.kwargs)
        try:
            whole = _run(node, given, tensors)
        except RuntimeError:  # numbers that the operator does not take
            return False
        apart = _run(node, given, {used: _with_gaps(each) for used, each in tensors.items()})
        if not all(map(same_bits, whole, apart)):
            return False
        ends = [*itertools.takewhile(_PLACES.__ge__, itertools.accumulate(itertools.cycle(_LENGTHS)))]
        for start, end in itertools.pairwise(ends):
            pieces = {used: each[start:end] if each.dim() else each for used, each in tensors.items()}
            if not all(map(same_bits, (each[start:end] for each in whole), _run(node, given, pieces))):
                return False
    return True


def _with_gaps(tensor: Tensor) -> Tensor:
    return torch.stack([tensor, tensor], -1)[..., 0]


def _numbers(like: Tensor, generator: torch.Generator) -> Tensor:
    """Numbers of both signs, or positive integers."""
    shape = [_PLACES] if like.dim() else []
    if like.is_floating_point() or like.is_complex():
        dtype = torch.complex64 if like.is_complex() else torch.float32
        drawn = torch.randn(shape, dtype=dtype, generator=generator, device=like.device)
        return (4 * drawn).to(like.dtype)
    most = 2 if like.dtype == torch.bool else 8
    return torch.randint(int(most == 8), most, shape, generator=generator, device=like.device).to(like.dtype)


def _vectors_end_alike(node: Node, axis: Axis, rows: int) -> bool:
    """True if on a CPU the same elements are in no full vector, with slices and without."""
    value, place = tensors_of(node.meta["val"])[0], axis.results[0]
    operands = [used.meta["val"] for used in node.all_input_nodes if used.meta["val"].dim()]
    if value.device.type != "cpu" or not isinstance(place, Cut) or not _is_dense(value):
        return False
    if any(each.shape == value.shape and each.stride() != value.stride() for each in operands):
        return False
    if any(each.shape != value.shape for each in operands) and _innermost(value) % _BLOCK:
        return False
    row = value.stride(place.last)
    if (
        axis.extent * row != value.numel()
        or part(value, place, 0, rows).is_contiguous() != value.is_contiguous()
    ):
        return False
    shares = [count * row for count in (axis.extent, rows, axis.extent % rows)]
    return all(run % _BLOCK == 0 for run in (rows * row, *map(_of_a_thread, shares)))


def _has_contiguous_slices(node: Node, axis: Axis) -> bool:
    """True if the cut dimensions are the first of contiguous tensors."""
    values = [node.meta["val"], *(used.meta["val"] for used in axis.inputs)]
    cuts = [axis.results[0], *axis.inputs.values()]
    return all(
        isinstance(value, Tensor) and value.is_contiguous() and math.prod(value.shape[: cut.first]) == 1
        for value, cut in zip(values, cuts)
        if isinstance(cut, Cut)
    )


def _of_a_thread(elements: int) -> int:
    """The elements that each thread computes, 0 if there is one."""
    threads = min(torch.get_num_threads(), -(-elements // _GRAIN))
    return -(-elements // threads) if threads > 1 and elements >= _GRAIN else 0


def _is_dense(tensor: Tensor) -> bool:
    return 1 + sum((size - 1) * step for size, step in zip(tensor.shape, tensor.stride())) == tensor.numel()


def _innermost(tensor: Tensor) -> int:
    """The size of the dimension whose elements are side by side."""
    return next((size for size, step in zip(tensor.shape, tensor.stride()) if step == 1 and size != 1), 1)
