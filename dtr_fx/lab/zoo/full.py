"""Models at the sizes that people train: build them on fake tensors, and nothing is allocated or computed.

``torch.utils.checkpoint`` is tried around the children of their containers.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dtr_fx.lab.zoo.gpt import gpt
from dtr_fx.lab.zoo.layers import Model
from dtr_fx.lab.zoo.lstm import lstm_cell
from dtr_fx.lab.zoo.mlp import mlp
from dtr_fx.lab.zoo.resnet import resnet50
from dtr_fx.lab.zoo.unet import unet_bn


def gpt_full(layers: int = 12) -> Model:
    """GPT-2 small over bytes, without dropout, so that attention is one fused operator."""
    return gpt(layers=layers, width=768, heads=12, batch=8, length=512, vocab=256, dropout=0.0)


def resnet50_full() -> Model:
    """ResNet-50 on 64 images of 224 × 224."""
    return resnet50(width=64, batch=64, size=224, classes=1000)


def unet_full() -> Model:
    """U-Net with 31 million parameters on 4 images of 256 × 256."""
    return unet_bn(depth=4, width=64, batch=4, size=256, classes=21)


def mlp_full(layers: int = 50, segment: int = 7) -> Model:
    """An MLP of 50 layers, in segments of about √50: a single layer saves no more than what enters it."""
    model, inputs = mlp(layers=layers, width=1024, batch=8192, classes=10)
    flat = model.layers
    assert isinstance(flat, nn.Sequential)
    starts = range(0, len(flat), 2 * segment)
    model.layers = nn.Sequential(*(flat[start : start + 2 * segment] for start in starts))
    return model, inputs


def lstm_full(steps: int = 48, batch: int = 256, width: int = 512, classes: int = 10) -> Model:
    """An LSTM of 48 steps, in segments of about √48."""
    return lstm_cell(steps, batch, width, width, classes, segment=7)


class LanguageModel(nn.Module):
    """A causal language model of the transformers library and its loss, as one module."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: Tensor) -> Tensor:
        logits = self.model(input_ids=tokens[:, :-1], use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def gpt2(batch: int = 4, length: int = 512) -> Model:
    """GPT-2 small of the transformers library, with dropout and 50,257 tokens; nothing is downloaded."""
    from transformers import GPT2Config, GPT2LMHeadModel

    settings: dict[str, Any] = {"attn_implementation": "sdpa"}  # what any configuration takes
    model = GPT2LMHeadModel(GPT2Config(**settings)).train()
    return LanguageModel(model), (torch.randint(50257, (batch, length + 1)),)
