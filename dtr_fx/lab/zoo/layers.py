"""Parts that several models are made of."""

from __future__ import annotations

import torch
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


def labelled_images(batch: int, size: int, classes: int) -> tuple[Tensor, Tensor]:
    """Random images of three channels, each with a class."""
    return torch.randn(batch, 3, size, size), torch.randint(classes, (batch,))
