"""Binary TreeLSTM: Section 3.2 of Tai et al., Improved Semantic Representations From Tree-Structured Long
Short-Term Memory Networks, ACL 2015.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dtr_fx.lab.zoo.layers import Model

State = tuple[Tensor, Tensor]


class TreeLSTM(nn.Module):
    """Classifies a balanced binary tree by the hidden state of its root.  Words are at the leaves."""

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
