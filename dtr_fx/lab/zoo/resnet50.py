"""ResNet-50 for ImageNet: He et al., Deep Residual Learning for Image Recognition, CVPR 2016, Table 1."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_EXPANSION = 4


class Bottleneck(nn.Module):
    """Three convolutions around a shortcut (Figure 5, right), the middle one at a quarter of the width."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * _EXPANSION
        self.residual = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = nn.Sequential()
        if inputs != outputs:
            self.shortcut.append(nn.Conv2d(inputs, outputs, 1, stride, bias=False))
            self.shortcut.append(nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.residual(x) + self.shortcut(x))


class ResNet50(nn.Module):
    """A stem, and stages of so many blocks."""

    def __init__(self, *, blocks: Sequence[int], width: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        channels = width
        self.stages = nn.ModuleList()
        for stage, count in enumerate(blocks):
            for block in range(count):
                stride = 2 if stage > 0 and block == 0 else 1
                self.stages.append(Bottleneck(channels, width << stage, stride))
                channels = (width << stage) * _EXPANSION
        self.head = nn.Linear(channels, classes)

    def blocks_to_checkpoint(self) -> list[nn.Module]:
        return list(self.stages)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        x = self.stem(images)
        for block in self.stages:
            x = block(x)
        return F.cross_entropy(self.head(x.mean((2, 3))), labels)


def resnet50(
    batch: int = 16,
    width: int = 8,
    size: int = 64,
    classes: int = 10,
    blocks: Sequence[int] = (3, 4, 6, 3),
) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """ResNet-50 in depth, an eighth of its width, and a batch of random images; width 64 is its own."""
    model = ResNet50(blocks=blocks, width=width, classes=classes)
    return model, (torch.randn(batch, 3, size, size), torch.randint(classes, (batch,)))
