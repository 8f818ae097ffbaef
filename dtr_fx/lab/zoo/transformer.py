"""Transformers: encoder and decoder (Vaswani et al., Attention Is All You Need, NeurIPS 2017), and ViT."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dtr_fx.lab.zoo.layers import Model, labelled_images


class Attention(nn.Module):
    """Multi-head attention (Section 3.2)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.split(self.query(x)), self.split(self.key(memory)), self.split(self.value(memory))
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        if mask is not None:
            scores = scores.masked_fill(mask, -math.inf)
        mixed = scores.softmax(-1) @ v
        return self.out(mixed.transpose(1, 2).flatten(2))

    def split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)


class Sublayer(nn.Module):
    """Dropout, sum and norm around what is done with ``x`` (Section 3.1)."""

    def __init__(self, module: nn.Module, width: int, dropout: float) -> None:
        super().__init__()
        self.module = module
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor, *others: Tensor | None) -> Tensor:
        return self.norm(x + self.dropout(self.module(x, *others)))


class Layer(nn.Module):
    """A layer of the encoder, or, with attention to the encoder's ``memory``, of the decoder."""

    def __init__(self, width: int, heads: int, dropout: float, *, decodes: bool) -> None:
        super().__init__()
        feed_forward = nn.Sequential(nn.Linear(width, 4 * width), nn.ReLU(), nn.Linear(4 * width, width))
        self.attend = Sublayer(Attention(width, heads), width, dropout)
        self.attend_memory = Sublayer(Attention(width, heads), width, dropout) if decodes else None
        self.feed_forward = Sublayer(feed_forward, width, dropout)

    def forward(self, x: Tensor, memory: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
        x = self.attend(x, x, mask)
        if self.attend_memory is not None:
            x = self.attend_memory(x, memory)
        return self.feed_forward(x)


def positions(length: int, width: int) -> Tensor:
    """Sines and cosines (Section 3.5)."""
    angles = torch.arange(length)[:, None] / 10000 ** (torch.arange(0, width, 2) / width)
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(1)


class Transformer(nn.Module):
    """From the source tokens and the target's so far to the loss on the target's next."""

    positions: Tensor

    def __init__(self, layers: int, width: int, heads: int, length: int, vocab: int, dropout: float) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab, width)
        self.dropout = nn.Dropout(dropout)
        self.encoder = nn.ModuleList(Layer(width, heads, dropout, decodes=False) for _ in range(layers))
        self.decoder = nn.ModuleList(Layer(width, heads, dropout, decodes=True) for _ in range(layers))
        self.register_buffer("positions", positions(length, width))
        self.register_buffer("future", torch.ones(length, length, dtype=torch.bool).triu(1))

    def forward(self, source: Tensor, target: Tensor, following: Tensor) -> Tensor:
        memory = self.embed(source)
        for layer in self.encoder:
            memory = layer(memory)
        x = self.embed(target)
        for layer in self.decoder:
            x = layer(x, memory, self.future)
        logits = F.linear(x, self.embedding.weight)  # one matrix for both (Section 3.4)
        return F.cross_entropy(logits.flatten(0, 1), following.flatten(), label_smoothing=0.1)

    def embed(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) * math.sqrt(self.embedding.embedding_dim)
        return self.dropout(x + self.positions)


def transformer(width: int = 64, heads: int = 8, batch: int = 8, length: int = 64, vocab: int = 256) -> Model:
    """The base model, 6 layers and 6, at an eighth of its width, and a batch of random tokens."""
    model = Transformer(layers=6, width=width, heads=heads, length=length, vocab=vocab, dropout=0.1)
    source, target = torch.randint(vocab, (batch, length)), torch.randint(vocab, (batch, length + 1))
    return model, (source, target[:, :-1].contiguous(), target[:, 1:].contiguous())


class ViT(nn.Module):
    """Dosovitskiy et al., An Image is Worth 16x16 Words, ICLR 2021; on a CPU its attention is not fused."""

    def __init__(self, layers: int, width: int, size: int, patch: int, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.start = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(0.02 * torch.randn(1 + (size // patch) ** 2, width))
        settings: dict[str, Any] = {"activation": "gelu", "batch_first": True, "norm_first": True}
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(width, width // 64, 4 * width, **settings) for _ in range(layers)
        )
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, classes))

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        patches = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat([self.start.expand(len(images), -1, -1), patches], dim=1) + self.position
        for layer in self.layers:
            x = layer(x)
        return F.cross_entropy(self.head(x[:, 0]), labels)


def vit(layers: int = 12, width: int = 768, batch: int = 32, size: int = 224, classes: int = 1000) -> Model:
    """ViT-B/16 with dropout on images of 224 × 224."""
    model = ViT(layers=layers, width=width, size=size, patch=16, classes=classes)
    return model, labelled_images(batch, size, classes)
