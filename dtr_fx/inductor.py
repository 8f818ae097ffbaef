"""Inductor as the executor: a plan over its kernels, held through its scheduler.

    compile_fx
      ├─ joint graph, decomposed  ─►  Partitioner   PyTorch's own partition if that fits, else a plan
      └─ kernels, fused           ─►  _Scheduling   the order of lowest peak, and that peak

What the kernels need in the end depends on layouts and on fusion, which a plan does not see.  If it is more
than the budget, ``compile_step`` plans anew for less, before any code is generated.

Inductor's scheduler and its estimate of memory are private: checked on torch 2.11 and 2.13.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
import torch.utils._pytree as pytree
from functorch.compile import min_cut_rematerialization_partition
from torch._functorch import config as functorch_config
from torch._inductor import custom_graph_pass, ir, memory
from torch._inductor.choices import InductorChoices
from torch._inductor.codegen.cpp import CppScheduling
from torch._inductor.compile_fx import compile_fx
from torch._inductor.custom_graph_pass import CustomPartitionerFn, get_hash_for_files
from torch._inductor.lowering import register_lowering
from torch._inductor.scheduler import (
    BaseSchedulerNode,
    ExternKernelSchedulerNode,
    Scheduler,
    SchedulerBuffer,
)
from torch._inductor.virtualized import V
from torch.fx import Graph, GraphModule, Node
from torch.utils._ordered_set import OrderedSet

import dtr_fx.passes
from dtr_fx.errors import OverBudgetError
from dtr_fx.judge import join
from dtr_fx.options import BudgetSpec, Options, parse_budget, resolve_budget
from dtr_fx.passes import kernels, storages, verify
from dtr_fx.passes.drops import lower_drops
from dtr_fx.passes.propagate import fake_mode_of
from dtr_fx.passes.split import prepare, split
from dtr_fx.passes.storages import tensors_of
from dtr_fx.passes.workspace import workspaces
from dtr_fx.report import Report
from dtr_fx.transform import copy_of, rewrite
from dtr_fx.units import format_bytes

log = logging.getLogger(__name__)


@register_lowering(kernels.held_value)
def _held(value: ir.TensorBox) -> ir.TensorBox:
    value.realize()
    return value


# How often a step is planned anew, and for how much less besides what it was too much: one part in so many of
# the budget.
_TRIES, _MARGIN = 5, 100
# Under these settings kernels need what a plan counts with: a layout that is chosen for speed makes copies of
# weights and images, which stay for the backward pass, and a buffer that waits for its reuse is not free.
_AS_PLANNED = {"layout_optimization": False, "allow_buffer_reuse": False}


def compile_step(gm: GraphModule, example_inputs: Sequence[Any], options: Options) -> Callable[..., Any]:
    """Compile with Inductor; the peak is within the budget by Inductor's own estimate.

    Raises
    ------
    InfeasibleBudgetError
        No plan fits.
    OverBudgetError
        Plans fit, but not what Inductor makes of them.
    """
    compiled, excess = _compile(gm, example_inputs, _AsItIs(options), {})
    reserve = 0
    for _ in range(_TRIES):
        if compiled is not None:
            return compiled
        partitioner = _Planned(options, reserve)
        compiled, excess = _compile(gm, example_inputs, partitioner, _AS_PLANNED)
        if excess:
            log.info("Inductor's kernels are %s above the budget", format_bytes(excess))
        reserve += excess + partitioner.budget // _MARGIN
    if compiled is None:
        raise OverBudgetError(partitioner.budget, excess)
    return compiled


def _compile(
    gm: GraphModule, example_inputs: Sequence[Any], partitioner: Partitioner, patches: Mapping[str, Any]
) -> tuple[Callable[..., Any] | None, int]:
    """What Inductor makes of a graph; None, and by how many bytes, if that is above the budget."""
    scheduling = _Scheduling(partitioner)
    settings = {
        **patches,
        "custom_partitioner_fn": partitioner,
        "_post_fusion_custom_pass": scheduling,
        "reorder_for_peak_memory": False,
    }
    try:
        with (
            # Else the backward graph is lowered when the first step has run half its way.
            functorch_config.patch(force_non_lazy_backward_lowering=True),
            V.set_choices_handler(_Fusion(scheduling)),
            contextlib.nullcontext() if partitioner.is_free else _kernel_by_kernel(),
        ):
            compiled = compile_fx(copy_of(gm), example_inputs, config_patches=settings)
    except Exception:
        if not scheduling.excess and not partitioner.gave_up:
            raise
        return None, scheduling.excess
    if partitioner.report is not None:
        partitioner.tell(partitioner.report)
    return cast(Callable[..., Any], compiled), 0


@contextlib.contextmanager
def _kernel_by_kernel() -> Iterator[None]:
    """On a CPU, one function for each kernel: as a rule all kernels between two library calls are in one.

    What such a function makes is allocated before its first kernel runs and freed after its last.
    """
    usual = CppScheduling.MAX_FUSED_KERNEL_ARGS_NUM
    CppScheduling.MAX_FUSED_KERNEL_ARGS_NUM = 0
    try:
        yield
    finally:
        CppScheduling.MAX_FUSED_KERNEL_ARGS_NUM = usual


class Partitioner(CustomPartitionerFn):  # type: ignore[misc]
    """Splits the joint graph for Inductor: as PyTorch does if that fits the budget, else by a plan.

    For those who stay with ``backend="inductor"``, whose options then have
    ``{"custom_partitioner_fn": dtr_fx.Partitioner(budget="60%")}``.  The plan is within the budget; what
    layouts and fusion add to its peak is held against it by ``backend="dtr"`` only.

    Parameters
    ----------
    budget, options:
        As for ``backend="dtr"``; see ``Options``.

    Raises
    ------
    OptionError
        A value that cannot be understood.
    """

    def __init__(self, budget: float | int | str = 1.0, **options: Any) -> None:
        self._start(Options.from_mapping({"budget": budget, **options, "executor": "inductor"}))

    def _start(self, options: Options, reserve: int = 0) -> None:
        self._options = options
        self._reserve = reserve
        self.budget = 0
        self.report: Report | None = None
        self.gave_up = False
        self.views: set[str] = set()

    def __call__(
        self, gm: GraphModule, joint_inputs: Sequence[object], **facts: Any
    ) -> tuple[GraphModule, GraphModule]:
        pair = self._as_it_is(gm, joint_inputs, facts)
        return pair if pair is not None else self._planned(gm, joint_inputs, facts)

    def tell(self, report: Report) -> None:
        """Hand a report on to whom the options name."""
        if self._options.on_report is not None:
            self._options.on_report(report)

    @property
    def is_free(self) -> bool:
        """At 100% of its peak a graph may be as it would be without a budget."""
        whole = parse_budget(self._options.budget) == BudgetSpec("fraction", 1.0)
        return whole and self._options.max_overhead is None

    def _as_it_is(
        self, gm: GraphModule, joint_inputs: Sequence[object], facts: Mapping[str, Any]
    ) -> tuple[GraphModule, GraphModule] | None:
        """The graphs of PyTorch's own partitioner, if they fit."""
        if self._options.max_overhead is not None:
            return None
        with torch.no_grad(), _mode_of(gm):
            joint = copy_of(gm)
            pair: tuple[GraphModule, GraphModule] = min_cut_rematerialization_partition(
                joint, joint_inputs, **facts
            )
            step = join(*pair)
            kernels.contract(step.graph)
            self.budget = self._budget_of(gm)
            if not self.is_free and _peak(step) > self.budget:
                return None
            self.report = replace(rewrite(step, replace(self._options, budget=1.0)), budget=self.budget)
            self.views = _views_of_inputs(pair[0])
        return pair

    def _planned(
        self, gm: GraphModule, joint_inputs: Sequence[object], facts: Mapping[str, Any]
    ) -> tuple[GraphModule, GraphModule]:
        with torch.no_grad(), _mode_of(gm):
            prepare(gm, facts.get("static_lifetime_input_indices") or ())
            options = self._options
            if options.max_overhead is None:
                self.budget = self._budget_of(gm)
                options = replace(options, budget=max(1, self.budget - self._reserve))
            kernels.contract(gm.graph)
            report = rewrite(gm, options)
            self.budget = self.budget or report.budget
            self.report = replace(report, budget=self.budget)
            lower_drops(gm.graph)
            kernels.hold(gm.graph)
            kernels.expand(gm.graph)
            gm.recompile()
            pair = split(gm, joint_inputs, **{name: facts[name] for name in facts if name != "compiler"})
            self.views = _views_of_inputs(pair[0])
        return pair

    def _budget_of(self, gm: GraphModule) -> int:
        """The budget in bytes; a share is of the peak of the graph's kernels as they are."""
        spec = parse_budget(self._options.budget)
        device = storages.graph_device(gm)
        inputs = gm.graph.find_nodes(op="placeholder")
        held = sum(
            storages.storage_bytes(tensor, device)
            for node in inputs
            if node.users and not storages.is_tangent(node)
            for tensor in tensors_of(node.meta.get("val"))
        )
        peak = 0
        if spec.kind == "fraction":
            joint = copy_of(gm)
            kernels.contract(joint.graph)
            peak = _peak(joint)
        return resolve_budget(spec, peak, device, already_held=held)

    def uuid(self) -> Any | None:
        """What a compiled graph depends on; None, so that nothing is cached, where that cannot be told."""
        options = replace(self._options, on_report=None)
        if any(map(callable, vars(options).values())) or options.budget == "auto":
            return None
        return get_hash_for_files(_sources(), extra=f"{type(self).__name__} {options} {self._reserve}")


