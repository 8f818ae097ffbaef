"""A forward and a backward graph, run as AOTAutograd runs them: boxed, so that what is saved dies in time."""

from __future__ import annotations

import operator

import torch
from torch import Tensor
from torch._prims.rng_prims import run_and_save_rng_state
from torch.fx import GraphModule, Node

from dtr_fx.compiler.backend import boxed_compiler
from dtr_fx.costs.measure import measure_peak
from dtr_fx.lab.baselines import Pair


def given(pair: Pair) -> dict[str, Tensor]:
    """What the graphs take, by name: random numbers, zeros where they are whole."""
    generator = torch.Generator().manual_seed(0)
    taken = pair.forward.graph.find_nodes(op="placeholder")
    late = (n for n in pair.backward.graph.find_nodes(op="placeholder") if "tangents" in n.name)
    return {node.name: _made_up(node.meta["val"], generator) for node in (*taken, *late)}


def _made_up(like: Tensor, generator: torch.Generator) -> Tensor:
    if not like.dtype.is_floating_point:
        return torch.zeros(like.shape, dtype=like.dtype)
    return 0.1 * torch.rand(like.shape, dtype=like.dtype, generator=generator)


def run(pair: Pair, inputs: dict[str, Tensor]) -> list[Tensor]:
    """The outputs of the model, then the gradients that are there."""
    returned = _returned(pair.forward)
    values = _call(pair.forward, [inputs[name] for name in _taken(pair.forward)])
    states = [value for node, value in zip(returned, values) if _is_state(node)]
    available = dict(inputs) | {node.name: value for node, value in zip(returned, values)}
    available |= {f"rng_state_output_{number}": state for number, state in enumerate(states)}
    arguments = [available[name] for name in _taken(pair.backward)]
    outputs = [value for node, value in zip(returned, values) if _is_output(node, returned, pair)]
    del available, values, states
    gradients = _call(pair.backward, arguments)
    return [*dict.fromkeys(outputs), *(value for value in gradients if value is not None)]


def peak(pair: Pair) -> int:
    """The allocator's peak above the inputs and parameters: tangents count, as they come late."""
    inputs = given(pair)
    tangents = sum(value.nbytes for name, value in inputs.items() if "tangents" in name)
    return tangents + measure_peak(lambda: run(pair, inputs), device="cpu")


def _call(gm: GraphModule, arguments: list[Tensor]) -> list[Tensor]:
    with torch.no_grad():
        return list(boxed_compiler(gm, ())(arguments))


def _taken(gm: GraphModule) -> list[str]:
    return [node.name for node in gm.graph.find_nodes(op="placeholder")]


def _returned(gm: GraphModule) -> list[Node]:
    return list(gm.graph.output_node().args[0])  # type: ignore[arg-type]


def _is_output(node: Node, returned: list[Node], pair: Pair) -> bool:
    """What is an output and saved is returned twice."""
    return not _is_state(node) and (node.name not in _taken(pair.backward) or returned.count(node) > 1)


def _is_state(node: Node) -> bool:
    taken_apart = node.args[:1] if node.target is operator.getitem else ()
    return any(source.target is run_and_save_rng_state for source in taken_apart) and node.args[1] == 0
