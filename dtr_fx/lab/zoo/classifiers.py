"""Convolutional networks that classify images: DenseNet, Inception-v4, ResNet and ShuffleNet V2."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dtr_fx.lab.zoo.layers import Kernel, Model, conv_norm, conv_norm_relu, labelled_images

_EXPANSION = 4


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


# DenseNet: Huang et al., Densely Connected Convolutional Networks, CVPR 2017 (DenseNet-BC, Table 1)


def norm_relu(channels: int) -> list[nn.Module]:
    return [nn.BatchNorm2d(channels), nn.ReLU(inplace=True)]


class DenseBlock(nn.Module):
    """Layers that each read everything before them and add ``growth`` channels to it."""

    def __init__(self, inputs: int, layers: int, growth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Sequential(
                *norm_relu(width),
                nn.Conv2d(width, 4 * growth, 1, bias=False),
                *norm_relu(4 * growth),
                nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
            )
            for width in range(inputs, inputs + growth * layers, growth)
        )

    def forward(self, x: Tensor) -> Tensor:
        features = [x]
        for layer in self.layers:
            features.append(layer(torch.cat(features, 1)))
        return torch.cat(features, 1)


def densenet121(growth: int = 8, batch: int = 8, size: int = 96, classes: int = 10) -> Model:
    """DenseNet-121 at a quarter of its growth rate, and a batch of random images; 32 is its own."""
    channels = 2 * growth
    stem = nn.Sequential(*conv_norm_relu(3, channels, 7, 2), nn.MaxPool2d(3, stride=2, padding=1))
    stages: list[nn.Module] = []
    for layers in (6, 12, 24, 16):
        if stages:  # a transition halves the channels
            stages += (*norm_relu(channels), nn.Conv2d(channels, channels // 2, 1, bias=False))
            stages.append(nn.AvgPool2d(2))
            channels //= 2
        stages.append(DenseBlock(channels, layers, growth))
        channels += growth * layers
    stages += norm_relu(channels)
    model = ImageClassifier(stem=stem, stages=nn.Sequential(*stages), head=nn.Linear(channels, classes))
    return model, labelled_images(batch, size, classes)


# Inception-v4: Szegedy et al., Inception-v4, Inception-ResNet and the Impact of Residual Connections on
# Learning, AAAI 2017.  All convolutions are padded: images may be smaller than the paper's 299 pixels.


def conv(inputs: int, *specs: tuple[int, Kernel] | tuple[int, Kernel, int]) -> nn.Sequential:
    """Convolutions in a row, each given by its outputs, its kernel and, unless it is 1, its stride."""
    widths = [inputs, *(spec[0] for spec in specs)]
    layers = (conv_norm_relu(width, *spec) for width, spec in zip(widths, specs))
    return nn.Sequential(*(module for layer in layers for module in layer))


def pooled(inputs: int, outputs: int) -> nn.Module:
    return nn.Sequential(nn.AvgPool2d(3, stride=1, padding=1), *conv_norm_relu(inputs, outputs, 1))


def max_pool() -> nn.Module:
    return nn.MaxPool2d(3, stride=2, padding=1)


class Branches(nn.Module):
    """Modules side by side on one input, their outputs concatenated."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([branch(x) for branch in self.branches], 1)


def block_a(u: int) -> nn.Module:
    """Figure 4: 12 u channels in and out; ``u`` is a 32nd of the paper's width."""
    return Branches(
        pooled(12 * u, 3 * u),
        conv(12 * u, (3 * u, 1)),
        conv(12 * u, (2 * u, 1), (3 * u, 3)),
        conv(12 * u, (2 * u, 1), (3 * u, 3), (3 * u, 3)),
    )


def block_b(u: int) -> nn.Module:
    """Figure 5: 32 u channels in and out."""
    return Branches(
        pooled(32 * u, 4 * u),
        conv(32 * u, (12 * u, 1)),
        conv(32 * u, (6 * u, 1), (7 * u, (1, 7)), (8 * u, (7, 1))),
        conv(32 * u, (6 * u, 1), (6 * u, (1, 7)), (7 * u, (7, 1)), (7 * u, (1, 7)), (8 * u, (7, 1))),
    )


