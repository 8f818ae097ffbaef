"""Dynamo's graphs, whose sizes may be symbols, and why each was traced."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from torch import SymFloat, SymInt, Tensor
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from dtr_fx.planning.transform import copy_of
from dtr_fx.torch_private import (
    CompileContext,
    FakeTensor,
    compilation_facts,
    copy_sources,
    dynamo_source,
    get_metrics_context,
)


def copy_of_dynamos(gm: GraphModule) -> GraphModule:
    """A copy, with what tells AOTAutograd which inputs are parameters."""
    copied = copy_of(gm)
    copied.meta = dict(gm.meta)
    copy_sources(gm, copied)
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
    for node in copied.graph.nodes:
        node.meta.pop("unbacked_bindings", None)
        if not numbers.keys().isdisjoint(node.all_input_nodes):
            node.args, node.kwargs = map_arg((node.args, node.kwargs), lambda used: numbers.get(used, used))
    for node in reversed(numbers):
        copied.graph.erase_node(node)
    copied.recompile()
    return copied


def sized_inputs(gm: GraphModule) -> dict[int, str]:
    """The inputs, by position, whose sizes are symbols to the graph or that are numbers; with their names."""
    return _named_inputs(gm, _has_symbols)


def float_inputs(gm: GraphModule) -> dict[int, str]:
    """The inputs, by position, that are floats to the user, and to the graph tensors; with their names."""
    return _named_inputs(gm, _is_float)


def _named_inputs(gm: GraphModule, test: Callable[[Any], bool]) -> dict[int, str]:
    inputs = enumerate(gm.graph.find_nodes(op="placeholder"))
    return {at: _source_of(node) for at, node in inputs if test(node.meta.get("example_value"))}


def _is_float(value: Any) -> bool:
    return isinstance(value, FakeTensor) and isinstance(value.item_memo, SymFloat)


def _source_of(node: Node) -> str:
    """The user's name of an input, as ``L['x'].size()[1]``."""
    source = dynamo_source(node)
    return node.name if source is None else str(source.name)


def _has_symbols(value: Any) -> bool:
    if isinstance(value, Tensor):
        return any(isinstance(size, SymInt) for size in (*value.shape, *value.stride()))
    return isinstance(value, (int, SymInt)) and not isinstance(value, bool)


def compile_id() -> str:
    """Dynamo's number of the compilation at hand, as ``1/0``: frame and how often it was compiled before."""
    return str(CompileContext.current_compile_id() or "")


def recompile_reason() -> str:
    """The guard that failed, if this is a recompilation; else nothing."""
    facts = compilation_facts(get_metrics_context())
    first_line = str(facts.get("recompile_reason") or "").partition("\n")[0]
    if "BACKEND_MATCH" in first_line:  # the same graph, compiled by another backend or with other options
        return ""
    return first_line.partition(" # ")[0].strip()


def without_numbers(arguments: Sequence[Any]) -> list[Any]:
    """The arguments that a bound graph takes."""
    return [argument for argument in arguments if not isinstance(argument, int)]
