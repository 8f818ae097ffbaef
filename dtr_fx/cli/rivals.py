"""Other ways to run a training step than ours, judged by one rule at the peaks that they really reach."""

from __future__ import annotations

import argparse

import torch
from torch.fx import GraphModule

from dtr_fx.cli.output import tracked, waiting
from dtr_fx.cli.planned import runs
from dtr_fx.cli.targets import load_target
from dtr_fx.inspect.comparison import Mark
from dtr_fx.lab import baselines
from dtr_fx.planning.judge import judge
from dtr_fx.torch_private import FakeTensorMode

_INDUCTOR = (
    "Inductor before fusion: the step in Inductor's operators, as Inductor splits it by default; its extra "
    "compute is over these. What is fused is never in memory: the kernels that run take less"
)


def beside_rivals(arguments: argparse.Namespace) -> tuple[GraphModule, list[Mark], list[str]]:
    """The two passes as one graph, other ways to run them, and what is to be said of these."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        model, inputs = load_target(arguments.target, **dict(arguments.arg))
        with runs(arguments.target):
            joint = baselines.trace(model, inputs)
        eager = judge(*baselines.eager(joint))
        marks, notes = [Mark("eager", "", eager.peak, 0.0)], []

        def add(kind: str, setting: str, pair: baselines.Pair) -> None:
            found = judge(*pair)
            marks.append(Mark(kind, setting, found.peak, found.overhead(eager)))

        if arguments.no_rivals:
            return joint.planned, marks, notes
        missing = _why_no_blocks(model)
        if missing:
            notes.append(f"no checkpointing per block: {missing}")
        else:
            add("checkpoint", "", baselines.checkpointed(model, inputs))
        sqrt = baselines.checkpointed_sqrt(joint.planned)
        if sqrt is not None:
            marks.append(Mark("sqrt", "", *sqrt))
        with waiting("Inductor's operators"):
            pair, as_autograd = baselines.inductor(model, inputs)
            found = judge(*pair)
        marks.append(Mark("inductor", "", found.peak, found.overhead(judge(*as_autograd))))
        notes.append(_INDUCTOR)
    for setting in tracked("PyTorch's partitioner", [tenths / 10 for tenths in range(10, -1, -1)]):
        add("partitioner", f"{setting:.1f}", baselines.min_cut(joint, setting))
    return joint.planned, marks, notes


def _why_no_blocks(model: object) -> str:
    if not isinstance(model, torch.nn.Module):
        return "a function has no blocks"
    if not baselines.blocks_of(model):
        return "the model has no ModuleList or Sequential, nor blocks_to_checkpoint()"
    return ""
