"""Llama models on the meta device: what a step of them takes, before there is a card.

  dtr-fx estimate examples/llama.py:llama_8b --device h100 --optimizer adamw

The sizes are those of the published configurations of Llama 3.2 (1B) and 3.1 (8B, 70B), the code is plain
PyTorch. Run by itself, it prints the parameters of each.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Attention(nn.Module):
    """Causal attention whose keys and values are shared by groups of heads, with rotary positions."""

    def __init__(self, width: int, heads: int, groups: int) -> None:
        super().__init__()
        self.heads, self.groups, self.size = heads, groups, width // heads
        self.q = nn.Linear(width, width, bias=False)
        self.k = nn.Linear(width, groups * self.size, bias=False)
        self.v = nn.Linear(width, groups * self.size, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        q, k, v = (
            made.unflatten(-1, (-1, self.size)).transpose(1, 2) for made in (self.q(x), self.k(x), self.v(x))
        )
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        repeats = self.heads // self.groups
        k, v = k.repeat_interleave(repeats, 1), v.repeat_interleave(repeats, 1)
        found = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(found.transpose(1, 2).flatten(-2))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x.chunk(2, -1)
    return x * cos + torch.cat((-second, first), -1) * sin


class Block(nn.Module):
    def __init__(self, width: int, heads: int, groups: int, hidden: int) -> None:
        super().__init__()
        self.before_attention, self.before_mlp = nn.RMSNorm(width, eps=1e-5), nn.RMSNorm(width, eps=1e-5)
        self.attention = Attention(width, heads, groups)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attention(self.before_attention(x), cos, sin)
        normed = self.before_mlp(x)
        return x + self.down(F.silu(self.gate(normed)) * self.up(normed))


class Llama(nn.Module):
    """Tokens in, the loss of predicting each next one out."""

    def __init__(
        self, width: int, layers: int, heads: int, groups: int, hidden: int, vocabulary: int, length: int
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads, groups, hidden) for _ in range(layers))
        self.norm = nn.RMSNorm(width, eps=1e-5)
        self.head = nn.Linear(width, vocabulary, bias=False)
        size = width // heads
        turns = torch.outer(torch.arange(length), 500_000 ** (-torch.arange(0, size, 2) / size)).repeat(1, 2)
        self.register_buffer("cos", turns.cos(), persistent=False)
        self.register_buffer("sin", turns.sin(), persistent=False)

    def forward(self, tokens: Tensor, following: Tensor) -> Tensor:
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x, self.cos, self.sin)
        return F.cross_entropy(self.head(self.norm(x)).flatten(0, 1), following.flatten())


def llama(batch: int, length: int, **sizes: int) -> tuple[Llama, tuple[Tensor, Tensor]]:
    with torch.device("meta"):
        model = Llama(length=length, vocabulary=128_256, **sizes).bfloat16()
        tokens = torch.zeros(batch, length, dtype=torch.long)
    return model, (tokens, tokens)


def llama_1b(batch: int = 1, length: int = 4096) -> tuple[Llama, tuple[Tensor, Tensor]]:
    model, inputs = llama(batch, length, width=2048, layers=16, heads=32, groups=8, hidden=8192)
    model.head.weight = model.embed.weight
    return model, inputs


def llama_8b(batch: int = 1, length: int = 4096) -> tuple[Llama, tuple[Tensor, Tensor]]:
    return llama(batch, length, width=4096, layers=32, heads=32, groups=8, hidden=14_336)


def llama_70b(batch: int = 1, length: int = 4096) -> tuple[Llama, tuple[Tensor, Tensor]]:
    return llama(batch, length, width=8192, layers=80, heads=64, groups=8, hidden=28_672)


if __name__ == "__main__":
    for factory in (llama_1b, llama_8b, llama_70b):
        model, _ = factory()
        count = sum(parameter.numel() for parameter in model.parameters())
        print(f"{factory.__name__}: {count:,} parameters")