class _AsItIs(Partitioner):
    """PyTorch's own partition or, where that does not fit, none."""

    def __init__(self, options: Options) -> None:
        self._start(options)

    def __call__(
        self, gm: GraphModule, joint_inputs: Sequence[object], **facts: Any
    ) -> tuple[GraphModule, GraphModule]:
        pair = self._as_it_is(gm, joint_inputs, facts)
        if pair is None:
            self.gave_up = True
            raise _TooMuch
        return pair


class _Planned(Partitioner):
    """A plan that leaves ``reserve`` bytes of the budget free."""

    def __init__(self, options: Options, reserve: int) -> None:
        self._start(options, reserve)

    def __call__(
        self, gm: GraphModule, joint_inputs: Sequence[object], **facts: Any
    ) -> tuple[GraphModule, GraphModule]:
        return self._planned(gm, joint_inputs, facts)


@functools.cache
def _sources() -> tuple[str, ...]:
    folders = [path for package in (dtr_fx, dtr_fx.passes) for path in map(Path, package.__path__)]
    return tuple(sorted(str(path) for folder in folders for path in folder.rglob("*.py")))


def _views_of_inputs(forward: GraphModule) -> set[str]:
    """What the forward graph returns, by name, that takes no memory beside that of its inputs."""
    inputs = forward.graph.find_nodes(op="placeholder")
    keys = {key for node in inputs for key in storages.storage_keys(node)}
    returned = forward.graph.output_node().all_input_nodes
    return {node.name for node in returned if not keys.isdisjoint(storages.storage_keys(node))}


