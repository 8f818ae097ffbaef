"""ShuffleNet V2: Ma et al., Practical Guidelines for Efficient CNN Architecture Design, ECCV 2018."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dtr_fx.lab.zoo.layers import ImageClassifier, Model, conv_norm, labelled_images


def convolution(inputs: int, outputs: int, size: int = 1, stride: int = 1, groups: int = 1) -> nn.Sequential:
    return nn.Sequential(*conv_norm(inputs, outputs, size, stride, groups))


def branch(inputs: int, outputs: int, stride: int) -> nn.Sequential:
    """Pointwise, depthwise, pointwise."""
    return nn.Sequential(
        convolution(inputs, outputs),
        nn.ReLU(inplace=True),
        convolution(outputs, outputs, 3, stride, groups=outputs),
        convolution(outputs, outputs),
        nn.ReLU(inplace=True),
    )


class Unit(nn.Module):
    """Figure 3 (c): half of the channels pass by, and the two halves are shuffled."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.branch = branch(width // 2, width // 2, stride=1)

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, 1)
        return F.channel_shuffle(torch.cat([left, self.branch(right)], 1), 2)


class Downsampling(nn.Module):
    """Figure 3 (d): both halves are made anew at half of the resolution."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.left = nn.Sequential(
            convolution(inputs, inputs, 3, 2, groups=inputs),
            convolution(inputs, outputs // 2),
            nn.ReLU(inplace=True),
        )
        self.right = branch(inputs, outputs // 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        return F.channel_shuffle(torch.cat([self.left(x), self.right(x)], 1), 2)


class ShuffleNet(ImageClassifier):
    """Table 5: a stem, three stages that begin by downsampling, and a head."""

    def __init__(self, *, width: int, units: tuple[int, ...], classes: int) -> None:
        super().__init__()
        self.stem = nn.Sequential(convolution(3, 24, 3, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1))
        stages: list[nn.Module] = []
        channels = 24
        for stage, count in enumerate(units):
            outputs = width << stage
            stages += [Downsampling(channels, outputs), *(Unit(outputs) for _ in range(count - 1))]
            channels = outputs
        self.stages = nn.Sequential(*stages)
        self.last = nn.Sequential(convolution(channels, 2 * channels), nn.ReLU(inplace=True))
        self.head = nn.Linear(2 * channels, classes)

    def blocks_to_checkpoint(self) -> list[nn.Module]:
        return list(self.stages)

    def features(self, images: Tensor) -> Tensor:
        features: Tensor = self.last(self.stages(self.stem(images)))
        return features


def shufflenet(width: int = 16, batch: int = 16, size: int = 64, classes: int = 10) -> Model:
    """ShuffleNet V2 in depth, narrower, and a batch of random images; width 116 is the network's own."""
    model = ShuffleNet(width=width, units=(4, 8, 4), classes=classes)
    return model, labelled_images(batch, size, classes)
