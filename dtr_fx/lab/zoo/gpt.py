"""A GPT of the kind that character-level language models are (Radford et al., 2019), small."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dtr_fx.lab.zoo.layers import Model


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
        x = x + self.mlp(self.norm_mlp(x))
        return x


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
        logits: Tensor = self.head(self.norm(x))
        return logits

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