def _mode_of(gm: GraphModule) -> contextlib.AbstractContextManager[Any]:
    return fake_mode_of(gm) or contextlib.nullcontext()


def _peak(gm: GraphModule) -> int:
    """The peak of a graph of kernels as it is."""
    workspace = workspaces(node for node in gm.graph.nodes if node.op.startswith("call"))
    by_name = {node.name: nbytes for node, nbytes in workspace.items()}
    return max(point.live for point in verify.liveness(gm, by_name, storages.graph_device(gm)))


# From torch 2.12 on, what is not one of these is not cached.
_SchedulerPass: Any = getattr(custom_graph_pass, "CustomSchedulerPass", object)


class _Scheduling(_SchedulerPass):  # type: ignore[misc]
    """Orders the kernels of a graph, and tells by how much they exceed the partitioner's budget."""

    def __init__(self, partitioner: Partitioner) -> None:
        self.partitioner = partitioner
        self._copied = 0
        self.excess = 0

    def __call__(self, nodes: list[BaseSchedulerNode]) -> list[BaseSchedulerNode]:
        estimate = _Estimate(nodes, self.partitioner.views)
        order = min(estimate.orders(), key=estimate.peak)
        room = self.room
        self._copied = _copied_inputs()
        if room is not None:
            self.excess = max(0, estimate.peak(order) - room)
            if self.excess:
                raise _TooMuch
        return order

    def uuid(self) -> Any | None:
        """A compilation that needed too much was not cached, so what was cached fits."""
        return self.partitioner.uuid()

    @property
    def room(self) -> int | None:
        """Bytes of the budget for what is made in the graph at hand; None if there is no budget."""
        report = self.partitioner.report
        if report is None or self.partitioner.is_free:
            return None
        return self.partitioner.budget - report.constants - (self._copied if V.graph.is_backward else 0)


