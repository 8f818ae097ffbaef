"""Modes of fake tensors: the one that a graph was traced under, and those to trace it under."""

from __future__ import annotations

import math
from typing import Any

from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from dtr_fx.passes.tensors import tensors_of
from dtr_fx.torch_private import FakeTensor, FakeTensorMode


def static_mode() -> FakeTensorMode:
    """Sizes are as given; a number that an operator reads from a tensor is a symbol."""
    return FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv(), static_shapes=True)


class WithoutMemory(FakeTensorMode):
    """The mode of models without memory, which may have any size.

    Of their graphs no operator is run for a figure whose operands and results take more than ``largest``
    bytes: by default so many that it takes a second at most.
    """

    def __init__(self, largest: float = 2**26) -> None:
        super().__init__(allow_non_fake_inputs=True, shape_env=ShapeEnv(), static_shapes=True)
        self.largest = largest


def largest_to_run(node: Node) -> float:
    """How many bytes the node's operator may take to be run for a figure."""
    values = (node.meta.get("val"), *(used.meta.get("val") for used in node.all_input_nodes))
    mode = fake_mode_of_values(values)
    return mode.largest if isinstance(mode, WithoutMemory) else math.inf


def fake_mode_of(gm: GraphModule) -> FakeTensorMode | None:
    return fake_mode_of_values(node.meta.get("val") for node in gm.graph.nodes)


def fake_mode_of_values(values: Any) -> FakeTensorMode | None:
    fakes = (leaf for value in values for leaf in tensors_of(value) if isinstance(leaf, FakeTensor))
    fake = next(fakes, None)
    return None if fake is None else fake.fake_mode
