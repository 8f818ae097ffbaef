"""Traced here, with the operators that a CUDA card would run: what PyTorch chooses by the device.

attention  flash attention, memory-efficient attention, or composed of others, as ``select_sdp_backend``
           chooses (``aten/src/ATen/native/transformers/cuda/sdp_utils.cpp``); cuDNN's is never taken
RMS norm   one operator in each pass, which keeps the input and a number for each row

Nothing of it is run: PyTorch's rules for fake tensors ask for no card.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import GraphModule

from dtr_fx.costs.figures import Device
from dtr_fx.torch_private import forget_dispatch, scoped_library

_aten = torch.ops.aten
_HALF = torch.float16, torch.bfloat16
_LARGEST_HEAD = 256  # of flash attention
# What a graph has of each, in words.
_WORDS = {
    "_scaled_dot_product_flash_attention": "flash attention",
    "_scaled_dot_product_efficient_attention": "memory-efficient attention",
    "_fused_rms_norm_backward": "fused RMS norms",
}


@contextmanager
def traced_for(card: Device | None) -> Iterator[None]:
    """Have what is traced meanwhile traced as for a card; None leaves it as it is here."""
    if card is None:
        yield
        return
    operators = _aten.scaled_dot_product_attention.default, _aten._fused_rms_norm.default
    with scoped_library("aten", "IMPL") as library:
        attends = attention if card.has_flash else attention_without_flash
        library.impl("scaled_dot_product_attention", attends, "AutogradCPU")
        # Where a device has no kernel it is composed of others before it is differentiated.
        library.impl("_fused_rms_norm", _no_kernel, "CPU")
        for operator in operators:
            forget_dispatch(operator)
        try:
            yield
        finally:
            for operator in operators:
                forget_dispatch(operator)


def _no_kernel(*_: Any) -> None:
    raise NotImplementedError("it is there to be traced")


def assumed(gm: GraphModule) -> str:
    """What of this a traced graph has, in words."""
    packets = (getattr(node.target, "overloadpacket", None) for node in gm.graph.nodes)
    names = {str(packet).rpartition(".")[2] for packet in packets if packet is not None}
    return ", ".join(words for name, words in _WORDS.items() if name in names)


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    has_flash: bool = True,
) -> Tensor:
    """``scaled_dot_product_attention`` on a card."""
    if has_flash and _takes_flash(query, key, value, attn_mask, is_causal, enable_gqa):
        return _flash(query, key, value, dropout_p, is_causal, scale)
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        zeros = torch.zeros_like(attn_mask, dtype=query.dtype)
        attn_mask = zeros.masked_fill(attn_mask.logical_not(), -math.inf)
    if _takes_efficient(query, key, value, has_flash):
        saves = torch.is_grad_enabled() and any(each.requires_grad for each in (query, key, value))
        bias = None if attn_mask is None else attn_mask.expand(*query.shape[:3], key.shape[2])
        operator = _aten._scaled_dot_product_efficient_attention
        made: Tensor = operator(query, key, value, bias, saves, dropout_p, is_causal, scale=scale)[0]
        return made
    settings = {"scale": scale, "enable_gqa": enable_gqa}
    operator = _aten._scaled_dot_product_attention_math
    composed: Tensor = operator(query, key, value, attn_mask, dropout_p, is_causal, **settings)[0]
    return composed


def attention_without_flash(*args: Any, **kwargs: Any) -> Tensor:
    """``scaled_dot_product_attention`` on a card older than Ampere."""
    return attention(*args, **kwargs, has_flash=False)


def _takes_flash(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool, shares_heads: bool
) -> bool:
    if mask is not None or query.dtype not in _HALF or not _are_alike(query, key, value, shares_heads):
        return False
    return query.shape[3] <= _LARGEST_HEAD and not (is_causal and query.shape[2] != key.shape[2])


def _takes_efficient(query: Tensor, key: Tensor, value: Tensor, is_recent: bool) -> bool:
    recent = (torch.bfloat16,) if is_recent else ()
    is_known = query.dtype in (torch.float16, torch.float32, *recent)
    if not is_known or not _are_alike(query, key, value, shares_heads=False):
        return False
    aligned = 8 if query.dtype in _HALF else 4 if is_recent else 1
    return query.shape[3] % aligned == 0 and value.shape[3] % aligned == 0


def _are_alike(query: Tensor, key: Tensor, value: Tensor, shares_heads: bool) -> bool:
    """Four dimensions each, batches and heads of one size."""
    if {query.dim(), key.dim(), value.dim()} != {4} or 0 in (*query.shape, *key.shape):
        return False
    (batch, heads, _, size), (_, groups, *_) = query.shape, key.shape
    shapes = [(each.shape[0], each.shape[1], each.shape[3]) for each in (key, value)]
    return shapes == [(batch, groups, size)] * 2 and (
        heads == groups or (shares_heads and heads % groups == 0)
    )


def _flash(
    query: Tensor, key: Tensor, value: Tensor, dropout_p: float, is_causal: bool, scale: float | None
) -> Tensor:
    """Heads are padded to a multiple of 8."""
    size = query.shape[3]
    if size % 8:
        scale = size**-0.5 if scale is None else scale
        query, key, value = (F.pad(each, (0, -size % 8)) for each in (query, key, value))
    operator = _aten._scaled_dot_product_flash_attention
    made: Tensor = operator(query, key, value, dropout_p, is_causal, scale=scale)[0]
    return made[..., :size] if size % 8 else made
