"""A training step in every form: eager, checkpointed by blocks, split by PyTorch's partitioner, and planned.

All start from the joint graph that AOTAutograd hands to the backend ``dtr``, and end as two graphs for
``dtr_fx.judge``. Nothing is executed, so models built under ``FakeTensorMode`` can have any size.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

from functorch.compile import default_partition, min_cut_rematerialization_partition
from torch import nn
from torch.fx import GraphModule
from torch.utils.checkpoint import checkpoint

from dtr_fx.compiler.joint import Joint as Joint
from dtr_fx.compiler.joint import trace as trace
from dtr_fx.inspect.views import Report
from dtr_fx.passes.drops import LowerDrops
from dtr_fx.passes.modes import fake_mode_of
from dtr_fx.passes.split import has_effects, split
from dtr_fx.planning.options import Options
from dtr_fx.planning.planning import Planning, copy_of
from dtr_fx.planning.rewrite import rewrite
from dtr_fx.planning.step import Inputs
from dtr_fx.runtime import Program
from dtr_fx.runtime.program import Keep
from dtr_fx.search import execute_order, rerun
from dtr_fx.torch_private import functorch_config


class Pair(NamedTuple):
    """The two graphs of a training step."""

    forward: GraphModule
    backward: GraphModule


def eager(joint: Joint) -> Pair:
    """The step as autograd runs it: whatever the backward pass reads is saved."""
    return _pair(default_partition(copy_of(joint.graph), joint.inputs, **joint.facts))


def min_cut(joint: Joint, budget: float) -> Pair:
    """PyTorch's partitioner at ``activation_memory_budget``, in [0, 1]; it merges common subexpressions."""
    with activation_memory_budget(budget), _mode(joint):
        return _pair(min_cut_rematerialization_partition(copy_of(joint.graph), joint.inputs, **joint.facts))


def inductor(model: Callable[..., Any], inputs: Inputs) -> tuple[Pair, Pair]:
    """The step in Inductor's operators, as Inductor splits it by default, and as autograd would.

    It is what Inductor has before it fuses operators: fused, what one hands to the next is never in memory.
    """
    # Importing Inductor takes seconds.
    from torch._inductor.decomposition import select_decomp_table

    joint = trace(model, inputs, select_decomp_table())
    return min_cut(joint, 1.0), eager(joint)


def checkpointed_sqrt(graph: GraphModule) -> tuple[int, float]:
    """Peak and overhead of segments of ⌈√N⌉ operators (Chen et al. 2016) of a graph with a backward pass.

    What a later segment reads is kept, and what may not run twice; the rest of all segments but the last runs
    again for the backward pass.
    """
    planning = Planning(graph, Options())
    program = planning.graph.program
    assert program.backward is not None
    again = in_segments(program, program.backward)
    order = range(sum(1 for _ in program.calls()))
    plan = execute_order(program, rerun(program, order, again), math.inf)
    return plan.peak, planning.overhead(plan)


def in_segments(program: Program, operators: int) -> set[int]:
    """Of so many operators those whose results only their own segment reads, but those of the last."""
    length = math.isqrt(max(operators - 1, 0)) + 1
    calls = list(program.calls())[:operators]
    kept = {program.storages[step.tensor] for step in program.instructions if isinstance(step, Keep)}
    maker = {output.tensor: op for op, call in enumerate(calls) for output in call.outputs}
    crossing = {
        maker[tensor]
        for op, call in enumerate(calls)
        for tensor in call.inputs
        if tensor in maker and maker[tensor] // length != op // length
    }
    results = {op for tensor, op in maker.items() if program.storages[tensor] in kept}
    last = (operators - 1) // length * length
    return set(range(last)) - crossing - results


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
        return _pair(default_partition(copy_of(joint.graph), joint.inputs, **joint.facts))


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
    graph = copy_of(joint.planned)
    return graph, rewrite(graph, options)


def _pair(graphs: tuple[GraphModule, GraphModule]) -> Pair:
    """The pair without random operators that nothing reads, which partitioners leave there."""
    for gm in graphs:
        gm.graph.eliminate_dead_code(is_impure_node=has_effects)
    return Pair(*graphs)
