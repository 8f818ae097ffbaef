"""ResNet-32 and ResNet-50: He et al., Deep Residual Learning for Image Recognition, CVPR 2016."""

from __future__ import annotations

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor, nn

from dtr_fx.lab.zoo.layers import ImageClassifier, Model, conv_norm, conv_norm_relu, labelled_images

_EXPANSION = 4


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
    """For CIFAR-10 (Section 4.2): three stages of ``blocks`` blocks each, 6 · ``blocks`` + 2 layers."""

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


class Bottleneck(nn.Module):
    """Three convolutions around a shortcut (Figure 5, right), the middle one at a quarter of the width."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = width * _EXPANSION
        self.residual = nn.Sequential(
            *conv_norm_relu(inputs, width, 1),
            *conv_norm_relu(width, width, 3, stride),
            *conv_norm(width, outputs, 1),
        )
        projection = conv_norm(inputs, outputs, 1, stride) if inputs != outputs else ()
        self.shortcut = nn.Sequential(*projection)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.residual(x) + self.shortcut(x))


class ResNet50(ImageClassifier):
    """For ImageNet (Table 1): a stem, and stages of so many blocks."""

    def __init__(self, *, blocks: Sequence[int], width: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(*conv_norm_relu(3, width, 7, 2), nn.MaxPool2d(3, stride=2, padding=1))
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

    def features(self, images: Tensor) -> Tensor:
        x: Tensor = self.stem(images)
        for block in self.stages:
            x = block(x)
        return x


def resnet50(
    batch: int = 16,
    width: int = 8,
    size: int = 64,
    classes: int = 10,
    blocks: Sequence[int] = (3, 4, 6, 3),
) -> Model:
    """ResNet-50 in depth, an eighth of its width, and a batch of random images; width 64 is its own."""
    model = ResNet50(blocks=blocks, width=width, classes=classes)
    return model, labelled_images(batch, size, classes)
