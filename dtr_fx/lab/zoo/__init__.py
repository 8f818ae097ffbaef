"""Models to try things on: those of the paper's evaluation (Section 4), and some more that people train.

Depth and shape are those of the models' papers; widths, images and batches are smaller, so that activations
make up the memory; those named ``_full``, ``vit`` and ``gpt2`` have the sizes that people train.  A factory
returns ``(model, inputs)``, drawn from the global generator; ``model(*inputs)`` is the scalar training loss.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dtr_fx.lab.zoo.classifiers import densenet121, inception, resnet32, resnet50, shufflenet
from dtr_fx.lab.zoo.gpt import gpt
from dtr_fx.lab.zoo.layers import Model
from dtr_fx.lab.zoo.perceptrons import mlp, mlp_full, unrolled_gan
from dtr_fx.lab.zoo.recurrent import lstm, lstm_cell, lstm_full, treelstm
from dtr_fx.lab.zoo.sized import gpt2, gpt_full, resnet50_full, unet_full
from dtr_fx.lab.zoo.transformer import transformer, vit
from dtr_fx.lab.zoo.unet import unet, unet_bn

# The ResNet-50 that steps are measured on.
resnet50_32 = partial(resnet50, batch=32)

_PAPER = (resnet32, densenet121, inception, unet, transformer, lstm, treelstm, unrolled_gan)
_MORE = (
    *(gpt, resnet50, shufflenet, mlp, unet_bn, lstm_cell, vit),
    *(gpt_full, resnet50_full, unet_full, mlp_full, lstm_full, gpt2),
)

# The paper's, which its figures are recorded from.
ZOO: dict[str, Callable[..., Model]] = {factory.__name__: factory for factory in _PAPER}

# All that ``zoo:NAME`` names on the command line.
MODELS: dict[str, Callable[..., Model]] = {
    **ZOO,
    **{factory.__name__: factory for factory in _MORE},
    "resnet50_32": resnet50_32,
}
