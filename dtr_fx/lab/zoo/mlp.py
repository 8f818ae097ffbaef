"""A deep multilayer perceptron."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dtr_fx.lab.zoo.layers import Model


class MLP(nn.Module):
    """A deep, narrow chain: the linear network of the theory, with weights."""

    def __init__(self, *, layers: int, width: int, classes: int) -> None:
        super().__init__()
        linear = [nn.Linear(width, width) for _ in range(layers)]
        hidden = [module for layer in linear for module in (layer, nn.ReLU())]
        self.layers = nn.Sequential(*hidden, nn.Linear(width, classes))
        for layer in linear:  # as they come, the first of fifty layers would see no gradient
            nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(self.layers(x), labels)


def mlp(layers: int = 50, width: int = 128, batch: int = 1024, classes: int = 10) -> Model:
    """An MLP of ``layers`` hidden layers and a batch of random vectors."""
    model = MLP(layers=layers, width=width, classes=classes)
    return model, (torch.randn(batch, width), torch.randint(classes, (batch,)))
