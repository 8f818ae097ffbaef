"""ResNet-50 (He et al., arXiv:1512.03385, Section 4.1), narrow."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Bottleneck(nn.Module):
    """Three convolutions around a shortcut, the middle one at a quarter of the width."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * self.expansion
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
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.residual(x) + self.shortcut(x))


class ResNet(nn.Module):
    """ResNet with bottlenecks: ``blocks=(3, 4, 6, 3)`` and ``width=64`` make ResNet-50."""

    def __init__(self, *, blocks: tuple[int, ...], width: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(3, stride=2, padding=1),
        )
        stages: list[nn.Module] = []
        channels = width
        for stage, count in enumerate(blocks):
            for block in range(count):
                stride = 2 if stage > 0 and block == 0 else 1
                stages.append(Bottleneck(channels, width << stage, stride))
                channels = (width << stage) * Bottleneck.expansion
        self.stages = nn.Sequential(*stages)
        self.head = nn.Linear(channels, classes)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        features = self.stages(self.stem(images)).mean((2, 3))
        return F.cross_entropy(self.head(features), labels)


def resnet50(
    blocks: tuple[int, ...] = (3, 4, 6, 3), width: int = 8, batch: int = 32, size: int = 64, classes: int = 10
) -> tuple[nn.Module, tuple[Tensor, ...]]:
    """Its depth and shape at an eighth of its width, and a batch of random images."""
    model = ResNet(blocks=blocks, width=width, classes=classes)
    return model, (torch.randn(batch, 3, size, size), torch.randint(classes, (batch,)))
