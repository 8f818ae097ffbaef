"""Tensors of the caller's that a plan recomputes from: a step that finds them written ends in an error."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from dtr_fx.compiler.accounting import compiled_node
from dtr_fx.errors import WrittenTensorError
from dtr_fx.report import Relied
from dtr_fx.torch_private import pytree, version_of


def guard(relied: Sequence[Relied], arguments: Sequence[Any], outputs: Any) -> None:
    """Have the backward pass of a step that ran check that what it recomputes from is as it was.

    It raises a ``WrittenTensorError`` otherwise.  A version tells what was written through PyTorch, a hash of
    the elements what was written past it.
    """
    node = compiled_node(outputs, arguments)
    if node is None:
        return
    given = {"input": arguments, "output": pytree.tree_leaves(outputs)}
    states = [(tensor, _state_of(given[tensor.kind][tensor.position])) for tensor in relied]

    def check(_: Any) -> None:
        for tensor, is_as_it_was in states:
            if not is_as_it_was():
                raise WrittenTensorError(tensor.kind, tensor.name, tensor.source, tensor.safe_budget)

    node.register_prehook(check)


def _state_of(tensor: Tensor) -> Callable[[], bool]:
    """A function that tells if the tensor is still as it is now; it does not keep it alive."""
    reference = weakref.ref(tensor)
    before = _fingerprint(tensor)

    def is_as_it_was() -> bool:
        now = reference()
        return now is None or _fingerprint(now) == before

    return is_as_it_was


def _fingerprint(tensor: Tensor) -> tuple[int, int]:
    with torch.no_grad():
        elements = torch.hash_tensor(tensor.detach()).view(torch.int64)
        return version_of(tensor), int(elements.item())