class _TooMuch(Exception):
    """Ends a compilation whose kernels need more than the budget."""


class _Fusion(InductorChoices):
    """No fusion that would hold more than the budget, by moving a kernel to an earlier one."""

    def __init__(self, scheduling: _Scheduling) -> None:
        self._scheduling = scheduling
        self._scheduler: Scheduler | None = None

    def can_fuse(  # type: ignore[override]
        self, scheduler: Scheduler, node1: BaseSchedulerNode, node2: BaseSchedulerNode, shared_data_score: int
    ) -> bool:
        if not InductorChoices.can_fuse(scheduler, node1, node2, shared_data_score):
            return False
        if self._scheduling.room is None:
            return True
        if scheduler is not self._scheduler:
            self._scheduler = scheduler
            estimate = _Estimate(scheduler.nodes, self._scheduling.partitioner.views)
            self._live = np.array(estimate.live(scheduler.nodes))
            self._before = self._live - np.array([_made(node) for node in scheduler.nodes])
        first, last = sorted((node1, node2), key=lambda node: node.min_order)
        moved = _made(last) + _pulled(scheduler, first, last)
        between = int(self._live[first.min_order : last.max_order + 1].max())
        at_once = int(self._before[first.min_order]) + _made(first) + moved
        stays = (
            moved <= _inlined(first, last) or between + moved - _inlined(first, last) <= self._scheduling.room
        )
        return stays and at_once <= max(self._scheduling.room, between)


def _made(node: BaseSchedulerNode) -> int:
    return sum(buffer.mpi_buffer.size_alloc for buffer in node.get_outputs())


def _pulled(scheduler: Scheduler, first: BaseSchedulerNode, last: BaseSchedulerNode) -> int:
    """Bytes that the last kernel reads and that are made after the first one."""
    names = {dep.name for dep in last.unmet_dependencies}
    return sum(
        buffer.mpi_buffer.size_alloc
        for buffer in (scheduler.name_to_buf[name] for name in names if name in scheduler.name_to_buf)
        if _kernel_of(scheduler, buffer).min_order > first.max_order
    )


def _kernel_of(scheduler: Scheduler, buffer: SchedulerBuffer) -> BaseSchedulerNode:
    assert buffer.defining_op is not None
    return scheduler.name_to_fused_node[buffer.defining_op.get_name()]


def _inlined(first: BaseSchedulerNode, last: BaseSchedulerNode) -> int:
    """Bytes that the first kernel makes and that none but the two read."""
    names = {node.get_name() for kernel in (first, last) for node in kernel.get_nodes()}
    return sum(
        buffer.mpi_buffer.size_alloc
        for buffer in first.get_outputs()
        if buffer.users and all(user.get_name() in names for user in buffer.users)
    )