def fork(inputs: int, outputs: int) -> nn.Module:
    """A 1 × 3 and a 3 × 1 convolution side by side."""
    return Branches(conv(inputs, (outputs, (1, 3))), conv(inputs, (outputs, (3, 1))))


def block_c(u: int) -> nn.Module:
    """Figure 6: 48 u channels in and out."""
    return Branches(
        pooled(48 * u, 8 * u),
        conv(48 * u, (8 * u, 1)),
        nn.Sequential(conv(48 * u, (12 * u, 1)), fork(12 * u, 8 * u)),
        nn.Sequential(conv(48 * u, (12 * u, 1), (14 * u, (1, 3)), (16 * u, (3, 1))), fork(16 * u, 8 * u)),
    )


def inception(unit: int = 2, batch: int = 16, size: int = 128, classes: int = 10) -> Model:
    """Inception-v4 at a sixteenth of its width, and a batch of random images; 32 is its own.

    Figure 9: a stem, 4 A, 7 B and 3 C blocks; ``unit`` channels stand for 32 of the paper's.
    """
    u = unit
    features = nn.Sequential(
        nn.Sequential(  # Figure 3, to 12 u channels
            conv(3, (u, 3, 2), (u, 3), (2 * u, 3)),
            Branches(max_pool(), conv(2 * u, (3 * u, 3, 2))),
            Branches(
                conv(5 * u, (2 * u, 1), (3 * u, 3)),
                conv(5 * u, (2 * u, 1), (2 * u, (7, 1)), (2 * u, (1, 7)), (3 * u, 3)),
            ),
            Branches(conv(6 * u, (6 * u, 3, 2)), max_pool()),
        ),
        *(block_a(u) for _ in range(4)),
        Branches(  # Figure 7, to 32 u channels and half the size
            max_pool(),
            conv(12 * u, (12 * u, 3, 2)),
            conv(12 * u, (6 * u, 1), (7 * u, 3), (8 * u, 3, 2)),
        ),
        *(block_b(u) for _ in range(7)),
        Branches(  # Figure 8, to 48 u channels and half the size
            max_pool(),
            conv(32 * u, (6 * u, 1), (6 * u, 3, 2)),
            conv(32 * u, (8 * u, 1), (8 * u, (1, 7)), (10 * u, (7, 1)), (10 * u, 3, 2)),
        ),
        *(block_c(u) for _ in range(3)),
    )
    head = nn.Sequential(nn.Dropout(0.2), nn.Linear(48 * u, classes))
    return ImageClassifier(features=features, head=head), labelled_images(batch, size, classes)


# ResNet: He et al., Deep Residual Learning for Image Recognition, CVPR 2016


