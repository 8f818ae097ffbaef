"""Tensors of the caller's that a plan recomputes from: a step that finds them written ends in an error."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from dtr_fx.errors import WrittenTensorError
from dtr_fx.report import Relied
from dtr_fx.torch_private import pytree, version_of


def guard(node: Any, relied: Sequence[Relied], arguments: Sequence[Any], outputs: Any) -> None:
    """Have the backward pass of a step that ran check that what it recomputes from is as it was.

    It raises a ``WrittenTensorError`` otherwise.  A version tells what was written through PyTorch, a hash
    and the sum of the elements what was written past it.
    """
    given = {"input": arguments, "parameter": arguments, "output": pytree.tree_leaves(outputs)}
    # The backward pass holds these tensors as well, and the check lets go of them when it starts.
    held = [(tensor, given[tensor.kind][tensor.position].detach()) for tensor in relied]
    before = [_fingerprint(*pair) for pair in held]
    node.register_prehook(functools.partial(_CHECK, held, before))


def _check(held: list[tuple[Relied, Tensor]], before: Sequence[object], _: Any) -> None:
    for (tensor, value), fingerprint in zip(held, before):
        if _fingerprint(tensor, value) != fingerprint:
            raise WrittenTensorError(tensor.kind, tensor.name, tensor.source, tensor.safe_budget)
    held.clear()


# A function that is compiled may go backward: this is none of its frames.
_CHECK: Any = torch.compiler.disable(_check)


def _fingerprint(relied: Relied, value: Tensor) -> tuple[object, ...]:
    """What changes with the tensor; of a parameter, a type that cannot be hashed, or nothing, its version."""
    found: tuple[object, ...] = (version_of(value),)
    if value.device.type != "meta" and relied.kind != "parameter":
        with torch.no_grad(), contextlib.suppress(RuntimeError, NotImplementedError):
            found += int(torch.hash_tensor(value).view(torch.int64).item()), str(value.sum().item())
    return found
