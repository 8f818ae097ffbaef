"""A training step in every form: eager, checkpointed by blocks, split by PyTorch's partitioner, and planned.

All start from the joint graph that AOTAutograd hands to the backend ``dtr``, and end as two graphs for
``dtr_fx.judge``. Nothing is executed, so models built under ``FakeTensorMode`` can have any size.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from functorch.compile import default_partition, min_cut_rematerialization_partition
from torch import nn
from torch.fx import GraphModule
from torch.utils.checkpoint import checkpoint

from dtr_fx.compiler.backend import boxed_compiler
from dtr_fx.errors import GraphError
from dtr_fx.inspect.views import Report
from dtr_fx.passes.drops import LowerDrops
from dtr_fx.passes.propagate import fake_mode_of
from dtr_fx.passes.split import has_effects, prepare, split
from dtr_fx.planning.options import Options
from dtr_fx.planning.planning import copy_of
from dtr_fx.planning.step import Inputs, call
from dtr_fx.planning.transform import rewrite
from dtr_fx.torch_private import (
    BackendCompilerFailed,
    TorchDynamoException,
    aot_autograd,
    dynamo_config,
    functorch_config,
)


class Pair(NamedTuple):
    """The two graphs of a training step."""

    forward: GraphModule
    backward: GraphModule


@dataclass(frozen=True)
class Joint:
    """The joint graph of a training step, and the facts that AOTAutograd gives a partitioner."""

    graph: GraphModule
    inputs: Any
    facts: Mapping[str, Any]

    def copy(self) -> GraphModule:
        """The graph anew: partitioners change theirs."""
        return copy_of(self.graph)


class _Traced(Exception):
    """Ends a compilation that has come as far as it is wanted."""

    def __init__(self, joint: Joint) -> None:
        super().__init__("traced")
        self.joint = joint


def trace(model: Callable[..., Any], inputs: Inputs) -> Joint:
    """The joint graph of the model's step, as the backend ``dtr`` gets it."""

    def stop(graph: GraphModule, given: Any, **facts: Any) -> Any:
        raise _Traced(Joint(graph, given, facts))

    backend = aot_autograd(
        fw_compiler=boxed_compiler,
        bw_compiler=boxed_compiler,
        partition_fn=stop,
        keep_inference_input_mutations=True,
    )
    torch.compiler.reset()
    compiled = torch.compile(model, backend=backend, fullgraph=True, dynamic=False)
    try:
        with dynamo_config.patch(allow_rnn=True):
            call(compiled, inputs)
    except BackendCompilerFailed as failure:
        if isinstance(failure.inner_exception, _Traced):
            return failure.inner_exception.joint
        raise
    except TorchDynamoException as error:
        raise GraphError(f"the model is not traced as one graph: {error}") from error
    raise GraphError("nothing in the model requires a gradient: there is no backward pass to trade against")


def eager(joint: Joint) -> Pair:
    """The step as autograd runs it: whatever the backward pass reads is saved."""
    return _pair(default_partition(joint.copy(), joint.inputs, **joint.facts))


def min_cut(joint: Joint, budget: float) -> Pair:
    """PyTorch's partitioner at ``activation_memory_budget``, in [0, 1]; it merges common subexpressions."""
    with activation_memory_budget(budget), _mode(joint):
        return _pair(min_cut_rematerialization_partition(joint.copy(), joint.inputs, **joint.facts))


def activation_memory_budget(budget: float) -> contextlib.AbstractContextManager[Any]:
    """The setting of PyTorch's partitioner, as long as this lasts."""
    patch: contextlib.AbstractContextManager[Any] = functorch_config.patch(activation_memory_budget=budget)
    return patch


def _mode(joint: Joint) -> contextlib.AbstractContextManager[Any]:
    """Partitioners look for the mode of the fake values when they save a generator's state."""
    return fake_mode_of(joint.graph) or contextlib.nullcontext()


def checkpointed(model: nn.Module, inputs: Inputs, blocks: Iterable[nn.Module] | None = None) -> Pair:
    """The step with ``torch.utils.checkpoint`` (not reentrant) around each block; see ``blocks_of``.

    What the backward pass needs of a region runs again, each operator when something first reads it; eager
    checkpointing runs a region again at once, at no lower cost.
    """
    with checkpoints(model, blocks):
        joint = trace(model, inputs)
    with _mode(joint):
        return _pair(default_partition(joint.copy(), joint.inputs, **joint.facts))


def blocks_of(model: nn.Module) -> list[nn.Module]:
    """What a user would checkpoint: ``blocks_to_checkpoint()``, or the children of outermost containers."""
    own = getattr(model, "blocks_to_checkpoint", None)
    if own is not None:
        return list(own())
    if isinstance(model, (nn.ModuleList, nn.Sequential)):
        return list(model.children())
    return [block for child in model.children() for block in blocks_of(child)]


@contextlib.contextmanager
def checkpoints(model: nn.Module, blocks: Iterable[nn.Module] | None = None) -> Iterator[None]:
    """``torch.utils.checkpoint`` around each block, or each of ``blocks_of``, as long as this lasts."""
    chosen = blocks_of(model) if blocks is None else list(blocks)
    for block in chosen:
        vars(block)["forward"] = functools.partial(checkpoint, block.forward, use_reentrant=False)
    try:
        yield
    finally:
        for block in chosen:
            del block.forward


def planned(joint: Joint, options: Options) -> tuple[Pair, Report]:
    """The pair that the backend ``dtr`` runs."""
    graph, report = plan(joint, options)
    LowerDrops().call(graph)
    return Pair(*split(graph, joint.inputs, **joint.facts)), report


def plan(joint: Joint, options: Options) -> tuple[GraphModule, Report]:
    """The joint graph as the backend ``dtr`` rewrites it, before it is split."""
    graph = joint.copy()
    prepare(graph, joint.facts.get("static_lifetime_input_indices") or ())
    return graph, rewrite(graph, options)


def _pair(graphs: tuple[GraphModule, GraphModule]) -> Pair:
    """The pair without random operators that nothing reads, which partitioners leave there."""
    for gm in graphs:
        gm.graph.eliminate_dead_code(is_impure_node=has_effects)
    return Pair(*graphs)
