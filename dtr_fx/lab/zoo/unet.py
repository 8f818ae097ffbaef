"""U-Net: Ronneberger et al., U-Net: Convolutional Networks for Biomedical Image Segmentation, MICCAI 2015."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dtr_fx.lab.zoo.layers import Model, conv_norm_relu


def crop(x: Tensor, size: int) -> Tensor:
    """The middle ``size`` × ``size`` pixels."""
    if x.shape[-1] == size:
        return x
    start = (x.shape[-1] - size) // 2
    return x[:, :, start : start + size, start : start + size]


class UNet(nn.Module):
    """Figure 1: down and up again, with the cropped features of the way down joined on the way up."""

    channels = 1
    dropout = 0.5

    def __init__(self, *, depth: int, width: int, classes: int) -> None:
        super().__init__()
        widths = [width << level for level in range(depth + 1)]
        upward = list(reversed(widths))
        self.down = nn.ModuleList(self.convs(a, b) for a, b in pairwise([self.channels, *widths]))
        self.up = nn.ModuleList(nn.ConvTranspose2d(a, b, 2, stride=2) for a, b in pairwise(upward))
        self.merge = nn.ModuleList(self.convs(a, b) for a, b in pairwise(upward))
        self.head = nn.Conv2d(width, classes, 1)

    def convs(self, inputs: int, outputs: int) -> nn.Module:
        """Two unpadded convolutions: the image loses 4 pixels."""
        first, second = nn.Conv2d(inputs, outputs, 3), nn.Conv2d(outputs, outputs, 3)
        return nn.Sequential(first, nn.ReLU(inplace=True), second, nn.ReLU(inplace=True))

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        logits = self.logits(images)
        return F.cross_entropy(logits, crop(labels.unsqueeze(1), logits.shape[-1]).squeeze(1))

    def logits(self, images: Tensor) -> Tensor:
        x = self.down[0](images)
        skips = []
        for down in self.down[1:]:
            skips.append(x)
            x = down(F.max_pool2d(x, 2))
        if self.dropout:
            x = F.dropout(x, self.dropout, self.training)
        for up, merge in zip(self.up, self.merge):
            x = up(x)
            x = merge(torch.cat([crop(skips.pop(), x.shape[-1]), x], 1))
        return self.head(x)


class PaddedUNet(UNet):
    """A U-Net as people train it today: padded convolutions and batch norms."""

    channels = 3
    dropout = 0.0

    def convs(self, inputs: int, outputs: int) -> nn.Module:
        """Two padded convolutions: the image keeps its size."""
        return nn.Sequential(*conv_norm_relu(inputs, outputs, 3), *conv_norm_relu(outputs, outputs, 3))

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.logits(images), labels)


def unet(width: int = 8, batch: int = 2, size: int = 252) -> Model:
    """U-Net at an eighth of its width, and a batch of random images with a class for each pixel."""
    model = UNet(depth=4, width=width, classes=2)
    return model, (torch.randn(batch, 1, size, size), torch.randint(2, (batch, size, size)))


def unet_bn(depth: int = 4, width: int = 8, batch: int = 8, size: int = 64, classes: int = 4) -> Model:
    """A padded U-Net and a batch of random images with a class for each pixel."""
    model = PaddedUNet(depth=depth, width=width, classes=classes)
    return model, (torch.randn(batch, 3, size, size), torch.randint(classes, (batch, size, size)))
