"""LSTM: Hochreiter and Schmidhuber, 1997, with the forget gate of Gers et al., 2000, unrolled over time.

``nn.LSTM`` and ``nn.LSTMCell`` are single operators; here every gate is one, and in ``CellLSTM`` every step.
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


class Steps(nn.Module):
    """A number of steps of one cell."""

    def __init__(self, cell: nn.LSTMCell) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, sequence: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        for x in sequence.unbind(0):
            h, c = self.cell(x, (h, c))
        return h, c


class CellLSTM(nn.Module):
    """Classifies a sequence by its last state; each part of ``segment`` steps can be checkpointed."""

    def __init__(
        self, *, inputs: int, hidden: int, classes: int, steps: int = 1, segment: int | None = None
    ) -> None:
        super().__init__()
        self.hidden = hidden
        self.segment = segment
        cell = nn.LSTMCell(inputs, hidden)
        self.segments = nn.ModuleList(Steps(cell) for _ in range(0, steps, segment or steps))
        self.head = nn.Linear(hidden, classes)

    def forward(self, sequence: Tensor, labels: Tensor) -> Tensor:
        h = c = sequence.new_zeros(sequence.shape[1], self.hidden)
        parts = (sequence,) if self.segment is None else sequence.split(self.segment)
        for steps, part in zip(self.segments, parts):
            h, c = steps(part, h, c)
        return F.cross_entropy(self.head(h), labels)


def lstm_cell(
    steps: int = 48,
    batch: int = 64,
    inputs: int = 64,
    hidden: int = 128,
    classes: int = 10,
    segment: int | None = None,
) -> Model:
    """An LSTM and a batch of random sequences of ``steps`` vectors."""
    model = CellLSTM(inputs=inputs, hidden=hidden, classes=classes, steps=steps, segment=segment)
    return model, (torch.randn(steps, batch, inputs), torch.randint(classes, (batch,)))
