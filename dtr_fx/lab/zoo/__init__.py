"""Models to try things on: those of the paper's evaluation (Section 4), and some more that people train.

    dtr-fx record resnet32 -o resnet32.log.gz
    dtr-fx diff zoo:gpt --budget 60%

Depth and shape are those of the models' papers; widths, images and batches are smaller, and chosen so that
activations, not parameters, make up the memory; those named ``_full``, ``vit`` and ``gpt2`` have the sizes
that people train.  Each factory returns ``(model, inputs)``, and ``model(*inputs)`` is the scalar training
loss.  Weights and inputs are drawn from the global generator: seed it with ``torch.manual_seed`` before.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from dtr_fx.lab.zoo.densenet import densenet121
from dtr_fx.lab.zoo.full import gpt2, gpt_full, lstm_full, mlp_full, resnet50_full, unet_full
from dtr_fx.lab.zoo.gpt import gpt
from dtr_fx.lab.zoo.inception import inception
from dtr_fx.lab.zoo.layers import Model
from dtr_fx.lab.zoo.lstm import lstm, lstm_cell
from dtr_fx.lab.zoo.mlp import mlp
from dtr_fx.lab.zoo.resnet import resnet32, resnet50
from dtr_fx.lab.zoo.shufflenet import shufflenet
from dtr_fx.lab.zoo.transformer import transformer
from dtr_fx.lab.zoo.treelstm import treelstm
from dtr_fx.lab.zoo.unet import unet, unet_bn
from dtr_fx.lab.zoo.unrolled_gan import unrolled_gan
from dtr_fx.lab.zoo.vit import vit

# The ResNet-50 that steps are measured on.
resnet50_32 = partial(resnet50, batch=32)

# The paper's, which its figures are recorded from.
ZOO: dict[str, Callable[..., Model]] = {
    "resnet32": resnet32,
    "densenet121": densenet121,
    "inception": inception,
    "unet": unet,
    "transformer": transformer,
    "lstm": lstm,
    "treelstm": treelstm,
    "unrolled_gan": unrolled_gan,
}

_MORE = (
    *(gpt, resnet50, shufflenet, mlp, unet_bn, lstm_cell, vit),
    *(gpt_full, resnet50_full, unet_full, mlp_full, lstm_full, gpt2),
)

# All that ``zoo:NAME`` names on the command line.
MODELS: dict[str, Callable[..., Model]] = {
    **ZOO,
    **{factory.__name__: factory for factory in _MORE},
    "resnet50_32": resnet50_32,
}
