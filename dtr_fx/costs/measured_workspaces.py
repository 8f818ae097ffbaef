"""Workspaces that no rule covers: the operator is run once, alone, on inputs of the same layout.

Of models without memory what is large is not run, and counts as none.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from dtr_fx.costs.isolated import on_made_up, outside_of_tracing
from dtr_fx.costs.measure import cpu_peaks
from dtr_fx.costs.operators import CannotRunAlone, is_too_large, signature, value_of
from dtr_fx.passes.effects import may_run_twice
from dtr_fx.passes.tensors import fresh_storages, sizes_of, tensors_of
from dtr_fx.torch_private import OpOverload, any_profiler_runs, compile_lock

log = logging.getLogger(__name__)

_measured: dict[Any, int] = {}
_MOST_MEASURED = 4096  # after which all are forgotten and measured again


def measured_workspaces(nodes: Sequence[Node]) -> dict[Node, int]:
    """Bytes of each operator; 0 for what may not run, as for what is large and has no memory."""
    found = {node: _measured.get(_key(node)) if _is_run(node) else 0 for node in nodes}
    large = [node for node, nbytes in found.items() if nbytes is None and is_too_large(node)]
    if large:
        _warn_of(", ".join(sorted({str(node.target) for node in large})))
        found.update(dict.fromkeys(large, 0))
    unknown = [node for node, nbytes in found.items() if nbytes is None]
    with compile_lock:  # one thread measures
        # No profiler can measure beside a running one: as much again as the outputs.
        more = {node: _fresh_bytes(node) for node in unknown} if any_profiler_runs() else _measure(unknown)
    return {node: more[node] if nbytes is None else nbytes for node, nbytes in found.items()}


@functools.cache  # once is enough
def _warn_of(operators: str) -> None:
    log.warning(
        "what these operators take for themselves is not counted: %s; the model has no memory, and they are "
        "too large to be run for a figure",
        operators,
    )


def _measure(nodes: Sequence[Node]) -> dict[Node, int]:
    """From the cache, filled for all of ``nodes`` under one profile: much cheaper than one by one."""
    keys = {node: _key(node) for node in nodes}
    if len(_measured) > _MOST_MEASURED:
        _measured.clear()
    cases = {key: node for node, key in keys.items() if key not in _measured}
    failed: dict[Any, Exception] = {}
    if cases:
        with outside_of_tracing(torch.device("cpu")):
            peaks = cpu_peaks(_prepared(*case, failed) for case in cases.items())
        for (key, node), peak in zip(cases.items(), peaks):
            # Where made-up inputs do not do, as much again as the outputs: a grad or a contiguous copy.
            fresh = _fresh_bytes(node)
            _measured[key] = fresh if key in failed else max(0, peak - fresh)
            if key in failed:
                log.debug("workspace of %s could not be measured: %s", node.target, failed[key])
    return {node: _measured[key] for node, key in keys.items()}


def _is_run(node: Node) -> bool:
    """True for what may run for the sake of a figure: PyTorch's own, functions, modules, custom operators.

    Not for a collective, or what else does more than compute, nor for what Inductor makes a kernel of.
    """
    if isinstance(node.target, OpOverload) and node.target.namespace == "aten":
        return True
    is_kernel = isinstance(getattr(node.target, "graph", None), torch.fx.Graph)
    if is_kernel or getattr(node.target, "namespace", "") in ("prims", "inductor"):
        return False
    if not may_run_twice(node):
        return False
    try:
        return bool(isinstance(node.target, OpOverload) or signature(node, {}))
    except CannotRunAlone:
        return False


def _fresh_bytes(node: Node) -> int:
    return sum(fresh_storages(node).values())


def _key(node: Node) -> Any:
    """All that decides the workspace: operator, layout of the operands, other arguments, threads."""
    if not isinstance(node.target, OpOverload):
        return signature(node, {}), torch.get_num_threads()
    numbers = {source: number for number, source in enumerate(node.all_input_nodes)}

    def describe(value: Any) -> Any:
        if isinstance(value, Node):
            given = value.meta.get("val")
            number = None if isinstance(given, Tensor) else value_of(given)
            return numbers[value], tuple(map(_layout, tensors_of(given))), number
        if isinstance(value, (list, tuple)):
            return tuple(map(describe, value))
        return repr(value)

    kwargs = tuple((name, describe(value)) for name, value in sorted(node.kwargs.items()))
    return node.target, describe(node.args), kwargs, torch.get_num_threads()


def _layout(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.dtype, *sizes_of(tensor)


def _prepared(key: Any, node: Node, failed: dict[Any, Exception]) -> Callable[[], None]:
    """A node's operator on made-up inputs; an error of its goes into ``failed``."""

    def failing(error: Exception) -> None:
        failed[key] = error

    try:
        call = on_made_up(node, node.target, node.args, dict(node.kwargs))
    except Exception as error:
        return functools.partial(failing, error)

    def run() -> None:
        try:
            call()
        except Exception as error:
            failing(error)

    return run
