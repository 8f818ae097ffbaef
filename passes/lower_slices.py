"""Regions in slices as an operator of PyTorch's, for a compiler, which calls it and does not look inside."""

from __future__ import annotations

import base64
import functools
import pickle

import torch
from torch import Tensor
from torch.fx import GraphModule

from dtr_fx.passes.contract import Pass
from dtr_fx.passes.slices import Sliced


class LowerSlices(Pass):
    """Put ``torch.ops.dtr_fx.sliced`` in the place of regions; ``meta["dtr_sliced"]`` has the region."""

    name = "lower slices"

    def call(self, gm: GraphModule) -> bool:
        nodes = [node for node in gm.graph.nodes if isinstance(node.target, Sliced)]
        for node in nodes:
            region = node.meta["dtr_sliced"] = node.target
            node.args = (list(node.args), _text_of(region))
            node.target = torch.ops.dtr_fx.sliced.default
        return bool(nodes)


@torch.library.custom_op(
    "dtr_fx::sliced",
    mutates_args=(),
    schema="(Tensor[] inputs, str region) -> Tensor[]",
    tags=(torch.Tag.needs_exact_strides,),
)
def _run(inputs: list[Tensor], region: str) -> list[Tensor]:
    """Run a region; its text is all of it, so that compiled code may outlive the process that planned."""
    with torch.no_grad():
        return list(_region_of(region)(*inputs))


@_run.register_fake
def _fake(inputs: list[Tensor], region: str) -> list[Tensor]:
    results = _region_of(region).results
    return [
        torch.empty_strided(each.shape, each.stride, dtype=each.dtype, device=each.device) for each in results
    ]


def _text_of(region: Sliced) -> str:
    rest = None if region.rest is None else GraphModule(torch.nn.Module(), region.rest)
    parts = region.module, region.extent, region.rows, region.given, region.results, rest
    return base64.b64encode(pickle.dumps(parts)).decode()


@functools.lru_cache
def _region_of(text: str) -> Sliced:
    module, extent, rows, given, results, rest = pickle.loads(base64.b64decode(text))
    return Sliced(module.graph, extent, rows, given, results, None if rest is None else rest.graph)
