"""The networks on which dtr_fx is held against its rivals, at the sizes that people train.

Each factory returns ``(model, inputs)``; ``model(*inputs)`` is the scalar training loss. The models are
large: build them on fake tensors, as ``dtr-fx bench rivals`` does, and nothing is allocated or computed.
Checkpointing is tried around the children of their containers.

    $ dtr-fx bench rivals examples/rivals.py:gpt
"""

from __future__ import annotations

import models
import torch
import torch.nn.functional as F
from models import Model
from torch import Tensor, nn

# --- models of examples/models.py, at full size ------------------------------------------------------------


def gpt(layers: int = 12) -> Model:
    """GPT-2 small over bytes, without dropout, so that attention is one fused operator."""
    return models.gpt(layers=layers, width=768, heads=12, batch=8, length=512, vocab=256, dropout=0.0)


def resnet50() -> Model:
    """ResNet-50 on 64 images of 224 × 224."""
    return models.resnet(width=64, batch=64, size=224, classes=1000)


def unet() -> Model:
    """U-Net with 31 million parameters on 4 images of 256 × 256."""
    return models.unet(depth=4, width=64, batch=4, size=256, classes=21)


def mlp(layers: int = 50, segment: int = 7) -> Model:
    """An MLP of 50 layers, in segments of about √50: a single layer saves no more than what enters it."""
    model, inputs = models.mlp(layers=layers, width=1024, batch=8192, classes=10)
    flat = model.layers
    starts = range(0, len(flat), 2 * segment)
    model.layers = nn.Sequential(*(flat[start : start + 2 * segment] for start in starts))
    return model, inputs


# --- an LSTM in segments -----------------------------------------------------------------------------------


class Steps(nn.Module):
    """A number of steps of one cell."""

    def __init__(self, cell: nn.LSTMCell) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, sequence: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        for x in sequence.unbind(0):
            h, c = self.cell(x, (h, c))
        return h, c


class LSTM(nn.Module):
    """The LSTM of examples/models.py, unrolled in segments of about √steps, which can be checkpointed."""

    def __init__(self, *, steps: int, segment: int, inputs: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.segment = segment
        self.hidden = hidden
        cell = nn.LSTMCell(inputs, hidden)
        self.segments = nn.ModuleList(Steps(cell) for _ in range(0, steps, segment))
        self.head = nn.Linear(hidden, classes)

    def forward(self, sequence: Tensor, labels: Tensor) -> Tensor:
        h = c = sequence.new_zeros(sequence.shape[1], self.hidden)
        for steps, part in zip(self.segments, sequence.split(self.segment)):
            h, c = steps(part, h, c)
        return F.cross_entropy(self.head(h), labels)


def lstm(steps: int = 48, batch: int = 256, width: int = 512, classes: int = 10) -> Model:
    """An LSTM of 48 steps."""
    model = LSTM(steps=steps, segment=7, inputs=width, hidden=width, classes=classes)
    return model, (torch.randn(steps, batch, width), torch.randint(classes, (batch,)))


# --- a Vision Transformer ----------------------------------------------------------------------------------


class ViT(nn.Module):
    """A Vision Transformer with the layers of ``torch.nn``; attention with dropout is not fused on a CPU."""

    def __init__(self, *, layers: int, width: int, heads: int, size: int, patch: int, classes: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.start = nn.Parameter(torch.zeros(1, 1, width))
        self.position = nn.Parameter(0.02 * torch.randn(1 + (size // patch) ** 2, width))
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, heads, 4 * width, activation="gelu", batch_first=True, norm_first=True
            )
            for _ in range(layers)
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
    model = ViT(layers=layers, width=width, heads=width // 64, size=size, patch=16, classes=classes)
    return model, (torch.randn(batch, 3, size, size), torch.randint(classes, (batch,)))


# --- a model of the transformers library -------------------------------------------------------------------


class LanguageModel(nn.Module):
    """A causal language model of the transformers library and its loss, as one module."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        logits = self.model(input_ids=tokens[:, :-1], use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def transformers_gpt2(batch: int = 4, length: int = 512) -> Model:
    """GPT-2 small of the transformers library, with dropout and 50,257 tokens; nothing is downloaded."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(attn_implementation="sdpa")).train()
    return LanguageModel(model), (torch.randint(50257, (batch, length + 1)),)
