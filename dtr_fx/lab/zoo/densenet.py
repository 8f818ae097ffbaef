"""DenseNet-121: Huang et al., Densely Connected Convolutional Networks, CVPR 2017 (DenseNet-BC, Table 1)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from dtr_fx.lab.zoo.layers import ImageClassifier, Model, conv_norm_relu, labelled_images


def norm_relu(channels: int) -> list[nn.Module]:
    return [nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]


class DenseBlock(nn.Module):
    """Layers that each read everything before them and add ``growth`` channels to it."""

    def __init__(self, inputs: int, layers: int, growth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(self.layer(inputs + growth * number, growth) for number in range(layers))

    @staticmethod
    def layer(inputs: int, growth: int) -> nn.Module:
        return nn.Sequential(
            *norm_relu(inputs),
            nn.Conv2d(inputs, 4 * growth, 1, bias=False),
            *norm_relu(4 * growth),
            nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for layer in self.layers:
            features.append(layer(torch.cat(features, 1)))
        return torch.cat(features, 1)


class DenseNet(ImageClassifier):
    """``blocks=(6, 12, 24, 16)`` and ``growth=32`` make DenseNet-121; transitions halve the channels."""

    def __init__(self, *, blocks: tuple[int, ...], growth: int, classes: int) -> None:
        super().__init__()
        channels = 2 * growth
        self.stem = nn.Sequential(*conv_norm_relu(3, channels, 7, 2), nn.MaxPool2d(3, stride=2, padding=1))
        stages: list[nn.Module] = []
        for layers in blocks:
            if stages:
                stages += self.transition(channels)
                channels //= 2
            stages.append(DenseBlock(channels, layers, growth))
            channels += growth * layers
        self.stages = nn.Sequential(*stages, *norm_relu(channels))
        self.head = nn.Linear(channels, classes)

    @staticmethod
    def transition(channels: int) -> list[nn.Module]:
        return [*norm_relu(channels), nn.Conv2d(channels, channels // 2, 1, bias=False), nn.AvgPool2d(2)]

    def features(self, images: Tensor) -> Tensor:
        features: Tensor = self.stages(self.stem(images))
        return features


def densenet121(growth: int = 8, batch: int = 8, size: int = 96) -> Model:
    """DenseNet-121 at a quarter of its growth rate, and a batch of random images."""
    model = DenseNet(blocks=(6, 12, 24, 16), growth=growth, classes=10)
    return model, labelled_images(batch, size, 10)