class BasicBlock(nn.Module):
    """Two convolutions around a shortcut without parameters (option A): strided, new channels zero."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.stride = outputs // inputs
        self.new_channels = outputs - inputs
        first = conv_norm_relu(inputs, outputs, 3, self.stride)
        self.residual = nn.Sequential(*first, *conv_norm(outputs, outputs, 3))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.residual(x) + self.shortcut(x))

    def shortcut(self, x: Tensor) -> Tensor:
        if not self.new_channels:
            return x
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.new_channels))


def resnet32(batch: int = 16, *, blocks: int = 5) -> Model:
    """ResNet-32 for CIFAR-10, 6 · ``blocks`` + 2 layers, and random images; 200 blocks make ResNet-1202."""
    widths = [16 << stage for stage in range(3) for _ in range(blocks)]
    model = BlockClassifier(
        stem=nn.Sequential(*conv_norm_relu(3, 16, 3)),
        blocks=nn.Sequential(*(BasicBlock(a, b) for a, b in zip([16, *widths], widths))),
        head=nn.Linear(64, 10),
    )
    return model, labelled_images(batch, 32, 10)


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
        self.shortcut = nn.Sequential(*(conv_norm(inputs, outputs, 1, stride) if inputs != outputs else ()))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.residual(x) + self.shortcut(x))


def resnet50(
    batch: int = 16, width: int = 8, size: int = 64, classes: int = 10, blocks: Sequence[int] = (3, 4, 6, 3)
) -> Model:
    """ResNet-50 (Table 1), an eighth as wide, and a batch of random images; width 64 is its own."""
    stem = nn.Sequential(*conv_norm_relu(3, width, 7, 2), nn.MaxPool2d(3, stride=2, padding=1))
    channels = width
    stages = []
    for stage, count in enumerate(blocks):
        for block in range(count):
            stages.append(Bottleneck(channels, width << stage, 2 if stage > 0 and block == 0 else 1))
            channels = (width << stage) * _EXPANSION
    model = BlockClassifier(stem=stem, stages=nn.Sequential(*stages), head=nn.Linear(channels, classes))
    return model, labelled_images(batch, size, classes)


# ShuffleNet V2: Ma et al., Practical Guidelines for Efficient CNN Architecture Design, ECCV 2018


def branch(inputs: int, outputs: int, stride: int, kernel: int = 3) -> nn.Sequential:
    """Pointwise, depthwise, pointwise."""
    return nn.Sequential(
        *conv_norm_relu(inputs, outputs, 1),
        *conv_norm(outputs, outputs, kernel, stride, groups=outputs),
        *conv_norm_relu(outputs, outputs, 1),
    )


class Unit(nn.Module):
    """Figure 3 (c): half of the channels pass by, and the two halves are shuffled."""

    def __init__(self, width: int, kernel: int = 3) -> None:
        super().__init__()
        self.branch = branch(width // 2, width // 2, stride=1, kernel=kernel)

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, 1)
        return F.channel_shuffle(torch.cat([left, self.branch(right)], 1), 2)


class Downsampling(nn.Module):
    """Figure 3 (d): both halves are made anew at half of the resolution."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 3) -> None:
        super().__init__()
        depthwise = conv_norm(inputs, inputs, kernel, 2, groups=inputs)
        self.left = nn.Sequential(*depthwise, *conv_norm_relu(inputs, outputs // 2, 1))
        self.right = branch(inputs, outputs // 2, stride=2, kernel=kernel)

    def forward(self, x: Tensor) -> Tensor:
        return F.channel_shuffle(torch.cat([self.left(x), self.right(x)], 1), 2)


def shufflenet(width: int = 16, batch: int = 16, size: int = 64, classes: int = 10) -> Model:
    """ShuffleNet V2 (Table 5), narrower, and a batch of random images; width 116 is its own."""
    stem = nn.Sequential(*conv_norm_relu(3, 24, 3, 2), nn.MaxPool2d(3, 2, 1))
    stages: list[nn.Module] = []
    channels = 24
    for stage, count in enumerate((4, 8, 4)):
        outputs = width << stage
        stages += [Downsampling(channels, outputs), *(Unit(outputs) for _ in range(count - 1))]
        channels = outputs
    model = BlockClassifier(
        stem=stem,
        stages=nn.Sequential(*stages),
        last=nn.Sequential(*conv_norm_relu(channels, 2 * channels, 1)),
        head=nn.Linear(2 * channels, classes),
    )
    return model, labelled_images(batch, size, classes)


# SPOS: Guo et al., Single Path One-Shot Neural Architecture Search with Uniform Sampling, ECCV 2020


class Choice(nn.Module):
    """A block of the supernet (Figure 4): candidates, of which the path that is trained takes one."""

    def __init__(self, candidates: Sequence[nn.Module], chosen: int) -> None:
        super().__init__()
        self.candidates = nn.ModuleList(candidates)
        self.chosen = chosen

    def forward(self, x: Tensor) -> Tensor:
        return self.candidates[self.chosen](x)


def spos(width: int = 16, batch: int = 16, size: int = 64, classes: int = 10) -> Model:
    """One path, drawn at random, of a supernet of ShuffleNet's blocks with kernels of 3, 5 or 7, and images.

    Of the paper's four candidates that after Xception is left out; width 64 is about its own.
    """
    blocks: list[nn.Module] = []
    channels = 16
    for stage, count in enumerate((4, 4, 8, 4)):
        outputs = width << stage
        for number in range(count):
            kernels = (3, 5, 7)
            made = (Unit(outputs, k) if number else Downsampling(channels, outputs, k) for k in kernels)
            blocks.append(Choice(list(made), int(torch.randint(len(kernels), ()))))
        channels = outputs
    model = BlockClassifier(
        stem=nn.Sequential(*conv_norm_relu(3, 16, 3, 2)),
        stages=nn.Sequential(*blocks),
        head=nn.Linear(channels, classes),
    )
    return model, labelled_images(batch, size, classes)
