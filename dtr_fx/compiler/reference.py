"""What PyTorch's own partition of a training step takes: without a budget no step takes more."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, TypeVar

import torch
from functorch.compile import min_cut_rematerialization_partition
from torch.fx import GraphModule

from dtr_fx.costs.workspaces import memory_timeline
from dtr_fx.errors import InfeasibleBudgetError
from dtr_fx.passes.modes import fake_mode_of
from dtr_fx.planning.options import Budget, Options
from dtr_fx.planning.planning import Planning, copy_of
from dtr_fx.torch_private import functorch_config

_T = TypeVar("_T")

Pair: TypeAlias = "tuple[GraphModule, GraphModule]"

# Each patch that is made leaves something in its thread (a ``ContextVar``, torch 2.13): made once.
_AS_BY_DEFAULT = functorch_config.patch(activation_memory_budget=1.0)


def pytorch_pair(joint: GraphModule, inputs: Sequence[object], facts: Mapping[str, Any]) -> Pair:
    """The forward and backward graphs of ``aot_eager``; the joint graph stays as it is."""
    mode = fake_mode_of(joint) or contextlib.nullcontext()
    with torch.no_grad(), mode, _AS_BY_DEFAULT:
        pair: Pair = min_cut_rematerialization_partition(copy_of(joint), inputs, **facts)
    return pair


def pytorch_step(joint: GraphModule, inputs: Sequence[object], facts: Mapping[str, Any]) -> GraphModule:
    """These graphs as the one graph that runs them."""
    from dtr_fx.passes.join import join  # only here: under a budget nothing is joined

    return join(*pytorch_pair(joint, inputs, facts))


def budget_of(step: GraphModule) -> Budget:
    """The peak of such a graph, and what it saves from one pass to the other."""
    planning = Planning(step, Options(costs="roofline"))
    return replace(Options().budget, kind="bytes", value=planning.baseline_peak, saved=planning.saved)


def rewrite_within(most: Budget, options: Options, rewrite: Callable[[Options], _T]) -> _T:
    """Rewrite a graph for such a peak, or for as little more as a plan takes."""
    try:
        return rewrite(replace(options, budget=most))
    except InfeasibleBudgetError as error:
        return rewrite(replace(options, budget=replace(most, value=error.smallest)))


def peak_of(gm: GraphModule) -> int:
    """The peak of a graph as it is, in bytes."""
    return max(point.live for point in memory_timeline(gm))
