"""The models of the paper's evaluation (Section 4), written after their papers, in sizes that a CPU records.

    dtr-fx record resnet32 -o resnet32.log.gz
    dtr-fx diff dtr_fx.zoo:resnet32 --budget 60%

Depth and shape are those of the papers; widths, images and batches are smaller, and chosen so that
activations, not parameters, make up the memory.  Each factory returns ``(model, inputs)``, and
``model(*inputs)`` is the scalar training loss.  Weights and inputs are drawn from the global generator: seed
it with ``torch.manual_seed`` before.
"""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor, nn

from dtr_fx.zoo.densenet import densenet121
from dtr_fx.zoo.inception import inception
from dtr_fx.zoo.lstm import lstm
from dtr_fx.zoo.resnet import resnet32
from dtr_fx.zoo.shufflenet import shufflenet
from dtr_fx.zoo.transformer import transformer
from dtr_fx.zoo.treelstm import treelstm
from dtr_fx.zoo.unet import unet
from dtr_fx.zoo.unrolled_gan import unrolled_gan

__all__ = [
    "ZOO",
    "densenet121",
    "inception",
    "lstm",
    "resnet32",
    "shufflenet",
    "transformer",
    "treelstm",
    "unet",
    "unrolled_gan",
]

ZOO: dict[str, Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]] = {
    "resnet32": resnet32,
    "densenet121": densenet121,
    "inception": inception,
    "unet": unet,
    "transformer": transformer,
    "lstm": lstm,
    "treelstm": treelstm,
    "unrolled_gan": unrolled_gan,
}
