"""Five models of the kinds that people train, small enough for a CPU.

Each factory returns ``(model, inputs)``; ``model(*inputs)`` is the scalar training loss. Seed with
``torch.manual_seed`` before the call: weights and inputs are drawn from the global generator. The models are
in training mode, and what they save for the backward pass takes several times the memory of their parameters.

    $ dtr-fx diff examples/models.py:gpt --budget 60%
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Model = tuple[nn.Module, tuple[Tensor, ...]]


# --- GPT ---------------------------------------------------------------------------------------------------


class Attention(nn.Module):
    """Causal self-attention with dropout on its weights and on its result."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(x).chunk(3, dim=-1)
        )
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True)
        mixed = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return F.dropout(mixed, self.dropout, self.training)


class Block(nn.Module):
    """A pre-LN transformer block."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(width)
        self.attention = Attention(width, heads, dropout)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm_attention(x))
        return x + self.mlp(self.norm_mlp(x))


class GPT(nn.Module):
    """A character-level language model with learned positions."""

    def __init__(
        self, *, layers: int, width: int, heads: int, length: int, vocab: int, dropout: float
    ) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab, width)
        self.position = nn.Parameter(0.02 * torch.randn(length, width))
        self.dropout = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)

    def logits(self, tokens: Tensor) -> Tensor:
        x = self.dropout(self.token(tokens) + self.position[: tokens.shape[1]])
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(self.logits(tokens).flatten(0, 1), targets.flatten())


def gpt(
    layers: int = 12,
    width: int = 128,
    heads: int = 4,
    batch: int = 8,
    length: int = 64,
    vocab: int = 96,
    dropout: float = 0.1,
) -> Model:
    """A GPT and a batch of random tokens."""
    model = GPT(layers=layers, width=width, heads=heads, length=length, vocab=vocab, dropout=dropout)
    tokens = torch.randint(vocab, (batch, length + 1))
    return model, (tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous())


# --- ResNet ------------------------------------------------------------------------------------------------


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


def resnet(
    blocks: tuple[int, ...] = (3, 4, 6, 3), width: int = 8, batch: int = 32, size: int = 64, classes: int = 10
) -> Model:
    """A ResNet-50 in shape, an eighth of its width, and a batch of random images."""
    model = ResNet(blocks=blocks, width=width, classes=classes)
    return model, (torch.randn(batch, 3, size, size), torch.randint(classes, (batch,)))


# --- U-Net -------------------------------------------------------------------------------------------------


def double_conv(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
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


def unet(depth: int = 4, width: int = 8, batch: int = 8, size: int = 64, classes: int = 4) -> Model:
    """A U-Net and a batch of random images with a class for each pixel."""
    model = UNet(depth=depth, width=width, classes=classes)
    return model, (torch.randn(batch, 3, size, size), torch.randint(classes, (batch, size, size)))


# --- LSTM --------------------------------------------------------------------------------------------------


class LSTM(nn.Module):
    """An LSTM unrolled over cells, so that a traced graph shows every step (``nn.LSTM`` is one operator)."""

    def __init__(self, *, inputs: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.cell = nn.LSTMCell(inputs, hidden)
        self.head = nn.Linear(hidden, classes)

    def forward(self, sequence: Tensor, labels: Tensor) -> Tensor:
        h = c = sequence.new_zeros(sequence.shape[1], self.hidden)
        for x in sequence.unbind(0):
            h, c = self.cell(x, (h, c))
        return F.cross_entropy(self.head(h), labels)


def lstm(steps: int = 48, batch: int = 64, inputs: int = 64, hidden: int = 128, classes: int = 10) -> Model:
    """An LSTM and a batch of random sequences of ``steps`` vectors."""
    model = LSTM(inputs=inputs, hidden=hidden, classes=classes)
    return model, (torch.randn(steps, batch, inputs), torch.randint(classes, (batch,)))


# --- MLP ---------------------------------------------------------------------------------------------------


class MLP(nn.Module):
    """A deep, narrow chain: the linear network of the theory, with weights."""

    def __init__(self, *, layers: int, width: int, classes: int) -> None:
        super().__init__()
        hidden = [module for _ in range(layers) for module in (nn.Linear(width, width), nn.ReLU())]
        self.layers = nn.Sequential(*hidden, nn.Linear(width, classes))
        for module in hidden[::2]:  # as they come, the first of fifty layers would see no gradient
            nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.layers(x), labels)


def mlp(layers: int = 50, width: int = 128, batch: int = 1024, classes: int = 10) -> Model:
    """An MLP of ``layers`` hidden layers and a batch of random vectors."""
    model = MLP(layers=layers, width=width, classes=classes)
    return model, (torch.randn(batch, width), torch.randint(classes, (batch,)))
