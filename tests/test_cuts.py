"""Operators slice by slice: at random sizes, the slices joined as the table says are the whole result."""

from __future__ import annotations

import math
import operator
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg
from torch.utils import _pytree as pytree

from dtr_fx.costs.cut_exact import is_exact, part, same_bits
from dtr_fx.passes.cut_forms import Rules
from dtr_fx.passes.cuts import Axis, axes
from dtr_fx.passes.loss_rows import rows_of_loss
from dtr_fx.passes.slices import SUM, Cut
from dtr_fx.torch_private import TorchPrivateError

aten = torch.ops.aten


def node_of(operator: Any, *args: Any, **kwargs: Any) -> tuple[Node, dict[Node, Tensor]]:
    """A node that calls the operator on these tensors, and the tensors by the inputs that stand for them."""
    graph, mode = Graph(), FakeTensorMode()
    tensors: dict[Node, Tensor] = {}

    def placed(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        node = graph.placeholder(f"x{len(tensors)}")
        node.meta["val"] = mode.from_tensor(leaf)
        tensors[node] = leaf
        return node

    given, named = pytree.tree_map(placed, (args, kwargs))
    node = graph.call_function(operator, tuple(given), named)
    fake_args, fake_kwargs = map_arg((node.args, node.kwargs), lambda used: used.meta["val"])
    with mode:
        node.meta["val"] = operator(*fake_args, **fake_kwargs)
    return node, tensors


def in_slices(axis: Axis, tensors: dict[Node, Tensor], rows: int) -> list[Any]:
    """The operator's results, put together from slices."""
    wholes: list[Any] = [None] * len(axis.results)
    for start in range(0, axis.extent, rows):
        count = min(rows, axis.extent - start)
        args, kwargs = map_arg(
            axis.arguments(count),
            lambda node: (
                part(tensors[node], axis.inputs[node], start, count)  # noqa: B023
                if node in axis.inputs
                else tensors[node]
            ),
        )
        made = results(axis.node.target(*args, **kwargs))  # type: ignore[operator]
        whole = results(axis.node.meta["val"])
        for at, (result, place) in enumerate(zip(made, axis.results)):
            if isinstance(place, Cut):
                if wholes[at] is None:
                    wholes[at] = torch.empty(whole[at].shape, dtype=result.dtype)
                place_of = part(wholes[at], place, start, count)
                assert place_of.shape == result.shape
                place_of.copy_(result)
            elif place is SUM and axis.node.target is aten.mm.default:  # added by the library
                wholes[at] = result if wholes[at] is None else wholes[at].addmm_(*args)
            elif place is SUM:
                result = result.double() if result.is_floating_point() else result
                wholes[at] = result if wholes[at] is None else wholes[at] + result
    return wholes


def results(value: Any) -> Sequence[Any]:
    return value if isinstance(value, (tuple, list)) else [value]


def few_of(values: Sequence[Any], few: int, choice: random.Random) -> list[Any]:
    return choice.sample(values, min(few, len(values)))


class Sizes(random.Random):
    """Random sizes, and tensors of them."""

    def sizes(self, rank: int) -> list[int]:
        return [self.choice((1, 2, 3, 4, 6, 8)) for _ in range(rank)]

    def floats(self, *shape: int) -> Tensor:
        generator = torch.Generator().manual_seed(self.randrange(1 << 30))
        made = torch.randn(shape, generator=generator)
        if len(shape) > 1 and self.random() < 0.3:  # other strides
            order = self.sample(range(len(shape)), len(shape))
            made = made.permute(order).contiguous().permute([order.index(dim) for dim in range(len(shape))])
        return made

    def integers(self, below: int, *shape: int) -> Tensor:
        generator = torch.Generator().manual_seed(self.randrange(1 << 30))
        return torch.randint(0, below, shape, generator=generator)


Case = Callable[[Sizes], tuple[Any, ...]]


def elementwise(operator: Any, count: int, *rest: Any, broadcasts: float = 0.2) -> Case:
    """Operands of one shape, each possibly broadcast along some dimensions."""

    def case(size: Sizes) -> tuple[Any, ...]:
        whole = size.sizes(size.randint(1, 4))
        shapes = [whole] + [[1 if size.random() < broadcasts else n for n in whole] for _ in range(count - 1)]
        shapes = [shapes[0], *(shape[size.choice((0, 0, 1)) if broadcasts else 0 :] for shape in shapes[1:])]
        return (operator, *(size.floats(*shape) for shape in shapes), *rest)

    return case


def along(operator: Any, *rest: Any, rank: int = 0, dim: Callable[[int], Any] | None = None) -> Case:
    """One tensor and a dimension of it."""

    def case(size: Sizes) -> tuple[Any, ...]:
        shape = size.sizes(rank or size.randint(1, 4))
        chosen = size.randrange(-len(shape), len(shape))
        return (operator, size.floats(*shape), dim(chosen) if dim else chosen, *rest)

    return case


def viewed(size: Sizes) -> tuple[Any, ...]:
    """A tensor of some factors, put together in two ways."""
    factors = [size.choice((1, 2, 3, 4)) for _ in range(size.randint(1, 6))]

    def grouped() -> list[int]:
        ends = sorted({*size.sample(range(len(factors)), size.randrange(len(factors))), len(factors)})
        return [math.prod(factors[start:end]) for start, end in zip([0, *ends], ends)]

    return aten.view.default, torch.randn(grouped()), grouped()


def softmax_backward(operator: Any) -> Case:
    def case(size: Sizes) -> tuple[Any, ...]:
        shape = size.sizes(size.randint(2, 4))
        dim = size.choice((-1, -1, 0, 1))
        return operator, size.floats(*shape), size.floats(*shape).softmax(dim), dim, torch.float32

    return case


def product(operator: Any, added: bool = False) -> Case:
    def case(size: Sizes) -> tuple[Any, ...]:
        batch = size.sizes(1) if operator in (aten.bmm.default, aten.baddbmm.default) else []
        i, j, k = (size.choice((2, 3, 8, 16, 33)) for _ in range(3))
        bias = [size.floats(*size.choice(([j], [i, j], [1, j], [i, 1])))] if added else []
        return (operator, *bias, size.floats(*batch, i, k), size.floats(*batch, k, j))

    return case


def convolution(size: Sizes) -> tuple[Any, ...]:
    groups, transposed = size.choice((1, 1, 2)), size.random() < 0.3
    channels, filters = 2 * size.randint(1, 3), 2 * size.randint(1, 3)
    images = size.floats(size.randint(1, 6), channels, 6, 5)
    first, second = (channels, filters) if transposed else (filters, channels)
    weight = size.floats(first, second // groups, 3, 3)
    bias = size.choice((None, size.floats(filters)))
    return aten.convolution.default, images, weight, bias, [1, 1], [1, 1], [1, 1], transposed, [0, 0], groups


def convolution_backward(size: Sizes) -> tuple[Any, ...]:
    operator, *given = convolution(size)
    mask = [size.random() < 0.7, size.random() < 0.7, size.random() < 0.7]
    biases = [operator(*given).shape[1]]
    gradient = torch.randn_like(operator(*given))
    return aten.convolution_backward.default, gradient, *given[:2], biases, *given[3:], mask


def images(size: Sizes) -> Tensor:
    made = size.floats(size.randint(1, 6), size.choice((1, 2, 4)), 8, 6)
    return made.contiguous(memory_format=torch.channels_last) if size.random() < 0.3 else made.contiguous()


def max_pool_backward(size: Sizes) -> tuple[Any, ...]:
    given = images(size), [2, 2], [2, 2], [0, 0], [1, 1], False
    out, at = aten.max_pool2d_with_indices(*given)
    return aten.max_pool2d_with_indices_backward.default, torch.randn_like(out), *given, at


def group_norm(size: Sizes) -> tuple[Any, ...]:
    n, c = size.randint(2, 6), 4
    made = torch.randn(n, c, 3, 5), size.choice((None, torch.randn(c))), size.choice((None, torch.randn(c)))
    return aten.native_group_norm.default, *made, n, c, 15, 2, 1e-5


def group_norm_backward(size: Sizes) -> tuple[Any, ...]:
    operator, x, weight, bias, *rest = group_norm(size)
    out, mean, rstd = operator(x, weight, bias, *rest)
    mask = [True, weight is not None, weight is not None]
    return (
        aten.native_group_norm_backward.default,
        *(torch.randn_like(out), x, mean, rstd, weight, *rest[:-1], mask),
    )


def layer_norm(size: Sizes) -> tuple[Any, ...]:
    shape = size.sizes(size.randint(2, 4))
    inner = shape[size.choice((-1, -1, 1)) :]
    weight, bias = (size.choice((None, torch.randn(inner))) for _ in range(2))
    return aten.native_layer_norm.default, torch.randn(shape), inner, weight, bias, 1e-5


def layer_norm_backward(size: Sizes) -> tuple[Any, ...]:
    operator, x, inner, weight, bias, eps = layer_norm(size)
    out, mean, rstd = operator(x, inner, weight, bias, eps)
    mask = [size.random() < 0.8, weight is not None, bias is not None]
    return (
        aten.native_layer_norm_backward.default,
        *(torch.randn_like(out), x, inner, mean, rstd, weight, bias, mask),
    )


def rms_norm(size: Sizes) -> tuple[Any, ...]:
    shape = size.sizes(size.randint(2, 4))
    return aten._fused_rms_norm.default, torch.randn(shape), shape[-1:], torch.randn(shape[-1:]), 1e-5


def batch_norm(size: Sizes) -> tuple[Any, ...]:
    x = images(size)
    c = x.shape[1]
    state = torch.randn(c), torch.randn(c), torch.zeros(c), torch.ones(c)
    return aten._native_batch_norm_legit_functional.default, x, *state, True, 0.1, 1e-5


def batch_norm_backward(size: Sizes) -> tuple[Any, ...]:
    operator, x, weight, bias, mean, var, *rest = batch_norm(size)
    out, saved, inverse, *_ = operator(x, weight, bias, mean, var, *rest)
    state = weight, mean, var, saved, inverse, True, 1e-5, [True, True, True]
    return aten.native_batch_norm_backward.default, torch.randn_like(out), x, *state


def attention(size: Sizes) -> tuple[Any, ...]:
    b, h, s, d = size.choice((1, 2, 3)), size.choice((1, 2, 4)), size.choice((4, 8)), 8
    q, k, v = (torch.randn(b, s, h, d).transpose(1, 2) for _ in range(3))
    mask = size.choice((None, torch.randn(s, s), torch.randn(size.choice((1, b)), size.choice((1, h)), s, s)))
    return (
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        q,
        k,
        v,
        0.0,
        mask is None,
        {"attn_mask": mask},
    )


def attention_backward(size: Sizes) -> tuple[Any, ...]:
    operator, q, k, v, p, causal, named = attention(size)
    out, logsumexp = operator(q, k, v, p, causal, **named)
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    return backward, torch.randn_like(out), q, k, v, out, logsumexp, p, causal, named


def loss(size: Sizes) -> tuple[Any, ...]:
    n, c = size.choice((4, 6, 9)), size.choice((3, 5))
    return aten.nll_loss_forward.default, size.floats(n, c), size.integers(c, n), None, 0, 1


def loss_backward(size: Sizes) -> tuple[Any, ...]:
    operator, x, target, weight, _, ignored = loss(size)
    reduction = size.randrange(3)
    out, total = operator(x, target, weight, reduction, ignored)
    return aten.nll_loss_backward.default, torch.randn_like(out), x, target, weight, reduction, ignored, total


def reduction(operator: Any, *rest: Any) -> Case:
    def case(size: Sizes) -> tuple[Any, ...]:
        shape = size.sizes(size.randint(1, 4))
        dims = size.sample(range(len(shape)), size.randint(1, len(shape)))
        return operator, size.floats(*shape), dims, *rest, {"keepdim": size.random() < 0.5}

    return case


def indexed(operator: Any, *rest: Any) -> Case:
    """Gather and scatter: an index that may be shorter than the tensor."""

    def case(size: Sizes) -> tuple[Any, ...]:
        shape = size.sizes(size.randint(1, 3))
        dim = size.randrange(len(shape))
        index = [n if size.random() < 0.8 or at == dim else max(1, n - 1) for at, n in enumerate(shape)]
        source = [size.floats(*shape)] if operator in (aten.scatter.src, aten.scatter_add.default) else []
        # every element once, since the order of writes to one place is not defined
        at = torch.argsort(size.floats(*index), dim)
        return operator, size.floats(*shape), dim, at, *source, *rest

    return case


def put(operator: Any) -> Case:
    """Into some dimensions, by indices side by side."""

    def case(size: Sizes) -> tuple[Any, ...]:
        shape = size.sizes(4)
        one, other = size.integers(shape[1], 3, 1), size.integers(shape[2], 4)
        values = [size.floats(shape[0], 3, 4, shape[3]), True] if "put" in str(operator) else []
        return operator, size.floats(*shape), [None, one, other], *values

    return case


def lossy(operator: Any, backward: bool) -> Case:
    def case(size: Sizes) -> tuple[Any, ...]:
        shape, reduction = size.sizes(2), size.choice((0, 2))
        gradient = [size.floats(*shape) if reduction == 0 else size.floats()] if backward else []
        extra = [1.0] if "smooth" in str(operator) or "huber" in str(operator) else []
        return (
            operator,
            *gradient,
            size.floats(*shape).sigmoid(),
            size.floats(*shape).sigmoid(),
            reduction,
            *extra,
        )

    return case


def embedded(size: Sizes) -> tuple[Any, ...]:
    return aten.embedding.default, size.floats(7, 4), size.integers(7, *size.sizes(2)), size.choice((-1, 2))


def embedded_backward(size: Sizes) -> tuple[Any, ...]:
    rows = size.sizes(2)
    return aten.embedding_dense_backward.default, size.floats(*rows, 4), size.integers(7, *rows), 7, 2, False


def upsampled(operator: Any, backward: bool) -> Case:
    def case(size: Sizes) -> tuple[Any, ...]:
        x = images(size)
        corners = [False] if "nearest" not in str(operator) else []
        if backward:
            n, c, h, w = x.shape
            return operator, x, [h, w], [n, c, h // 2, w // 2], *corners, 2.0, 2.0
        return operator, x, [2 * x.shape[2], 2 * x.shape[3]], *corners, 2.0, 2.0

    return case


def of_images(operator: Any, *rest: Any) -> Case:
    return lambda size: (operator, images(size), *rest)


def pool_backward(size: Sizes) -> tuple[Any, ...]:
    x = images(size)
    rest = [2, 2], [2, 2], [0, 0], False, True, None
    return aten.avg_pool2d_backward.default, torch.randn_like(aten.avg_pool2d(x, *rest)), x, *rest


def some(operator: Any, make: Callable[[Sizes, list[int]], tuple[Any, ...]], rank: int = 3) -> Case:
    """An operator on a tensor, with arguments that depend on its shape."""

    def case(size: Sizes) -> tuple[Any, ...]:
        shape = [max(2, n) for n in size.sizes(rank)]
        return operator, size.floats(*shape), *make(size, shape)

    return case


def joined(operator: Any) -> Case:
    def case(size: Sizes) -> tuple[Any, ...]:
        shape = size.sizes(3)
        dim = size.randrange(-3, 3)
        other = list(shape)
        if operator is aten.cat.default:
            other[dim] += 1
        return operator, [size.floats(*shape), size.floats(*other)], dim

    return case


def put_back(operator: Any, index: tuple[Any, ...], keeps: bool) -> Case:
    """A gradient into the place that it was taken from."""

    def case(size: Sizes) -> tuple[Any, ...]:
        shape = [max(3, n) for n in size.sizes(3)]
        dim = size.randrange(3)
        taken = [n for at, n in enumerate(shape) if at != dim or keeps]
        if keeps:
            taken[dim] = 2
        if "scatter" in str(operator):
            return operator, size.floats(*shape), size.floats(*taken), dim, *index
        return operator, size.floats(*taken), shape, dim, *index

    return case


CASES: dict[str, Case] = {
    **{
        name: elementwise(getattr(aten, name).default, 1)
        for name in "exp tanh gelu relu neg clone alias".split()
    },
    **{name: elementwise(getattr(aten, name).Tensor, 2) for name in "add mul div sub lt".split()},
    "addcmul": elementwise(aten.addcmul.default, 3),
    "where": lambda size: (
        aten.where.self,
        size.floats(4, 1, 6) > 0,
        size.floats(3, 6),
        size.floats(4, 3, 1),
    ),
    "gelu_backward": elementwise(aten.gelu_backward.default, 2, broadcasts=0.0),
    "leaky_relu_backward": elementwise(aten.leaky_relu_backward.default, 2, 0.1, False),
    "to_copy": lambda size: (aten._to_copy.default, size.floats(4, 6), {"dtype": torch.bfloat16}),
    "native_dropout_backward": lambda size: (
        *(aten.native_dropout_backward.default, size.floats(4, 6), size.floats(4, 6) > 0, 2.0),
    ),
    "full_like": lambda size: (aten.full_like.default, size.floats(*size.sizes(3)), 2.0),
    "full": lambda size: (aten.full.default, size.sizes(3), 2.0),
    "new_zeros": lambda size: (aten.new_zeros.default, size.floats(3), size.sizes(3)),
    "mse_loss": lossy(aten.mse_loss.default, False),
    "mse_loss_backward": lossy(aten.mse_loss_backward.default, True),
    "smooth_l1_loss_backward": lossy(aten.smooth_l1_loss_backward.default, True),
    "binary_cross_entropy": lambda size: (
        *(aten.binary_cross_entropy.default, size.floats(4, 6).sigmoid(), size.floats(4, 6).sigmoid()),
        *(None, size.choice((0, 2))),
    ),
    "view": viewed,
    "unsqueeze": along(aten.unsqueeze.default),
    "squeeze": lambda size: (aten.squeeze.dim, size.floats(4, 1, *size.sizes(2)), 1),
    "expand": lambda size: (aten.expand.default, size.floats(1, 4, 1), [*size.sizes(1), 3, 4, 5]),
    "expand_scalar": lambda size: (aten.expand.default, size.floats(), size.sizes(2)),
    "permute": lambda size: (aten.permute.default, size.floats(*size.sizes(4)), size.sample(range(4), 4)),
    "t": lambda size: (aten.t.default, size.floats(*size.sizes(2))),
    "transpose": lambda size: (aten.transpose.int, size.floats(*size.sizes(3)), size.randrange(-3, 3), 1),
    "slice": some(aten.slice.Tensor, lambda size, shape: (size.randrange(3), size.randrange(2), 2**63 - 1)),
    "select": some(aten.select.int, lambda size, shape: (size.randrange(-3, 3), 1)),
    "unbind": along(aten.unbind.int),
    "split": some(aten.split.Tensor, lambda size, shape: (2, size.randrange(-3, 3))),
    "split_with_sizes": lambda size: (aten.split_with_sizes.default, size.floats(3, 6, 4), [2, 4], 1),
    "cumsum": along(aten.cumsum.default),
    "flip": along(aten.flip.default, dim=lambda dim: [dim]),
    "roll": lambda size: (aten.roll.default, size.floats(*size.sizes(3)), [1], [size.randrange(3)]),
    "sort": along(aten.sort.default),
    "topk": lambda size: (aten.topk.default, size.floats(4, 6, 8), 2, size.randrange(3)),
    "tril": lambda size: (aten.tril.default, size.floats(*size.sizes(4)), size.randrange(-1, 2)),
    "cat": joined(aten.cat.default),
    "stack": joined(aten.stack.default),
    "constant_pad_nd": lambda size: (aten.constant_pad_nd.default, size.floats(*size.sizes(4)), [1, 0, 0, 2]),
    "slice_backward": put_back(aten.slice_backward.default, (1, 3, 1), True),
    "select_backward": put_back(aten.select_backward.default, (1,), False),
    "slice_scatter": put_back(aten.slice_scatter.default, (1, 3), True),
    "select_scatter": put_back(aten.select_scatter.default, (1,), False),
    "gather": indexed(aten.gather.default),
    "scatter_value": indexed(aten.scatter.value, 2.0),
    "scatter_src": indexed(aten.scatter.src),
    "scatter_add": indexed(aten.scatter_add.default),
    "index_select": lambda size: (
        aten.index_select.default,
        size.floats(*size.sizes(2), 5),
        2,
        size.integers(5, 4),
    ),
    "index": put(aten.index.Tensor),
    "index_put": put(aten.index_put.default),
    "embedding": embedded,
    "embedding_dense_backward": embedded_backward,
    "mm": product(aten.mm.default),
    "addmm": product(aten.addmm.default, added=True),
    "bmm": product(aten.bmm.default),
    "baddbmm": product(aten.baddbmm.default, added=True),
    "convolution": convolution,
    "convolution_backward": convolution_backward,
    "max_pool2d": of_images(aten.max_pool2d_with_indices.default, [2, 2]),
    "max_pool2d_backward": max_pool_backward,
    "adaptive_max_pool2d": of_images(aten.adaptive_max_pool2d.default, [2, 2]),
    "avg_pool2d": of_images(aten.avg_pool2d.default, [2, 2]),
    "avg_pool2d_backward": pool_backward,
    "adaptive_avg_pool2d": of_images(aten._adaptive_avg_pool2d.default, [2, 3]),
    "reflection_pad2d": of_images(aten.reflection_pad2d.default, [1, 1, 2, 0]),
    "upsample_nearest2d": upsampled(aten.upsample_nearest2d.default, False),
    "upsample_nearest2d_backward": upsampled(aten.upsample_nearest2d_backward.default, True),
    "upsample_bilinear2d": upsampled(aten.upsample_bilinear2d.default, False),
    "upsample_bilinear2d_backward": upsampled(aten.upsample_bilinear2d_backward.default, True),
    "batch_norm": batch_norm,
    "batch_norm_backward": batch_norm_backward,
    "group_norm": group_norm,
    "group_norm_backward": group_norm_backward,
    "softmax": along(aten._softmax.default, False),
    "log_softmax": along(aten._log_softmax.default, False),
    "softmax_backward": softmax_backward(aten._softmax_backward_data.default),
    "log_softmax_backward": softmax_backward(aten._log_softmax_backward_data.default),
    "layer_norm": layer_norm,
    "layer_norm_backward": layer_norm_backward,
    "rms_norm": rms_norm,
    "attention": attention,
    "attention_backward": attention_backward,
    "nll_loss": loss,
    "nll_loss_backward": loss_backward,
    "sum": reduction(aten.sum.dim_IntList),
    "mean": reduction(aten.mean.dim),
    "amax": reduction(aten.amax.default),
    "var": reduction(aten.var.correction),
    "var_mean": reduction(aten.var_mean.correction),
    "argmax": along(aten.argmax.default),
    "max": along(aten.max.dim),
    "logsumexp": reduction(aten.logsumexp.default),
    "vector_norm": lambda size: (aten.linalg_vector_norm.default, size.floats(*size.sizes(3)), 2.0, [1]),
}


def drawn(name: str, seeds: Sequence[int]) -> Iterator[tuple[Node, dict[Node, Tensor]]]:
    for seed in seeds:
        torch.manual_seed(seed)
        operator, *args = CASES[name](Sizes(f"{name} {seed}"))
        named = args.pop() if args and isinstance(args[-1], dict) else {}
        yield node_of(operator, *args, **named)


def check(name: str, seeds: Sequence[int], few: int) -> None:
    """Some axes and numbers of rows of each case; what nothing says of is right up to rounding."""
    found, choice = 0, random.Random(name)
    for node, tensors in drawn(name, seeds):
        args, kwargs = map_arg((node.args, node.kwargs), tensors.__getitem__)
        whole = results(node.target(*args, **kwargs))
        for axis in few_of(axes(node), few, choice):
            for rows in few_of(range(1, axis.extent), few, choice):
                found += 1
                for expected, made, place in zip(whole, in_slices(axis, tensors, rows), axis.results):
                    if place is not None and is_exact(node, axis, rows):
                        assert same_bits(expected, made), (node.format_node(), axis, rows)
                    elif place is not None:
                        torch.testing.assert_close(
                            made.to(expected), expected, rtol=1e-4, atol=1e-5, equal_nan=True
                        )
    assert found


@pytest.mark.parametrize("name", CASES)
def test_slices_make_the_whole(name: str) -> None:
    check(name, range(5), 2)


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_slices_make_the_whole_at_more_sizes(name: str) -> None:
    check(name, range(5, 30), 4)


@pytest.mark.parametrize("reduction", [1, 2], ids=["mean", "sum"])
@pytest.mark.parametrize("rows", [1, 7, 64, 1000, 4099])
def test_a_loss_in_rows_keeps_its_bits(rows: int, reduction: int) -> None:
    """The loss, and the weight by which its gradient is divided; about one target in four is ignored."""
    torch.manual_seed(rows)
    logs = torch.randn(rows, 11).log_softmax(1)
    targets = torch.randint(0, 11, (rows,)).masked_fill(torch.rand(rows) < 0.25, -100)
    node, tensors = node_of(aten.nll_loss_forward.default, logs, targets, None, reduction, -100)
    graph = node.graph
    node.meta["stack_trace"] = "the user's line"
    found = [graph.call_function(operator.getitem, (node, at)) for at in (0, 1)]
    graph.output(tuple(found))
    expected = aten.nll_loss_forward(logs, targets, None, reduction, -100)

    row_loss = rows_of_loss(graph, node)
    assert row_loss is not None
    assert rows == 1 or [axis.extent for axis in axes(row_loss) if axis.is_exact] == [rows]
    added = [each for each in graph.nodes if each.op == "call_function" and each not in found]
    assert all(each.meta["stack_trace"] == "the user's line" and "val" in each.meta for each in added)
    made = GraphModule(torch.nn.Module(), graph)(*tensors.values())
    assert all(map(same_bits, expected, made))


def test_a_weighted_loss_stays_as_it_is() -> None:
    logs, targets = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    for weight, reduction, ignored in [(torch.ones(3), 1, -100), (None, 0, -100), (None, 1, 0)]:
        node, _ = node_of(aten.nll_loss_forward.default, logs, targets, weight, reduction, ignored)
        assert rows_of_loss(node.graph, node) is None


def test_what_draws_or_writes_or_has_no_rule_is_not_cut() -> None:
    x = torch.ones(4, 6)
    calls = [
        (aten.native_dropout.default, x, 0.5, True),
        (aten.add_.Tensor, x, x),
        (aten.linalg_inv_ex.default, torch.eye(4)),
        (aten.mse_loss.default, x, x, 1),  # the mean of a slice is not a part of the mean
        (aten.mse_loss_backward.default, torch.ones(()), x, x, 1),
    ]
    for operator_, *args in calls:
        assert axes(node_of(operator_, *args)[0]) == ()


def test_sizes_that_are_symbols_are_not_cut() -> None:
    traced = make_fx(lambda x: x.exp() @ x.t(), tracing_mode="symbolic")(torch.ones(4, 6))
    operators = [node for node in traced.graph.nodes if node.op == "call_function"]
    assert operators
    assert not any(map(axes, operators))


def test_an_operand_that_is_both_cut_and_whole_is_not_cut() -> None:
    node, tensors = node_of(aten.mm.default, torch.ones(4, 4), torch.ones(4, 4))
    (first, _) = tensors
    node.args = first, first
    assert axes(node) == ()


def test_cuts_of_neighbours_have_the_same_name() -> None:
    """Rows of a matrix are sequences and places together, whatever dimensions of size 1 stand around."""
    node, (x,) = node_of(aten.view.default, torch.ones(12, 5), [1, 3, 4, 1, 5])
    found = {axis.inputs[x]: axis.results[0] for axis in axes(node)}
    assert found == {Cut(0, 0): Cut(1, 2), Cut(1, 1): Cut(4, 4), Cut(0, 1): Cut(1, 4)}


def test_slices_are_exact_where_all_elements_are_computed_alike() -> None:
    """Sums are the same in every vector; a function is, in whole vectors; a sum of sums is not exact."""
    for operator_, rows in ((aten.add.Tensor, 1), (aten.mul.Tensor, 3)):
        node, _ = node_of(operator_, torch.ones(64, 65), torch.ones(64, 65))
        assert [is_exact(node, axis, rows) for axis in axes(node) if axis.extent == 64] == [True]
    node, _ = node_of(aten.tanh.default, torch.ones(64, 64))
    assert all(
        is_exact(node, axis, 16) for axis in axes(node) if axis.extent == 64 and axis.results[0] == (0, 0)
    )
    node, _ = node_of(aten.sum.dim_IntList, torch.ones(64, 64), [0])
    assert [is_exact(node, axis, 16) for axis in axes(node) if axis.results == (SUM,)] == [False]


def test_a_product_is_exact_where_a_library_adds_it_up_in_such_blocks() -> None:
    """MKL does so in blocks of 192 rows, in float32 on this CPU; other rows are told apart."""
    torch.manual_seed(0)
    left, right = torch.randn(70, 500), torch.randn(500, 40)
    node, _ = node_of(aten.mm.default, left, right)
    [axis] = [axis for axis in axes(node) if axis.results == (SUM,)]
    for rows in (1, 3, 64, 96, 192, 250, 384):
        found = left[:, :rows] @ right[:rows]
        for start in range(rows, 500, rows):
            found.addmm_(left[:, start : start + rows], right[start : start + rows])
        assert same_bits(found, left @ right) or not is_exact(node, axis, rows)


def test_slices_of_complex_numbers_are_exact_only_where_their_imaginary_parts_are() -> None:
    """A product of complex numbers is rounded in other ways at the end of a row than in whole vectors."""
    x, y = torch.randn(2, 5, 10, 5, 20, dtype=torch.complex64)
    y = y[:, :1, :, :1]
    node, _ = node_of(aten.mul.Tensor, x, y)
    for axis in axes(node):
        place = axis.results[0]
        if not isinstance(place, Cut) or place.first != place.last:
            continue
        cut = [axis.inputs.get(used) for used in node.all_input_nodes]
        for rows in (1, 2, 5):
            parts = [
                torch.mul(
                    *(
                        whole if at is None else part(whole, at, start, rows).clone()
                        for whole, at in zip((x, y), cut)
                    )
                )
                for start in range(0, axis.extent - rows + 1, rows)
            ]
            same = all(
                same_bits(part(x * y, place, rows * number, rows), each) for number, each in enumerate(parts)
            )
            assert same or not is_exact(node, axis, rows)


@pytest.mark.parametrize("rows", [1, 2, 4, 8, 16, 32, 64])
def test_slices_of_low_precision_are_exact_only_where_sums_that_cancel_are(rows: int) -> None:
    """Of other sums one in 65,536 shows in which order it was added, as the result is rounded once more."""
    x, weight = torch.randn(4096, 7, dtype=torch.bfloat16), torch.randn(7, 16, dtype=torch.bfloat16)
    x = torch.cat([x, -x, x[:, :2] / 2**13], 1)
    weight = torch.cat([weight, weight, weight[:2]])
    node, _ = node_of(aten.mm.default, x[:256], weight)
    [by_rows] = [axis for axis in axes(node) if axis.extent == 256]
    slices = torch.cat([each.clone() @ weight for each in x.split(rows)])
    assert torch.equal(slices, x @ weight) or not is_exact(node, by_rows, rows)


def test_measuring_leaves_generators_alone() -> None:
    node, _ = node_of(aten.mm.default, torch.ones(16, 8), torch.ones(8, 16))
    before = torch.get_rng_state()
    assert axes(node)
    for axis in axes(node):
        is_exact(node, axis, 4)
    assert torch.equal(before, torch.get_rng_state())


def test_an_operator_that_torch_lacks_is_a_clear_error() -> None:
    with pytest.raises(TorchPrivateError, match=r"has no torch\.ops\.aten\.no_such_operator"):
        Rules().of("no_such_operator")(lambda call: None)
