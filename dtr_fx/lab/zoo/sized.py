"""Models at the sizes that people train, and the networks of the paper's Table 1 and of MegEngine's in any.

On fake tensors nothing is allocated or computed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dtr_fx.lab.zoo.classifiers import resnet32, resnet50, shufflenet, spos
from dtr_fx.lab.zoo.gpt import gpt
from dtr_fx.lab.zoo.layers import Model
from dtr_fx.lab.zoo.perceptrons import unrolled_gan
from dtr_fx.lab.zoo.recurrent import treelstm
from dtr_fx.lab.zoo.transformer import transformer
from dtr_fx.lab.zoo.unet import unet, unet_bn


def gpt_full(layers: int = 12) -> Model:
    """GPT-2 small over bytes, without dropout, so that attention is one fused operator."""
    return gpt(layers=layers, width=768, heads=12, batch=8, length=512, vocab=256, dropout=0.0)


def resnet50_full() -> Model:
    """ResNet-50 on 64 images of 224 × 224."""
    return resnet50(width=64, batch=64, size=224, classes=1000)


def unet_full() -> Model:
    """U-Net with 31 million parameters on 4 images of 256 × 256."""
    return unet_bn(depth=4, width=64, batch=4, size=256, classes=21)


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


@dataclass(frozen=True)
class Subject:
    """A model in any size: the factory's argument ``axis``; ``start`` is one that trains on small cards."""

    name: str
    axis: str
    start: int
    factory: Callable[..., Model]

    def make(self, size: int) -> Model:
        return self.factory(**{self.axis: size})


# The deepest comes last: it takes the longest to compile.
WHOLE = (
    Subject("transformer", "batch", 4, partial(transformer, width=512, length=256, vocab=32000)),
    Subject("resnet50", "batch", 8, partial(resnet50, width=64, size=224, classes=1000)),
    Subject("unet", "batch", 1, partial(unet, width=64, size=444)),
    Subject("treelstm", "leaves", 64, partial(treelstm, batch=32, inputs=300, hidden=1024)),
    Subject("unrolled_gan", "batch", 4096, partial(unrolled_gan, hidden=512, latent=256)),
    Subject("spos", "batch", 16, partial(spos, width=64, size=224, classes=1000)),
    Subject("shufflenet", "batch", 16, partial(shufflenet, width=116, size=224, classes=1000)),
    Subject("resnet1202", "batch", 4, partial(resnet32, blocks=200)),
)

SMALL = (
    Subject("transformer", "batch", 1, transformer),
    Subject("resnet50", "batch", 2, resnet50),
    Subject("unet", "batch", 1, partial(unet, size=188)),
    Subject("treelstm", "leaves", 8, treelstm),
    Subject("unrolled_gan", "batch", 256, partial(unrolled_gan, steps=3)),
    Subject("spos", "batch", 4, spos),
    Subject("shufflenet", "batch", 4, shufflenet),
    Subject("resnet1202", "batch", 2, partial(resnet32, blocks=3)),
)
