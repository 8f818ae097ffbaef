"""Models to try things on: those of the paper's evaluation (Section 4), and some more that people train.

    dtr-fx record resnet32 -o resnet32.log.gz
    dtr-fx diff zoo:gpt --budget 60%

Depth and shape are those of the models' papers; widths, images and batches are smaller, and chosen so that
activations, not parameters, make up the memory.  Each factory returns ``(model, inputs)``, and
``model(*inputs)`` is the scalar training loss.  Weights and inputs are drawn from the global generator: seed
it with ``torch.manual_seed`` before.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from dtr_fx.lab.zoo.densenet import densenet121
from dtr_fx.lab.zoo.gpt import gpt
from dtr_fx.lab.zoo.inception import inception
from dtr_fx.lab.zoo.lstm import lstm
from dtr_fx.lab.zoo.mlp import mlp
from dtr_fx.lab.zoo.resnet import resnet32
from dtr_fx.lab.zoo.resnet50 import resnet50
from dtr_fx.lab.zoo.shufflenet import shufflenet
from dtr_fx.lab.zoo.transformer import transformer
from dtr_fx.lab.zoo.treelstm import treelstm
from dtr_fx.lab.zoo.unet import unet
from dtr_fx.lab.zoo.unrolled_gan import unrolled_gan

__all__ = [
    "MODELS",
    "ZOO",
    "densenet121",
    "gpt",
    "inception",
    "lstm",
    "mlp",
    "resnet32",
    "resnet50",
    "shufflenet",
    "transformer",
    "treelstm",
    "unet",
    "unrolled_gan",
]

# The paper's, which its figures are recorded from.
ZOO: dict[str, Callable[..., tuple[nn.Module, tuple[Tensor, ...]]]] = {
    "resnet32": resnet32,
    "densenet121": densenet121,
    "inception": inception,
    "unet": unet,
    "transformer": transformer,
    "lstm": lstm,
    "treelstm": treelstm,
    "unrolled_gan": unrolled_gan,
}

# All that ``zoo:NAME`` names on the command line.
MODELS = {**ZOO, "gpt": gpt, "resnet50": resnet50, "shufflenet": shufflenet, "mlp": mlp}
