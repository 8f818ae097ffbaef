"""LSTM: Hochreiter and Schmidhuber, 1997, with the forget gate of Gers et al., 2000, unrolled over time.

``nn.LSTM`` and ``nn.LSTMCell`` are single operators; here every gate is one.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dtr_fx.lab.zoo.layers import Model


class Cell(nn.Module):
    """One step in time: from (batch, inputs) and two (batch, hidden) states to the next two."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.of_input = nn.Linear(inputs, 4 * hidden)
        self.of_hidden = nn.Linear(hidden, 4 * hidden, bias=False)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        gates = self.of_input(x) + self.of_hidden(h)
        enter, forget, leave, new = gates.chunk(4, 1)
        c = forget.sigmoid() * c + enter.sigmoid() * new.tanh()
        return leave.sigmoid() * c.tanh(), c


class LSTM(nn.Module):
    """Classifies a sequence by its last hidden state."""

    def __init__(self, *, inputs: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.hidden = hidden
        self.cell = Cell(inputs, hidden)
        self.head = nn.Linear(hidden, classes)

    def forward(self, sequence: Tensor, labels: Tensor) -> Tensor:
        h = c = sequence.new_zeros(sequence.shape[1], self.hidden)
        for x in sequence:
            h, c = self.cell(x, h, c)
        return F.cross_entropy(self.head(h), labels)


def lstm(steps: int = 128, batch: int = 256, inputs: int = 16, hidden: int = 64) -> Model:
    """An LSTM and a batch of random sequences of ``steps`` vectors."""
    model = LSTM(inputs=inputs, hidden=hidden, classes=10)
    return model, (torch.randn(steps, batch, inputs), torch.randint(10, (batch,)))
