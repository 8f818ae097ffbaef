"""A U-Net as people train it today: padded convolutions and batch norms."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dtr_fx.lab.zoo.layers import Model, conv_norm_relu


def double_conv(inputs: int, outputs: int) -> nn.Sequential:
    """Two padded convolutions: the image keeps its size."""
    return nn.Sequential(*conv_norm_relu(inputs, outputs, 3), *conv_norm_relu(outputs, outputs, 3))


class PaddedUNet(nn.Module):
    """A segmentation network whose skip connections keep early activations alive to the end."""

    def __init__(self, *, depth: int, width: int, classes: int) -> None:
        super().__init__()
        widths = [width << level for level in range(depth + 1)]
        self.down = nn.ModuleList(double_conv(a, b) for a, b in zip([3, *widths], widths))
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(b, a, 2, stride=2) for a, b in reversed(list(pairwise(widths)))
        )
        self.merge = nn.ModuleList(double_conv(2 * a, a) for a in reversed(widths[:-1]))
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        skips: list[Tensor] = []
        x = self.down[0](images)
        for down in self.down[1:]:
            skips.append(x)
            x = down(F.max_pool2d(x, 2))
        for up, merge in zip(self.up, self.merge):
            x = merge(torch.cat([skips.pop(), up(x)], dim=1))
        return F.cross_entropy(self.head(x), labels)


def unet_bn(depth: int = 4, width: int = 8, batch: int = 8, size: int = 64, classes: int = 4) -> Model:
    """A U-Net and a batch of random images with a class for each pixel."""
    model = PaddedUNet(depth=depth, width=width, classes=classes)
    return model, (torch.randn(batch, 3, size, size), torch.randint(classes, (batch, size, size)))
