"""Randomness that replays: a recomputed dropout draws the mask that it drew first.

Before a random operator that will be recomputed, ``save_state`` takes the generator's state; its recompute
is ``replay``.  Plain functions, since autograd cannot record the operators of ``torch._prims.rng_prims``.
"""

from __future__ import annotations

import functools
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Node

from dtr_fx.passes.tensors import is_here
from dtr_fx.torch_private import OpOverload, schema_of


def is_random(node: Node) -> bool:
    """True if the node draws from a generator, or is a custom operator, which may draw without saying so."""
    target = node.target
    if isinstance(target, OpOverload) and target.namespace not in _TAGGED:
        return True
    facts = node.meta.get("dtr_facts")
    if facts is not None:
        return bool(facts.is_random)
    return isinstance(target, OpOverload) and draws(target, node.args, node.kwargs)


def draws(operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """True if a call draws from a generator: attention without dropout does not, whatever its tag says."""
    if torch.Tag.nondeterministic_seeded not in operator.tags:
        return False
    names = [argument.name for argument in schema_of(operator).arguments]
    given = {"dropout_p": 0.0, **dict(zip(names, args)), **kwargs}
    return "dropout_p" not in names or given["dropout_p"] != 0


# Name spaces whose random operators all carry the tag.
_TAGGED = ("aten", "prims", "prim", "profiler", "_c10d_functional")


def can_replay(node: Node) -> bool:
    """True if the node draws from its device's default generator and can be named in an argument."""
    if node.kwargs.get("generator") is not None:
        return False
    return not callable(node.target) or reference(node) is not None


def reference(node: Node) -> Any:
    """The node's target as ``replay`` takes it: an operator, ``".method"``, or a function's full name."""
    target = node.target
    if isinstance(target, OpOverload) or node.op == "call_module":
        return target
    if node.op == "call_method":
        return f".{target}"
    name = f"{getattr(target, '__module__', None) or 'torch'}:{getattr(target, '__name__', '')}"
    try:
        return name if pkgutil.resolve_name(name) is target else None
    except (ValueError, ImportError, AttributeError):
        return None


def save_state(device: str) -> torch.Tensor:
    """The state of the device's default generator, on the CPU (5,056 bytes for the CPU, 16 for CUDA)."""
    if device == "cpu":
        return torch.get_rng_state()
    if not is_here(torch.device(device)):
        return torch.zeros(16, dtype=torch.uint8)
    state: torch.Tensor = torch.get_device_module(device).get_rng_state(device)
    return state


def _restore_state(device: str, state: torch.Tensor) -> None:
    if device == "cpu":
        torch.set_rng_state(state)
    else:
        torch.get_device_module(device).set_rng_state(state, device)


def replay(state: torch.Tensor, device: str, target: Any, /, *args: Any, **kwargs: Any) -> Any:
    """Run ``target`` as it ran when the generator was in ``state``, and leave the generator alone."""
    function = _function(target) if isinstance(target, str) else target
    current = save_state(device)
    _restore_state(device, state)
    try:
        return function(*args, **kwargs)
    finally:
        _restore_state(device, current)


@functools.cache
def _function(name: str) -> Callable[..., Any]:
    if name.startswith("."):
        return lambda tensor, *args, **kwargs: getattr(tensor, name[1:])(*args, **kwargs)
    function: Callable[..., Any] = pkgutil.resolve_name(name)
    return function
