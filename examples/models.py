"""Five models of the kinds that people train, small enough for a CPU.

Each factory returns ``(model, inputs)``; ``model(*inputs)`` is the scalar training loss. Seed with
``torch.manual_seed`` before the call: weights and inputs are drawn from the global generator. The models are
in training mode, and what they save for the backward pass takes several times the memory of their parameters.

    $ dtr-fx diff examples/models.py:gpt --budget 60%

The GPT, the ResNet and the MLP are those of ``dtr_fx.lab.zoo``, for commands ``zoo:gpt``.
"""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dtr_fx.lab.zoo.gpt import GPT, gpt
from dtr_fx.lab.zoo.mlp import mlp
from dtr_fx.lab.zoo.resnet50 import resnet50

__all__ = ["GPT", "LSTM", "Model", "UNet", "gpt", "lstm", "mlp", "resnet", "unet"]

Model = tuple[nn.Module, tuple[Tensor, ...]]


# --- ResNet ------------------------------------------------------------------------------------------------


def resnet(
    blocks: tuple[int, ...] = (3, 4, 6, 3), width: int = 8, batch: int = 32, size: int = 64, classes: int = 10
) -> Model:
    """A ResNet-50 in shape, an eighth of its width, and a batch of random images."""
    return resnet50(blocks=blocks, width=width, batch=batch, size=size, classes=classes)


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
