"""The networks of the paper's Table 1 and of MegEngine's, in any batch: whole, and small for a CPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from dtr_fx.lab.zoo.layers import Model
from dtr_fx.lab.zoo.resnet import resnet32, resnet50
from dtr_fx.lab.zoo.shufflenet import shufflenet
from dtr_fx.lab.zoo.transformer import transformer
from dtr_fx.lab.zoo.treelstm import treelstm
from dtr_fx.lab.zoo.unet import unet


@dataclass(frozen=True)
class Subject:
    """A model in any size: the factory's argument ``axis``; ``start`` is one that trains on small cards."""

    name: str
    axis: str
    start: int
    factory: Callable[..., Model]

    def make(self, size: int) -> Model:
        return self.factory(**{self.axis: size})


WHOLE = (
    Subject("resnet1202", "batch", 4, partial(resnet32, blocks=200)),
    Subject("resnet50", "batch", 8, partial(resnet50, width=64, size=224, classes=1000)),
    Subject("transformer", "batch", 4, partial(transformer, width=512, length=256, vocab=32000)),
    Subject("unet", "batch", 1, partial(unet, width=64, size=444)),
    Subject("treelstm", "leaves", 64, partial(treelstm, batch=32, inputs=300, hidden=1024)),
    Subject("shufflenet", "batch", 16, partial(shufflenet, width=116, size=224, classes=1000)),
)

SMALL = (
    Subject("resnet1202", "batch", 2, partial(resnet32, blocks=3)),
    Subject("resnet50", "batch", 2, resnet50),
    Subject("transformer", "batch", 1, transformer),
    Subject("unet", "batch", 1, partial(unet, size=188)),
    Subject("treelstm", "leaves", 8, treelstm),
    Subject("shufflenet", "batch", 4, shufflenet),
)
