"""Every class of ``torch.nn`` trains under ``dtr`` as under ``aot_eager``.

In training mode, at 100% of its peak and at the smallest budget that works; see ``steps``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from steps import Job, Make, between, check
from torch import Tensor, nn

# Classes that are not trained here, and why.
LEFT_OUT = {
    "Module": "abstract",
    "RNNBase": "abstract",
    "RNNCellBase": "abstract",
    "Container": "abstract, and deprecated",
    "SyncBatchNorm": "in training it takes CUDA inputs and a process group only",
}


class Holder(nn.Module):
    """A model that keeps its parts in containers, which have no ``forward`` of their own."""

    def __init__(self, held: nn.Module, compute: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.held = held
        self.compute = compute

    def forward(self, x: Tensor) -> Tensor:
        return self.compute(self.held, x)


def real(*shape: int) -> Tensor:
    return torch.randn(*shape, requires_grad=True)


def given(*shape: int) -> Tensor:
    return torch.randn(*shape)


def labels(count: int, *shape: int) -> Tensor:
    return torch.randint(count, shape)


def signs(*shape: int) -> Tensor:
    return torch.randint(2, shape) * 2.0 - 1


# Batches of one, two and three spatial dimensions, 4,096 to 6,144 elements.
LINE, PLANE, SPACE = (8, 4, 128), (4, 4, 16, 16), (2, 4, 8, 8, 8)
SHAPES = {1: LINE, 2: PLANE, 3: SPACE}
FLAT = (96, 64)


def pointwise(*names: str) -> dict[str, list[Make]]:
    return {name: [lambda name=name: between(getattr(nn, name)(), real(*FLAT))] for name in names}


def inplace(*names: str) -> dict[str, list[Make]]:
    """AOTAutograd makes the same graph of them out of place."""
    return {name: [lambda name=name: between(getattr(nn, name)(inplace=True), real(*FLAT))] for name in names}


def spatial(name: str, *args: Any, dims: tuple[int, ...] = (1, 2, 3), **kwargs: Any) -> dict[str, list[Make]]:
    """``nn.<name>1d`` to ``3d``, with the same arguments."""
    return {
        f"{name}{n}d": [lambda n=n: between(getattr(nn, f"{name}{n}d")(*args, **kwargs), real(*SHAPES[n]))]
        for n in dims
    }


def lazy(name: str, *args: Any, **kwargs: Any) -> dict[str, list[Make]]:
    """A lazy module is compiled at its first call, which also makes it what it stays."""
    return spatial(f"Lazy{name}", *args, **kwargs)


def padding(name: str, *args: Any) -> dict[str, list[Make]]:
    """``nn.<name>1d`` to ``3d``, each side padded by another width."""
    return {
        f"{name}{n}d": [
            lambda n=n: between(
                getattr(nn, f"{name}{n}d")(tuple(range(1, 2 * n + 1)), *args), real(*SHAPES[n])
            )
        ]
        for n in SHAPES
    }


def unpooling(n: int) -> Job:
    class PoolAndBack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pool = getattr(nn, f"MaxPool{n}d")(2, return_indices=True)
            self.unpool = getattr(nn, f"MaxUnpool{n}d")(2)

        def forward(self, x: Tensor) -> Tensor:
            pooled, indices = self.pool(x)
            return self.unpool(pooled, indices)

    return between(PoolAndBack(), real(*SHAPES[n]))


def pairs(*names: str, target: Callable[..., Tensor] = given) -> dict[str, list[Make]]:
    """Losses of a prediction and a target of its shape."""
    return {
        name: [lambda name=name: between(getattr(nn, name)(), real(*FLAT), target(*FLAT))] for name in names
    }


def triplets(name: str) -> dict[str, list[Make]]:
    return {name: [lambda: between(getattr(nn, name)(swap=True), real(*FLAT), real(*FLAT), real(*FLAT))]}


def recurrent(name: str, cell: str) -> dict[str, list[Make]]:
    """Without dropout, which ``aot_eager`` leaves out between layers; see ``test_frames``."""
    module, single = getattr(nn, name), getattr(nn, cell)
    return {
        name: [lambda: between(module(16, 8, num_layers=2, batch_first=True), real(16, 2, 16))],
        cell: [lambda: between(single(16, 24), real(64, 16))],
    }


def ctc() -> Job:
    lengths = torch.tensor([3, 5, 2, 4])
    return between(
        nn.CTCLoss(),
        real(12, 4, 20),
        1 + labels(19, 4, 5),
        torch.full((4,), 12),
        lengths,
        prepare=partial(torch.log_softmax, dim=-1),
    )


def transformer_layer(kind: str, **kwargs: Any) -> nn.Module:
    module = getattr(nn, f"Transformer{kind}Layer")
    return module(32, 2, dim_feedforward=64, batch_first=True, **kwargs)


def attention(**kwargs: Any) -> nn.Module:
    return nn.MultiheadAttention(32, 4, dropout=0.2, batch_first=True, **kwargs)


def source() -> Tensor:
    return real(4, 12, 32)


CASES: dict[str, list[Make]] = {
    # pointwise
    **pointwise("GELU", "Hardshrink", "LogSigmoid", "Sigmoid", "Softplus", "Softshrink", "Softsign", "Tanh"),
    **pointwise("Tanhshrink", "PReLU", "Identity", "AlphaDropout", "FeatureAlphaDropout"),
    **inplace("CELU", "ELU", "Hardsigmoid", "Hardswish", "Hardtanh", "LeakyReLU", "Mish", "ReLU", "ReLU6"),
    **inplace("RReLU", "SELU", "SiLU", "Dropout"),
    "Threshold": [lambda: between(nn.Threshold(0.1, 20.0), real(*FLAT))],
    "GLU": [lambda: between(nn.GLU(), real(*FLAT))],
    "Softmax": [lambda: between(nn.Softmax(-1), real(*FLAT))],
    "LogSoftmax": [lambda: between(nn.LogSoftmax(0), real(*FLAT))],
    "Softmin": [lambda: between(nn.Softmin(-1), real(*FLAT))],
    "Softmax2d": [lambda: between(nn.Softmax2d(), real(*PLANE))],
    **spatial("Dropout"),
    # shapes
    "Flatten": [lambda: between(nn.Flatten(), real(*PLANE))],
    "Unflatten": [lambda: between(nn.Unflatten(1, (8, 8)), real(*FLAT))],
    "Fold": [lambda: between(nn.Fold((9, 9), 3, stride=2), real(8, 36, 16))],
    "Unfold": [lambda: between(nn.Unfold(3, padding=1), real(*PLANE))],
    "PixelShuffle": [lambda: between(nn.PixelShuffle(2), real(*PLANE))],
    "PixelUnshuffle": [lambda: between(nn.PixelUnshuffle(2), real(*PLANE))],
    "ChannelShuffle": [lambda: between(nn.ChannelShuffle(2), real(*PLANE))],
    "Upsample": [
        lambda: between(nn.Upsample(scale_factor=2), real(*LINE)),
        lambda: between(nn.Upsample(scale_factor=1.5, mode="bicubic", align_corners=False), real(*PLANE)),
    ],
    "UpsamplingBilinear2d": [lambda: between(nn.UpsamplingBilinear2d(scale_factor=2), real(*PLANE))],
    "UpsamplingNearest2d": [lambda: between(nn.UpsamplingNearest2d(scale_factor=2), real(*PLANE))],
    **padding("CircularPad"),
    **padding("ConstantPad", 3.5),
    **padding("ReflectionPad"),
    **padding("ReplicationPad"),
    **padding("ZeroPad"),
    # pooling
    **spatial("AdaptiveAvgPool", 5),
    **spatial("AdaptiveMaxPool", 5),
    **spatial("AvgPool", 3, stride=2),
    **spatial("FractionalMaxPool", 2, output_ratio=0.5, dims=(2, 3)),
    **spatial("LPPool", 2, 3),
    **spatial("MaxPool", 3, stride=2),
    "MaxUnpool1d": [lambda: unpooling(1)],
    "MaxUnpool2d": [lambda: unpooling(2)],
    "MaxUnpool3d": [lambda: unpooling(3)],
    # linear, convolution, normalisation
    "Linear": [lambda: between(nn.Linear(64, 32), real(*FLAT))],
    "LazyLinear": [lambda: between(nn.LazyLinear(32), real(*FLAT))],
    "Bilinear": [lambda: between(nn.Bilinear(64, 16, 8), real(*FLAT), real(96, 16))],
    **spatial("Conv", 4, 6, 3, padding=1, padding_mode="reflect"),
    **spatial("ConvTranspose", 4, 6, 3, stride=2),
    **lazy("Conv", 6, 3),
    **lazy("ConvTranspose", 6, 3),
    **spatial("BatchNorm", 4),
    **spatial("InstanceNorm", 4, affine=True, track_running_stats=True),
    **lazy("BatchNorm"),
    **lazy("InstanceNorm"),
    "GroupNorm": [lambda: between(nn.GroupNorm(2, 4), real(*PLANE))],
    "LayerNorm": [lambda: between(nn.LayerNorm(64), real(*FLAT))],
    "RMSNorm": [lambda: between(nn.RMSNorm(64), real(*FLAT))],
    "LocalResponseNorm": [lambda: between(nn.LocalResponseNorm(2), real(*PLANE))],
    "CrossMapLRN2d": [lambda: between(nn.CrossMapLRN2d(2), real(*PLANE))],
    # embeddings
    "Embedding": [
        lambda: between(nn.Embedding(30, 32, padding_idx=3, scale_grad_by_freq=True), labels(30, 8, 16)),
        lambda: between(nn.Embedding(30, 32, max_norm=1.0), labels(30, 8, 16)),
    ],
    "EmbeddingBag": [
        lambda: between(nn.EmbeddingBag(30, 32), labels(30, 64, 5)),
        lambda: between(nn.EmbeddingBag(30, 32, mode="max"), labels(30, 64), torch.arange(0, 64, 4)),
        lambda: between(
            nn.EmbeddingBag(30, 32, mode="sum"), labels(30, 64, 5), per_sample_weights=real(64, 5)
        ),
    ],
    # recurrence and attention
    **recurrent("RNN", "RNNCell"),
    **recurrent("GRU", "GRUCell"),
    **recurrent("LSTM", "LSTMCell"),
    "MultiheadAttention": [
        lambda: between(attention(), source(), source(), source()),
        lambda: between(
            attention(add_bias_kv=True),
            source(),
            source(),
            source(),
            need_weights=False,
            is_causal=True,
            attn_mask=nn.Transformer.generate_square_subsequent_mask(12),
        ),
    ],
    "TransformerEncoderLayer": [lambda: between(transformer_layer("Encoder"), source())],
    "TransformerDecoderLayer": [
        lambda: between(transformer_layer("Decoder", activation="gelu", norm_first=True), source(), source())
    ],
    "TransformerEncoder": [lambda: between(nn.TransformerEncoder(transformer_layer("Encoder"), 2), source())],
    "TransformerDecoder": [
        lambda: between(nn.TransformerDecoder(transformer_layer("Decoder"), 1), source(), source())
    ],
    "Transformer": [
        lambda: between(nn.Transformer(32, 2, 1, 1, 64, batch_first=True), source(), real(4, 5, 32))
    ],
    # distances and losses
    "CosineSimilarity": [lambda: between(nn.CosineSimilarity(), real(*FLAT), real(*FLAT))],
    "PairwiseDistance": [lambda: between(nn.PairwiseDistance(), real(*FLAT), real(*FLAT))],
    **pairs("L1Loss", "MSELoss", "SmoothL1Loss", "HuberLoss", "PoissonNLLLoss"),
    **pairs("HingeEmbeddingLoss", "SoftMarginLoss", target=signs),
    **pairs("BCEWithLogitsLoss", "MultiLabelSoftMarginLoss", target=lambda *shape: labels(2, *shape).float()),
    "KLDivLoss": [
        lambda: between(nn.KLDivLoss(reduction="batchmean"), real(*FLAT), given(*FLAT).softmax(-1)),
        lambda: between(nn.KLDivLoss(reduction="sum", log_target=True), real(*FLAT), given(*FLAT)),
    ],
    "BCELoss": [lambda: between(nn.BCELoss(), real(*FLAT), labels(2, *FLAT).float(), prepare=torch.sigmoid)],
    "GaussianNLLLoss": [lambda: between(nn.GaussianNLLLoss(), real(*FLAT), given(*FLAT), given(*FLAT).exp())],
    "CrossEntropyLoss": [
        lambda: between(
            nn.CrossEntropyLoss(given(64).exp(), label_smoothing=0.1), real(*FLAT), labels(64, 96)
        ),
        lambda: between(nn.CrossEntropyLoss(), real(*FLAT), given(*FLAT).softmax(-1)),
    ],
    "NLLLoss": [lambda: between(nn.NLLLoss(ignore_index=3), real(*FLAT), labels(64, 96))],
    "NLLLoss2d": [lambda: between(nn.NLLLoss2d(), real(*PLANE), labels(4, 4, 16, 16))],
    "MultiMarginLoss": [lambda: between(nn.MultiMarginLoss(), real(*FLAT), labels(64, 96))],
    "MultiLabelMarginLoss": [lambda: between(nn.MultiLabelMarginLoss(), real(*FLAT), labels(64, *FLAT))],
    "CosineEmbeddingLoss": [lambda: between(nn.CosineEmbeddingLoss(), real(*FLAT), real(*FLAT), signs(96))],
    "MarginRankingLoss": [lambda: between(nn.MarginRankingLoss(0.1), real(96), real(96), signs(96))],
    **triplets("TripletMarginLoss"),
    **triplets("TripletMarginWithDistanceLoss"),
    "CTCLoss": [ctc],
    "AdaptiveLogSoftmaxWithLoss": [
        lambda: between(nn.AdaptiveLogSoftmaxWithLoss(64, 40, [10, 20]), real(*FLAT), labels(40, 96))
    ],
    "LinearCrossEntropyLoss": [
        lambda: between(nn.LinearCrossEntropyLoss(64, 20), real(*FLAT), labels(20, 96))
    ],
    # containers
    "Sequential": [lambda: between(nn.Sequential(nn.Linear(64, 32), nn.ReLU()), real(*FLAT))],
    "ModuleList": [
        lambda: between(
            Holder(nn.ModuleList([nn.Linear(64, 64)]), lambda held, x: held[0](x)),
            real(*FLAT),
        )
    ],
    "ModuleDict": [
        lambda: between(
            Holder(nn.ModuleDict({"a": nn.Linear(64, 64)}), lambda held, x: held["a"](x)), real(*FLAT)
        )
    ],
    "ParameterList": [
        lambda: between(Holder(nn.ParameterList([given(64, 8)]), lambda held, x: x @ held[0]), real(*FLAT))
    ],
    "ParameterDict": [
        lambda: between(
            Holder(nn.ParameterDict({"w": given(64, 8)}), lambda held, x: x @ held["w"]), real(*FLAT)
        )
    ],
    "DataParallel": [lambda: between(nn.DataParallel(nn.Linear(64, 32)), real(*FLAT))],
}


# One of a kind; -m slow runs them all.
SOME = set(
    "RReLU-0 MaxUnpool2d-0 LazyConv1d-0 BatchNorm2d-0 InstanceNorm1d-0 EmbeddingBag-2 RNN-0 CTCLoss-0 "
    "TransformerEncoderLayer-0 CrossEntropyLoss-0 ParameterDict-0 DataParallel-0".split()
)


def cases() -> Iterator[Any]:
    for name in classes():
        for number, make in enumerate(CASES.get(name, ())):
            case = f"{name}-{number}"
            yield pytest.param(make, id=case, marks=() if case in SOME else pytest.mark.slow)


def classes() -> Iterator[str]:
    for name, value in vars(nn).items():
        if isinstance(value, type) and issubclass(value, nn.Module) and not name.startswith("_"):
            yield name


def test_every_class_is_trained_or_left_out_with_a_reason() -> None:
    assert sorted({*classes()} - {*CASES} - {*LEFT_OUT}) == []
    assert not {*CASES} & {*LEFT_OUT}


@pytest.mark.filterwarnings("ignore:`NLLLoss2d` has been deprecated:FutureWarning")
@pytest.mark.parametrize("make", [*cases()])
def test_a_module_trains_as_under_aot_eager(make: Make) -> None:
    full, small = check(make)
    assert full.reports
    assert small.changes > 0
