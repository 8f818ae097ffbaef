"""What PyTorch's own partition of a training step takes: without a budget no step takes more."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple, TypeVar

import torch
from functorch.compile import min_cut_rematerialization_partition
from torch.fx import GraphModule

from dtr_fx.costs.workspaces import memory_timeline
from dtr_fx.errors import InfeasibleBudgetError
from dtr_fx.passes.join import join
from dtr_fx.passes.marks import runs_again
from dtr_fx.passes.modes import fake_mode_of
from dtr_fx.passes.split import Pair
from dtr_fx.planning.options import Budget, Options
from dtr_fx.planning.planning import Planning, copy_of
from dtr_fx.torch_private import functorch_config

_T = TypeVar("_T")

# Each patch that is made leaves something in its thread (a ``ContextVar``, torch 2.13): made once.
_AS_BY_DEFAULT = functorch_config.patch(activation_memory_budget=1.0)


def pytorch_pair(joint: GraphModule, inputs: Sequence[object], facts: Mapping[str, Any]) -> Pair:
    """The forward and backward graphs of ``aot_eager``; the joint graph stays as it is."""
    mode = fake_mode_of(joint) or contextlib.nullcontext()
    with torch.no_grad(), mode, _AS_BY_DEFAULT:
        pair: Pair = min_cut_rematerialization_partition(copy_of(joint), inputs, **facts)
    return pair


def budget_of(step: GraphModule, count: Literal["allocated", "reserved"]) -> Budget:
    """The peak of such a graph in bytes that count, and what it saves from one pass to the other."""
    planning = Planning(step, Options(costs="roofline", count=count))
    return replace(Options().budget, kind="bytes", value=planning.whole, saved=planning.saved)


class Reference(NamedTuple):
    """PyTorch's own forward and backward graphs, as the one graph that runs them."""

    graph: GraphModule

    @classmethod
    def of(cls, joint: GraphModule, inputs: Sequence[object], facts: Mapping[str, Any]) -> Reference:
        """The reference for a joint graph, which stays as it is."""
        return cls(join(*pytorch_pair(joint, inputs, facts)))

    def rewrite(self, joint: GraphModule, options: Options, rewrite: Callable[..., None]) -> None:
        """Rewrite the joint graph so that it takes no more than this, or as little more as a plan does.

        The user's checkpoints are obeyed as they are where they take no more.
        """
        most = budget_of(self.graph, options.count)
        is_marked = any(map(runs_again, joint.graph.nodes))
        if is_marked and Planning(joint, replace(options, costs="roofline")).whole <= most.value:
            rewrite(options)
        else:
            rewrite_within(most, options, functools.partial(rewrite, reference=self.graph))


def rewrite_within(most: Budget, options: Options, rewrite: Callable[[Options], _T]) -> _T:
    """Rewrite a graph for such a peak, or for as little more as a plan takes."""
    try:
        return rewrite(replace(options, budget=most))
    except InfeasibleBudgetError as error:
        return rewrite(replace(options, budget=replace(most, value=error.smallest)))


def peak_of(gm: GraphModule) -> int:
    """The peak of a graph as it is, in bytes."""
    return max(point.live for point in memory_timeline(gm))
