"""What Dynamo hands over: a graph whose sizes may be symbols, and why it was traced.

Dynamo's own attributes of graphs, sources and metrics are private: checked on torch 2.11 and 2.13.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from torch import SymFloat, SymInt, Tensor
from torch._dynamo.utils import get_metrics_context
from torch._guards import CompileContext
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from dtr_fx.planning.transform import copy_of


def copy_of_dynamos(gm: GraphModule) -> GraphModule:
    """A copy, with what tells AOTAutograd which inputs are parameters."""
    copied = copy_of(gm)
    copied.meta = dict(gm.meta)
    if hasattr(gm, "_param_name_to_source"):
        copied._param_name_to_source = gm._param_name_to_source
    inputs = (graph.find_nodes(op="placeholder") for graph in (gm.graph, copied.graph))
    for ours, theirs in zip(*inputs):
        if hasattr(ours, "_dynamo_source"):
            theirs._dynamo_source = ours._dynamo_source
    return copied


def bound(gm: GraphModule, arguments: Sequence[Any], floats: Collection[int] = ()) -> GraphModule:
    """A copy for these arguments: where the graph takes a whole number, it now has the number.

    So it has for those ``floats``, given by position, that it takes as tensors and reads with ``item()``.
    Symbols that Dynamo made for what only the data tell are forgotten; a new trace makes its own.
    """
    copied = copy_of_dynamos(gm)
    inputs = copied.graph.find_nodes(op="placeholder")
    numbers = {node: argument for node, argument in zip(inputs, arguments) if isinstance(argument, int)}
    for position in floats:
        readers = (user for user in inputs[position].users if user.target == "item")
        numbers.update(dict.fromkeys(readers, arguments[position].item()))

    def number(node: Node) -> Any:
        return numbers.get(node, node)

    for node in copied.graph.nodes:
        node.meta.pop("unbacked_bindings", None)
        if not numbers.keys().isdisjoint(node.all_input_nodes):
            node.args, node.kwargs = map_arg((node.args, node.kwargs), number)
    for node in reversed(numbers):
        copied.graph.erase_node(node)
    copied.recompile()
    return copied


def sized_inputs(gm: GraphModule) -> dict[int, str]:
    """The inputs, by position, whose sizes are symbols to the graph or that are numbers; with their names."""
    return {
        position: _source_of(node)
        for position, node in enumerate(gm.graph.find_nodes(op="placeholder"))
        if _has_symbols(node.meta.get("example_value"))
    }


def float_inputs(gm: GraphModule) -> dict[int, str]:
    """The inputs, by position, that are floats to the user, and to the graph tensors; with their names."""
    return {
        position: _source_of(node)
        for position, node in enumerate(gm.graph.find_nodes(op="placeholder"))
        if isinstance(getattr(node.meta.get("example_value"), "item_memo", None), SymFloat)
    }


def _source_of(node: Node) -> str:
    """What the user calls an input, as ``L['x'].size()[1]``; a property of sources since torch 2.10."""
    source = getattr(node, "_dynamo_source", None)
    name = getattr(source, "name", node.name)
    return str(name() if callable(name) else name)


def _has_symbols(value: Any) -> bool:
    if isinstance(value, Tensor):
        return any(isinstance(size, SymInt) for size in (*value.shape, *value.stride()))
    return isinstance(value, (int, SymInt)) and not isinstance(value, bool)


def compile_id() -> str:
    """Dynamo's number of the compilation at hand, as ``1/0``: frame and how often it was compiled before."""
    return str(CompileContext.current_compile_id() or "")


def recompile_reason() -> str:
    """The guard that failed, if this is a recompilation; else nothing."""
    metrics = getattr(get_metrics_context(), "_metrics", {})
    first_line = str(metrics.get("recompile_reason") or "").partition("\n")[0]
    if "BACKEND_MATCH" in first_line:  # the same graph, compiled by another backend or with other options
        return ""
    return first_line.partition(" # ")[0].strip()


def fakes(arguments: Sequence[Any], mode: FakeTensorMode) -> list[Any]:
    """The arguments that a bound graph takes, as fake tensors."""
    return [
        mode.from_tensor(argument) if isinstance(argument, Tensor) else argument
        for argument in without_numbers(arguments)
    ]


def without_numbers(arguments: Sequence[Any]) -> list[Any]:
    """The arguments that a bound graph takes."""
    return [argument for argument in arguments if not isinstance(argument, int)]
