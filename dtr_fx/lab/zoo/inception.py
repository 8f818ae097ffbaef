"""Inception-v4: Szegedy et al., Inception-v4, Inception-ResNet and the Impact of Residual Connections on
Learning, AAAI 2017.  The blocks of Figures 3 to 9 at a fraction of their width; all convolutions are padded,
so that images may be smaller than the paper's 299 pixels.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dtr_fx.lab.zoo.layers import ImageClassifier, Kernel, Model, conv_norm_relu, labelled_images


def conv(inputs: int, outputs: int, kernel: Kernel, stride: int = 1) -> nn.Module:
    return nn.Sequential(*conv_norm_relu(inputs, outputs, kernel, stride))


def convs(inputs: int, *specs: tuple[int, Kernel]) -> nn.Sequential:
    """Convolutions in a row, each given by its outputs and kernel."""
    widths = [inputs, *(outputs for outputs, _ in specs)]
    return nn.Sequential(*(conv(width, *spec) for width, spec in zip(widths, specs)))


def halve(*layers: nn.Module, inputs: int, outputs: int) -> nn.Sequential:
    """Layers and a strided convolution."""
    return nn.Sequential(*layers, conv(inputs, outputs, 3, 2))


def pooled(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.AvgPool2d(3, stride=1, padding=1), conv(inputs, outputs, 1))


def max_pool() -> nn.Module:
    return nn.MaxPool2d(3, stride=2, padding=1)


class Branches(nn.Module):
    """Modules side by side on one input, their outputs concatenated."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def stem(u: int) -> nn.Module:
    """Figure 3; ``u`` is a 32nd of the paper's width (1 there is 32 channels). 12 u channels."""
    return nn.Sequential(
        conv(3, u, 3, 2),
        convs(u, (u, 3), (2 * u, 3)),
        Branches(max_pool(), conv(2 * u, 3 * u, 3, 2)),
        Branches(
            convs(5 * u, (2 * u, 1), (3 * u, 3)),
            convs(5 * u, (2 * u, 1), (2 * u, (7, 1)), (2 * u, (1, 7)), (3 * u, 3)),
        ),
        Branches(conv(6 * u, 6 * u, 3, 2), max_pool()),
    )


def block_a(u: int) -> nn.Module:
    """Figure 4: 12 u channels in and out."""
    return Branches(
        pooled(12 * u, 3 * u),
        conv(12 * u, 3 * u, 1),
        convs(12 * u, (2 * u, 1), (3 * u, 3)),
        convs(12 * u, (2 * u, 1), (3 * u, 3), (3 * u, 3)),
    )


def reduction_a(u: int) -> nn.Module:
    """Figure 7: from 12 u to 32 u channels, half the size."""
    return Branches(
        max_pool(),
        conv(12 * u, 12 * u, 3, 2),
        halve(convs(12 * u, (6 * u, 1), (7 * u, 3)), inputs=7 * u, outputs=8 * u),
    )


def block_b(u: int) -> nn.Module:
    """Figure 5: 32 u channels in and out."""
    return Branches(
        pooled(32 * u, 4 * u),
        conv(32 * u, 12 * u, 1),
        convs(32 * u, (6 * u, 1), (7 * u, (1, 7)), (8 * u, (7, 1))),
        convs(32 * u, (6 * u, 1), (6 * u, (1, 7)), (7 * u, (7, 1)), (7 * u, (1, 7)), (8 * u, (7, 1))),
    )


def reduction_b(u: int) -> nn.Module:
    """Figure 8: from 32 u to 48 u channels, half the size."""
    return Branches(
        max_pool(),
        halve(conv(32 * u, 6 * u, 1), inputs=6 * u, outputs=6 * u),
        halve(convs(32 * u, (8 * u, 1), (8 * u, (1, 7)), (10 * u, (7, 1))), inputs=10 * u, outputs=10 * u),
    )


def fork(inputs: int, outputs: int) -> nn.Module:
    """A 1 × 3 and a 3 × 1 convolution side by side."""
    return Branches(conv(inputs, outputs, (1, 3)), conv(inputs, outputs, (3, 1)))


def block_c(u: int) -> nn.Module:
    """Figure 6: 48 u channels in and out."""
    return Branches(
        pooled(48 * u, 8 * u),
        conv(48 * u, 8 * u, 1),
        nn.Sequential(conv(48 * u, 12 * u, 1), fork(12 * u, 8 * u)),
        nn.Sequential(convs(48 * u, (12 * u, 1), (14 * u, (1, 3)), (16 * u, (3, 1))), fork(16 * u, 8 * u)),
    )


def inception_v4(*, unit: int, classes: int) -> nn.Module:
    """Figure 9: 4 A blocks, 7 B blocks and 3 C blocks; ``unit`` channels stand for 32 of the paper's."""
    features = nn.Sequential(
        stem(unit),
        *(block_a(unit) for _ in range(4)),
        reduction_a(unit),
        *(block_b(unit) for _ in range(7)),
        reduction_b(unit),
        *(block_c(unit) for _ in range(3)),
    )
    return ImageClassifier(
        features=features, head=nn.Sequential(nn.Dropout(0.2), nn.Linear(48 * unit, classes))
    )


def inception(unit: int = 2, batch: int = 16, size: int = 128) -> Model:
    """Inception-v4 at a sixteenth of its width, and a batch of random images."""
    return inception_v4(unit=unit, classes=10), labelled_images(batch, size, 10)
