"""Operators that Inductor fuses, as one operator: the graph computes the same, and plans see kernels."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import torch
import torch.utils._pytree as pytree
from hypothesis import given, settings
from random_graphs import Recipe, make_inputs, recipes, traced
from torch import Tensor
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx

import dtr_fx
from dtr_fx.cli import main
from dtr_fx.costs import figures
from dtr_fx.costs import roofline as costs
from dtr_fx.costs.kernels import of_kernels
from dtr_fx.passes.kernels import ContractKernels, ExpandKernels, is_kernel, moved


def graph_of(function: Any, *inputs: Tensor) -> GraphModule:
    return make_fx(function, tracing_mode="fake")(*inputs)


def operators(gm: GraphModule) -> list[str]:
    """The operators' names, without namespaces and overloads."""
    return [str(node.target).split(".")[1] for node in gm.graph.nodes if node.op == "call_function"]


def contracted(gm: GraphModule) -> GraphModule:
    ContractKernels().call(gm)
    gm.graph.lint()
    gm.recompile()
    return gm


def named(gm: GraphModule, name: str) -> Node:
    return next(node for node in gm.graph.nodes if node.name == name)


def bits(gm: GraphModule) -> list[bytes]:
    """What a run returns, writes and draws."""
    inputs = make_inputs()
    torch.manual_seed(5)
    with torch.no_grad():
        leaves = [leaf for leaf in pytree.tree_leaves(gm(*inputs)) if isinstance(leaf, Tensor)]
    found = [*leaves, *inputs, torch.get_rng_state()]
    return [tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() for tensor in found]


@settings(max_examples=25)
@given(recipe=recipes)
def test_a_graph_of_kernels_computes_the_same_and_so_does_what_it_expands_to(recipe: Recipe):
    gm = traced(recipe, "fake").gm
    expected = bits(gm)
    assert bits(contracted(GraphModule(gm, copy.deepcopy(gm.graph)))) == expected
    ContractKernels().call(gm)
    ExpandKernels().call(gm)
    gm.graph.lint()
    gm.recompile()
    assert bits(gm) == expected


def test_a_kernel_is_what_no_other_kernel_reads():
    def f(x: Tensor) -> Tensor:
        read_twice = (x.sin() + 1).exp()
        return read_twice.cos() @ read_twice.tanh()

    gm = contracted(graph_of(f, torch.ones(64, 64)))
    kernels = [node for node in gm.graph.nodes if node.op == "call_function"]
    assert [node.name for node in kernels] == ["exp", "cos", "tanh", "mm"]
    assert str(kernels[0].target) == "sin+add+exp"
    assert [is_kernel(node) for node in kernels] == [True, True, True, False]


def test_inside_a_kernel_nothing_is_in_memory():
    x = torch.ones(256, 256)
    gm = graph_of(lambda x: (x.sin().cos().exp() @ x).sum(), x)
    _, before = dtr_fx.transform(gm)
    _, after = dtr_fx.transform(contracted(gm))
    assert before.baseline_peak - before.constants >= 2 * x.nbytes
    # The kernel's result and the product: one matrix less than while cos runs beside sin's result.
    assert after.baseline_peak <= before.baseline_peak
    assert len(after.after) < len(before.after)


def test_draws_and_writes_are_in_no_kernel():
    def f(x: Tensor) -> Tensor:
        noise = torch.rand_like(x)
        y = x.sin()
        x.add_(1)
        return (y.cos() + noise).exp()

    gm = contracted(graph_of(f, torch.ones(64)))
    assert {"rand_like", "sin", "add_"} <= set(operators_outside_kernels(gm))


def operators_outside_kernels(gm: GraphModule) -> list[str]:
    nodes = (node for node in gm.graph.nodes if isinstance(node.target, torch._ops.OpOverload))
    return [node.target._schema.name.split("::")[1] for node in nodes]


def test_what_fuses_with_its_readers_moves_only_what_it_reads_besides():
    x, y = torch.ones(64, 64), torch.ones(64, 64)

    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        both = x + y
        return both.cos().mm(x), both.sin().mm(x)

    gm = contracted(graph_of(f, x, y))
    assert moved(named(gm, "add")) == x.nbytes  # kernels read it: they read x and y instead
    assert moved(named(gm, "cos")) == 2 * x.nbytes  # a library reads it: it reads and writes


CPU, ACCELERATOR = torch.device("cpu"), torch.device("cuda")


def seconds(gm: GraphModule, name: str, device: torch.device) -> float:
    return of_kernels(costs.roofline(device), device)(named(gm, name))


def test_on_a_cpu_generated_code_computes_for_longer_than_it_moves_bytes():
    x = torch.ones(256, 256)
    gm = contracted(graph_of(lambda x: (x.tanh() + 1) @ x, x))
    moving = 2 * x.nbytes / figures.CPU.bandwidth
    assert seconds(gm, "add", CPU) > 2 * moving
    assert seconds(gm, "add", ACCELERATOR) < moving


def test_what_is_fused_is_launched_with_its_readers():
    x = torch.ones(4)
    gm = contracted(graph_of(lambda x: ((y := x + 1).cos() @ x) + (y.sin() @ x), x))
    assert seconds(gm, "add", CPU) < figures.CPU.launch
    assert seconds(gm, "cos", CPU) >= figures.CPU.launch


@pytest.mark.slow
def test_the_benchmark_of_generated_code(capsys):
    assert main(["bench", "costs", "--kernels", "--json"]) == 0
    seconds = json.loads(capsys.readouterr().out)
    assert {"relu", "erf", "tanh", "max_pool2d"} <= seconds.keys()
    assert all(taken > 0 for taken in seconds.values())
    assert seconds["rand_like"] > seconds["relu"]  # some seventy times
