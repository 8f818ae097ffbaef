"""Recurrent networks: an LSTM over a sequence, and one over a tree (TreeLSTM).

``nn.LSTM`` and ``nn.LSTMCell`` are single operators; here every gate is one, and in ``CellLSTM`` every step.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dtr_fx.lab.zoo.layers import Model

State = tuple[Tensor, Tensor]

# Hochreiter and Schmidhuber, 1997, with the forget gate of Gers et al., 2000, unrolled over time


class Cell(nn.Module):
    """One step in time: from (batch, inputs) and two (batch, hidden) states to the next two."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.of_input = nn.Linear(inputs, 4 * hidden)
        self.of_hidden = nn.Linear(hidden, 4 * hidden, bias=False)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> State:
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

    def forward(self, sequence: Tensor, h: Tensor, c: Tensor) -> State:
        for x in sequence.unbind(0):
            h, c = self.cell(x, (h, c))
        return h, c


class CellLSTM(nn.Module):
    """Classifies a sequence by its last state; each part of ``segment`` steps can be checkpointed."""

    def __init__(self, inputs: int, hidden: int, classes: int, steps: int, segment: int | None) -> None:
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
    model = CellLSTM(inputs, hidden, classes, steps, segment)
    return model, (torch.randn(steps, batch, inputs), torch.randint(classes, (batch,)))


def lstm_full(steps: int = 48, batch: int = 256, width: int = 512, classes: int = 10) -> Model:
    """An LSTM of 48 steps, in segments of about √48."""
    return lstm_cell(steps, batch, width, width, classes, segment=7)


# Tai et al., Improved Semantic Representations From Tree-Structured Long Short-Term Memory Networks, ACL 2015


class TreeLSTM(nn.Module):
    """Classifies a balanced binary tree, words at its leaves, by the state of its root (Section 3.2)."""

    def __init__(self, *, inputs: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.leaf = nn.Linear(inputs, 3 * hidden)
        self.node = nn.Linear(2 * hidden, 5 * hidden)
        self.head = nn.Linear(hidden, classes)

    def forward(self, words: Tensor, labels: Tensor) -> Tensor:
        h, _ = self.subtree(words)
        return F.cross_entropy(self.head(h), labels)

    def subtree(self, words: Tensor) -> State:
        """The state of the root above ``words``, (leaves, batch, inputs)."""
        if len(words) == 1:
            return self.state_of_leaf(words[0])
        left, right = words.chunk(2)
        return self.state_of_node(self.subtree(left), self.subtree(right))

    def state_of_leaf(self, word: Tensor) -> State:
        enter, leave, new = self.leaf(word).chunk(3, 1)
        c = enter.sigmoid() * new.tanh()
        return leave.sigmoid() * c.tanh(), c

    def state_of_node(self, left: State, right: State) -> State:
        gates = self.node(torch.cat([left[0], right[0]], 1))
        enter, forget_left, forget_right, leave, new = gates.chunk(5, 1)
        c = enter.sigmoid() * new.tanh() + forget_left.sigmoid() * left[1] + forget_right.sigmoid() * right[1]
        return leave.sigmoid() * c.tanh(), c


def treelstm(leaves: int = 64, batch: int = 256, inputs: int = 16, hidden: int = 64) -> Model:
    """A TreeLSTM and a batch of balanced trees with random vectors at their leaves."""
    model = TreeLSTM(inputs=inputs, hidden=hidden, classes=5)
    return model, (torch.randn(leaves, batch, inputs), torch.randint(5, (batch,)))
