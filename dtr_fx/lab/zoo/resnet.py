"""ResNet-32 for CIFAR-10: He et al., Deep Residual Learning for Image Recognition, CVPR 2016, Section 4.2."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class BasicBlock(nn.Module):
    """Two convolutions around a shortcut without parameters (option A): strided, new channels zero."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.stride = outputs // inputs
        self.new_channels = outputs - inputs
        self.residual = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, self.stride, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
            nn.ReLU(inplace=True),
            nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            nn.BatchNorm2d(outputs),
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.residual(x) + self.shortcut(x))

    def shortcut(self, x: Tensor) -> Tensor:
        if not self.new_channels:
            return x
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.new_channels))


class ResNet(nn.Module):
    """Three stages of ``blocks`` blocks each, 6 · ``blocks`` + 2 layers in all."""

    def __init__(self, *, blocks: int, width: int, classes: int) -> None:
        super().__init__()
        widths = [width] * blocks + [2 * width] * blocks + [4 * width] * blocks
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True)
        )
        self.blocks = nn.Sequential(*(BasicBlock(a, b) for a, b in zip([width, *widths], widths)))
        self.head = nn.Linear(4 * width, classes)

    def blocks_to_checkpoint(self) -> list[nn.Module]:
        return list(self.blocks)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        features = self.blocks(self.stem(images)).mean((2, 3))
        return F.cross_entropy(self.head(features), labels)


def resnet32(batch: int = 16) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """ResNet-32 in its own size, and a batch of random images of CIFAR's."""
    model = ResNet(blocks=5, width=16, classes=10)
    return model, (torch.randn(batch, 3, 32, 32), torch.randint(10, (batch,)))