class _Estimate:
    """The memory of a scheduler's kernels in any order; the inputs that are ``views`` of others take none."""

    def __init__(self, nodes: list[BaseSchedulerNode], views: Iterable[str]) -> None:
        self._nodes = nodes
        self._buffers = nodes[0].scheduler.name_to_buf
        self._outputs = OrderedSet(V.graph.get_output_names())
        inputs = OrderedSet(V.graph.graph_inputs)
        by_name = nodes[0].scheduler.name_to_fused_node
        _, self._freed = memory.prepare_planning_info(nodes, self._buffers, by_name, inputs, self._outputs)
        for name in self._freed.keys() & set(views):
            self._freed[name].mpi_buffer.size_free = 0
        self._workspace = _workspaces(nodes)

    def orders(self) -> list[list[BaseSchedulerNode]]:
        """The order as it is, and those that Inductor tries."""
        return [
            self._nodes,
            memory.topological_sort_lpmf(self._nodes, self._freed, self._buffers, self._outputs),
            memory.topological_sort_bfs(self._nodes),
            memory.topological_sort_dfs(self._nodes),
        ]

    def live(self, order: list[BaseSchedulerNode]) -> list[int]:
        """Bytes while each kernel runs, without the inputs that outlive the graph."""
        buffers, *_ = memory.compute_memory_timeline(order, self._freed, self._outputs)
        change = [0] * (len(order) + 1)
        for buffer in buffers:
            change[buffer.start_step] += buffer.size_alloc
            if buffer.end_step != -1:  # else it is a result and stays
                change[buffer.end_step + 1] -= buffer.size_free
        live = itertools.accumulate(change)
        return [nbytes + self._workspace.get(node, 0) for node, nbytes in zip(order, live)]

    def peak(self, order: list[BaseSchedulerNode]) -> int:
        return max(self.live(order))


def _workspaces(nodes: Sequence[BaseSchedulerNode]) -> dict[BaseSchedulerNode, int]:
    """What library calls take for themselves, with their operands laid out as Inductor does."""
    calls: dict[BaseSchedulerNode, Node] = {}
    graph = Graph()
    for node in nodes:
        call = node.node if isinstance(node, ExternKernelSchedulerNode) else None
        origin = _origin(call) if isinstance(call, ir.InputsKernel) else None
        if isinstance(call, ir.InputsKernel) and origin is not None:
            calls[node] = _with_layouts(graph, origin, call.inputs)
    found = workspaces(calls.values())
    return {node: found[call] for node, call in calls.items()}


def _origin(kernel: ir.Operation) -> Node | None:
    """The operator that a library call carries out."""
    operator = getattr(kernel, "op_overload", None)
    origins = [kernel.get_origin_node(), *(node for node in kernel.get_origins() if node.target is operator)]
    known = (node for node in origins if node is not None and node.op == "call_function")
    return next((node for node in known if tensors_of(node.meta.get("val"))), None)


def _with_layouts(graph: Graph, origin: Node, operands: Sequence[Any]) -> Node:
    """The operator's node, with values laid out as its operands are."""
    laid_out = dict(zip(origin.all_input_nodes, operands))
    copies: dict[Node, Node] = {}
    for used in origin.all_input_nodes:
        copies[used] = graph.placeholder(used.name)
        copies[used].meta["val"] = _laid_out(used.meta.get("val"), laid_out.get(used))
    return graph.node_copy(origin, copies.__getitem__)


def _laid_out(value: Any, operand: Any) -> Any:
    stride = operand.maybe_get_stride() if isinstance(operand, ir.IRNode) else None
    if not isinstance(value, torch.Tensor) or stride is None or len(stride) != value.dim():
        return value
    return torch.empty_strided(
        value.shape, [int(step) for step in stride], dtype=value.dtype, device=value.device
    )


def _copied_inputs() -> int:
    """Bytes of the graph's results that stand for inputs: copies of them in another layout."""
    names = set(V.graph.graph_inputs)
    returned = V.graph.graph.output_node().args[0]
    pairs = zip(pytree.tree_leaves(returned), V.graph.graph_outputs)
    return sum(
        storages.storage_bytes(node.meta["val"], node.meta["val"].device)
        for node, result in pairs
        if isinstance(node, Node)
        and node.op == "placeholder"
        and isinstance(node.meta.get("val"), torch.Tensor)
        and result.get_name() not in names
    )
