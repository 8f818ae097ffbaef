"""Parts that several models are made of."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Model = tuple[nn.Module, tuple[Tensor, ...]]
Kernel = int | tuple[int, int]


def conv_norm(inputs: int, outputs: int, kernel: Kernel, stride: int = 1, groups: int = 1) -> list[nn.Module]:
    """A convolution that keeps the size of its input (up to the stride), and its batch norm."""
    height, width = (kernel, kernel) if isinstance(kernel, int) else kernel
    padding = height // 2, width // 2
    convolution = nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False)
    return [convolution, nn.BatchNorm2d(outputs)]


def conv_norm_relu(inputs: int, outputs: int, kernel: Kernel, stride: int = 1) -> list[nn.Module]:
    return [*conv_norm(inputs, outputs, kernel, stride), nn.ReLU(inplace=True)]


class ImageClassifier(nn.Module):
    """Modules in a row, the mean over the pixels, the last module, called ``head``, and the loss."""

    head: nn.Module

    def __init__(self, **row: nn.Module) -> None:
        super().__init__()
        for name, module in row.items():
            self.add_module(name, module)
        *self.body, _ = row

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        x = images
        for name in self.body:
            x = getattr(self, name)(x)
        return F.cross_entropy(self.head(x.mean((2, 3))), labels)


class BlockClassifier(ImageClassifier):
    """The blocks are in the second module of the row."""

    def blocks_to_checkpoint(self) -> list[nn.Module]:
        return list(getattr(self, self.body[1]))


def labelled_images(batch: int, size: int, classes: int) -> tuple[Tensor, Tensor]:
    """Random images of three channels, each with a class."""
    return torch.randn(batch, 3, size, size), torch.randint(classes, (batch,))
