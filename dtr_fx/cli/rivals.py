"""Other ways to run a training step than ours, judged by one rule at the peaks that they really reach."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.fx import GraphModule

from dtr_fx.cli.output import tracked, waiting
from dtr_fx.cli.planned import joint_of
from dtr_fx.cli.targets import load_fake
from dtr_fx.compiler.joint import Joint
from dtr_fx.costs.roofline import Cost, resolve
from dtr_fx.errors import GraphError
from dtr_fx.inspect.comparison import Mark
from dtr_fx.lab import baselines
from dtr_fx.passes.modes import WithoutMemory
from dtr_fx.passes.tensors import graph_device
from dtr_fx.planning.judge import Judgement, judge
from dtr_fx.runtime import RunFailed

_INDUCTOR = (
    "Inductor before fusion: the step in Inductor's operators, as Inductor splits it by default; its extra "
    "compute is over these. What is fused is never in memory: the kernels that run take less"
)


def beside_rivals(arguments: argparse.Namespace) -> tuple[GraphModule, list[Mark], list[str]]:
    """The two passes as one graph, other ways to run them, and what is to be said of these."""
    with WithoutMemory(math.inf):  # as diff runs it
        model, inputs = load_fake(arguments.target, **dict(arguments.arg))
        joint = joint_of(model, inputs, arguments.target)
        graph = joint.planned
        cost = resolve("auto", graph_device(graph), graph.graph)  # as plans have it
        eager = judge(*baselines.eager(joint), costs=cost)
        marks, notes = [Mark("eager", "", eager.peak, 0.0)], list[str]()
        if arguments.no_rivals:
            return joint.planned, marks, notes
        ways: dict[str, Callable[[], Mark]] = {
            "checkpointing": lambda: _per_block(model, inputs, eager, cost),
            "checkpointing at every √n-th operator": lambda: _sqrt(joint),
            "point of Inductor's": lambda: _inductor(model, inputs),
        }
        for what, find in ways.items():
            try:
                marks.append(find())
            except (GraphError, RunFailed) as error:
                notes.append(f"no {what}: {error}")
    marks += _partitioner(joint, eager, cost)
    if any(mark.kind == "inductor" for mark in marks):
        notes.append(_INDUCTOR)
    return joint.planned, marks, notes


def _per_block(model: Callable[..., Any], inputs: Any, eager: Judgement, cost: Cost) -> Mark:
    if not isinstance(model, torch.nn.Module):
        raise GraphError("a function has no blocks")
    if not baselines.blocks_of(model):
        raise GraphError("the model has no ModuleList or Sequential, nor blocks_to_checkpoint()")
    try:
        found = judge(*baselines.checkpointed(model, inputs), costs=cost)
    except GraphError as error:  # a cache that the block fills, say, may not be filled twice
        raise GraphError(f"with it {error}") from error
    return Mark("checkpoint", "", found.peak, found.overhead(eager))


def _sqrt(joint: Joint) -> Mark:
    return Mark("sqrt", "", *baselines.checkpointed_sqrt(joint.planned))


def _inductor(model: Callable[..., Any], inputs: Any) -> Mark:
    with waiting("Inductor's operators"):
        pair, as_autograd = baselines.inductor(model, inputs)
        found = judge(*pair)
        return Mark("inductor", "", found.peak, found.overhead(judge(*as_autograd)))


def _partitioner(joint: Joint, eager: Judgement, cost: Cost) -> Iterator[Mark]:
    for setting in tracked("PyTorch's partitioner", [tenths / 10 for tenths in range(10, -1, -1)]):
        found = judge(*baselines.min_cut(joint, setting), costs=cost)
        yield Mark("partitioner", f"{setting:.1f}", found.peak, found.overhead(eager))
