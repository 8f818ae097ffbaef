"""ResNet-32 for CIFAR-10: He et al., Deep Residual Learning for Image Recognition, CVPR 2016, Section 4.2."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from dtr_fx.lab.zoo.layers import ImageClassifier, Model, conv_norm, conv_norm_relu, labelled_images


class BasicBlock(nn.Module):
    """Two convolutions around a shortcut without parameters (option A): strided, new channels zero."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.stride = outputs // inputs
        self.new_channels = outputs - inputs
        self.residual = nn.Sequential(
            *conv_norm_relu(inputs, outputs, 3, self.stride), *conv_norm(outputs, outputs, 3)
        )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.residual(x) + self.shortcut(x))

    def shortcut(self, x: Tensor) -> Tensor:
        if not self.new_channels:
            return x
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.new_channels))


class ResNet(ImageClassifier):
    """Three stages of ``blocks`` blocks each, 6 · ``blocks`` + 2 layers in all."""

    def __init__(self, *, blocks: int, width: int, classes: int) -> None:
        super().__init__()
        widths = [width] * blocks + [2 * width] * blocks + [4 * width] * blocks
        self.stem = nn.Sequential(*conv_norm_relu(3, width, 3))
        self.blocks = nn.Sequential(*(BasicBlock(a, b) for a, b in zip([width, *widths], widths)))
        self.head = nn.Linear(4 * width, classes)

    def blocks_to_checkpoint(self) -> list[nn.Module]:
        return list(self.blocks)

    def features(self, images: Tensor) -> Tensor:
        features: Tensor = self.blocks(self.stem(images))
        return features


def resnet32(batch: int = 16, *, blocks: int = 5) -> Model:
    """ResNet-32 in its own size, and a batch of random images of CIFAR's; 200 blocks make ResNet-1202."""
    return ResNet(blocks=blocks, width=16, classes=10), labelled_images(batch, 32, 10)
