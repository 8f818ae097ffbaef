"""The temporary memory of operators, measured: the same whatever is going on around."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from functorch.compile import default_partition, nop
from torch import Tensor, nn
from torch._dynamo.backends.common import aot_autograd
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

import dtr_fx
from dtr_fx.costs import measured_workspaces, workspaces

pytestmark = pytest.mark.little_effort


class Upsampled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.interpolate(x, scale_factor=2, mode="bilinear").exp()


def live_bytes(gm: GraphModule) -> dict[str, int]:
    _, report = dtr_fx.transform(gm, 1.0)
    return {point.name: point.live for point in report.before}


def test_an_operator_takes_as_much_while_a_compiler_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where AOTAutograd asks for a plan, the operator would run decomposed, on several times the memory."""
    x = torch.ones(2, 8, 64, 64)
    exported = torch.export.export(Upsampled(), (x,)).module()
    found: list[dict[str, int]] = []

    def partition(joint: GraphModule, inputs: Any, **facts: Any) -> Any:
        found.append(live_bytes(exported))
        return default_partition(joint, inputs, **facts)

    monkeypatch.setattr(measured_workspaces, "_measured", {})
    backend = aot_autograd(fw_compiler=nop, partition_fn=partition)
    torch.compile(lambda x: x * 2, backend=backend)(torch.ones(3, requires_grad=True))
    monkeypatch.setattr(measured_workspaces, "_measured", {})
    outside = live_bytes(exported)
    assert found == [outside]
    peak = dtr_fx.measure_peak(exported, x)
    assert max(outside.values()) == pytest.approx(x.nbytes + peak, rel=0.01)


def matrix(*shape: int) -> Tensor:
    return torch.rand(shape or (192, 64)) + 0.1


def calls() -> list[tuple[Any, ...]]:
    """A call, or some, of each kind of operator that has a rule."""
    aten, x = torch.ops.aten, matrix
    one = "neg exp log1p rsqrt tanh relu silu gelu logical_not zeros_like rand_like bernoulli clone sum amax"
    two = "add mul div pow maximum lt sigmoid_backward tanh_backward gelu_backward silu_backward"
    chosen, numbers = x() > 0.5, torch.arange(192) % 64
    return [
        *((getattr(aten, name), x()) for name in one.split()),
        *((getattr(aten, name), x(), x()) for name in two.split()),
        *((operator, x(), [dim]) for operator in (aten.sum, aten.mean, aten.amax) for dim in (0, 1)),
        *((operator, x(), dim, False) for operator in (aten._softmax, aten._log_softmax) for dim in (0, 1)),
        (aten._softmax_backward_data, x(), x(), 1, torch.float32),
        (aten._log_softmax_backward_data, x(), x(), 1, torch.float32),
        (aten._safe_softmax, x(), 1),
        (aten.threshold_backward, x(), x(), 0),
        (aten.lerp, x(), x(), 0.3),
        (aten.addcmul, x(), x(), x()),
        (aten.where, chosen, x(), x()),
        (aten.masked_fill, x(), chosen, 0.0),
        *((aten.cat, [x(), x()], dim) for dim in (0, 1)),
        (aten.stack, [x(), x()], 2),
        (aten.constant_pad_nd, x(), [1, 1]),
        (aten.slice_backward, x(), [384, 64], 0, 0, 192, 1),
        (aten.select_backward, x(64), [192, 64], 0, 3),
        *((aten.roll, x(), [2] * len(dims), dims) for dims in ([0], [1], [0, 1])),
        (aten.flip, x(), [0]),
        (aten.native_layer_norm, x(), [64], x(64), x(64), 1e-5),
        (aten.native_layer_norm_backward, x(), x(), [64], x(192, 1), x(192, 1), x(64), x(64), [True] * 3),
        (aten.native_group_norm, x(8, 16, 32), x(16), x(16), 8, 16, 32, 4, 1e-5),
        (aten.embedding, x(), numbers.view(48, 4)),
        (aten.embedding_dense_backward, x(), numbers, 256, -1, False),
        (aten.nll_loss_forward, x(), numbers, None, 1, -100),
        (aten.triu, x()),
        (aten.max_pool2d_with_indices, x(4, 8, 16, 16), [2, 2]),
        (aten.mm, x(), x(64, 128)),
        (aten.addmm, x(192, 128), x(), x(64, 128)),
        (aten.bmm, x(4, 64, 32), x(4, 32, 48)),
        (aten.native_dropout, x(), 0.3, True),
        (aten.native_dropout_backward, x(), chosen, 1.4),
    ]


LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2),
    "outer transposed": lambda x: x.transpose(0, 1).contiguous().transpose(0, 1),
    "with gaps": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "a part of rows": lambda x: torch.cat([x, x], -1)[..., : x.shape[-1]],
    "expanded": lambda x: x[..., :1].expand(x.shape),
    "rows expanded": lambda x: x[:1].expand(x.shape),
}


def nodes_of(function: Any, *given: Any) -> list[torch.fx.Node]:
    """The operators of a call whose tensors are what ``given`` holds, traced; none if it does not run."""
    leaves, spec = pytree.tree_flatten(given)
    at = [i for i, leaf in enumerate(leaves) if isinstance(leaf, Tensor)]

    def call(*tensors: Tensor) -> Any:
        filled = list(leaves)
        for i, tensor in zip(at, tensors):
            filled[i] = tensor
        return function(*pytree.tree_unflatten(filled, spec))

    try:
        gm = make_fx(call, tracing_mode="fake")(*(leaves[i] for i in at))
    except (RuntimeError, NotImplementedError):  # a type that the operator does not take
        return []
    return [node for node in gm.graph.nodes if isinstance(node.target, torch._ops.OpOverload)]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_rule_says_what_the_operator_takes_in_any_layout(layout: str) -> None:
    found: list[torch.fx.Node] = []
    for function, *given in calls():
        for dtype in (torch.float32, torch.bfloat16):

            def convert(leaf: Any, dtype: torch.dtype = dtype) -> Any:
                if not isinstance(leaf, Tensor):
                    return leaf
                leaf = leaf.to(dtype) if leaf.is_floating_point() else leaf
                return LAYOUTS[layout](leaf) if leaf.dim() > 1 else leaf

            found += nodes_of(function, *pytree.tree_map(convert, given))
    rules = {node: nbytes for node in found if (nbytes := workspaces._by_rule(node)) is not None}
    assert rules
    measured = measured_workspaces._measure(list(rules))
    assert [
        (node.format_node(), measured[node], n) for node, n in rules.items() if measured[node] > n + 64
    ] == []


@torch.library.custom_op("dtr_test::wide", mutates_args=())
def wide(x: Tensor) -> Tensor:
    """Sixteen times its result, for a moment."""
    return torch.stack([x.sin()] * 16).sum(0)


@wide.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.LSTM(8, 16, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.cells(x)[0].sin().sum()


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (Recurrent(), (16, 4, 8)),
        (lambda x: F.cosine_similarity(x.sin().unsqueeze(0), x.cos().unsqueeze(1), -1).sum(), (32, 32)),
        (lambda x: wide(x.cos()).sum(), (64, 64)),
    ],
    ids=["a module", "a function", "a custom operator"],
)
def test_what_is_no_operator_of_pytorchs_is_measured(function: Any, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape)
    gm = torch.fx.symbolic_trace(function)
    rewritten, report = dtr_fx.transform(gm, 1.0, example_inputs=[x])
    held = sum(tensor.nbytes for tensor in (x, *gm.parameters()))
    with torch.no_grad():
        assert held + dtr_fx.measure_peak(rewritten, x) == report.planned_peak
