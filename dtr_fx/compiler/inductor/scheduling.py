"""Inductor's kernels: which of them fuse, in which order they run, and the memory that they need."""

from __future__ import annotations

import contextlib
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.fx import Graph, Node

from dtr_fx.compiler.inductor.partition import Partitioner, Setting, TooMuch
from dtr_fx.costs.workspaces import workspaces
from dtr_fx.passes.tensors import hint, tensors_of
from dtr_fx.torch_private import (
    BaseSchedulerNode,
    CppScheduling,
    ExternKernelSchedulerNode,
    InductorChoices,
    InputsKernel,
    IRNode,
    OrderedSet,
    Scheduler,
    SchedulerBuffer,
    V,
    compute_memory_timeline,
    prepare_planning_info,
    size_hint,
    topological_sort_bfs,
    topological_sort_dfs,
    topological_sort_lpmf,
    torch_has,
)

if TYPE_CHECKING or torch_has("CustomSchedulerPass"):
    # What is not one of these is not cached.
    from dtr_fx.torch_private import CustomSchedulerPass
else:
    CustomSchedulerPass = object


@contextlib.contextmanager
def kernel_by_kernel() -> Iterator[None]:
    """On a CPU, one function for each kernel: as a rule all kernels between two library calls are in one.

    What such a function makes is allocated before its first kernel runs and freed after its last.
    """
    usual = CppScheduling.MAX_FUSED_KERNEL_ARGS_NUM
    CppScheduling.MAX_FUSED_KERNEL_ARGS_NUM = 0
    try:
        yield
    finally:
        CppScheduling.MAX_FUSED_KERNEL_ARGS_NUM = usual


class Scheduling(Setting, CustomSchedulerPass):
    """Orders the kernels of a graph; ends the compilation if they exceed the partitioner's budget."""

    def __init__(self, partitioner: Partitioner) -> None:
        self._partitioner = partitioner

    def __call__(self, nodes: list[BaseSchedulerNode]) -> list[BaseSchedulerNode]:
        if not nodes:
            return nodes
        estimate = _Estimate(nodes, self._partitioner.storage_of)
        order = min(estimate.orders(), key=estimate.peak)
        room = self._partitioner.room
        if room is not None:
            extra_workspace: Counter[str] = Counter()
            for node, live in zip(order, estimate.live(order)):
                if live > room:
                    extra_workspace |= Counter(self._partitioner.extra_workspace(_operators(node), live))
            if extra_workspace:
                raise TooMuch(estimate.peak(order) - room, extra_workspace)
        return order

    def uuid(self) -> Any | None:
        """Graphs that needed too much were not cached: what is cached fits into this room."""
        key = self._partitioner.uuid()
        return None if key is None else (key, self._partitioner.room)


class Fusion(InductorChoices):
    """No fusion that would hold more than the budget, by moving a kernel to an earlier one."""

    def __init__(self, partitioner: Partitioner) -> None:
        self._partitioner = partitioner
        self._scheduler: Scheduler | None = None

    def can_fuse(  # type: ignore[override]
        self, scheduler: Scheduler, node1: BaseSchedulerNode, node2: BaseSchedulerNode, shared_data_score: int
    ) -> bool:
        room = self._partitioner.room
        if not InductorChoices.can_fuse(scheduler, node1, node2, shared_data_score):
            return False
        if room is None:
            return True
        if scheduler is not self._scheduler:
            self._look_at(scheduler)
        first, last = sorted((node1, node2), key=lambda node: node.min_order)
        advanced = _made(last) + _pulled(scheduler, first, last)
        between = int(self._live[first.min_order : last.max_order + 1].max())
        # While the kernels between the two run, and while the fused kernel itself does.
        meanwhile = between + max(0, advanced - _inlined(first, last))
        at_once = int(self._before[first.min_order]) + _made(first) + advanced
        return meanwhile <= max(room, between) and at_once <= max(room, between)

    def _look_at(self, scheduler: Scheduler) -> None:
        """Bytes that are live while each kernel runs, and before it, by its number in the order."""
        self._scheduler = scheduler
        nodes = scheduler.nodes
        live = _Estimate(nodes, self._partitioner.storage_of).live(nodes)
        self._live = np.zeros(max(node.max_order for node in nodes) + 1, np.int64)
        self._before = self._live.copy()
        for node, nbytes in zip(nodes, live):
            numbers = slice(node.min_order, node.max_order + 1)
            self._live[numbers], self._before[numbers] = nbytes, nbytes - _made(node)


def _operators(kernel: BaseSchedulerNode) -> Iterator[str]:
    """The operators that a kernel carries out; what is recomputed by the name of its step."""
    for node in kernel.get_nodes():
        call = _library_call(node)
        origins = node.node.get_origins() if call is None and node.node is not None else [call]
        for origin in filter(None, origins):
            yield origin.meta.get("dtr", {}).get("origin", origin.name)


def _made(node: BaseSchedulerNode) -> int:
    return sum(buffer.mpi_buffer.size_alloc for buffer in node.get_outputs())


def _pulled(scheduler: Scheduler, first: BaseSchedulerNode, last: BaseSchedulerNode) -> int:
    """Bytes that the last kernel reads and that are made after the first one."""
    names = {dep.name for dep in last.unmet_dependencies} & scheduler.name_to_buf.keys()
    return sum(
        buffer.mpi_buffer.size_alloc
        for buffer in map(scheduler.name_to_buf.__getitem__, names)
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
    """The memory of a scheduler's kernels in any order.

    ``storage_of`` has the storages of inputs, of which several may be in one; None outlives the graph.
    """

    def __init__(self, nodes: list[BaseSchedulerNode], storage_of: Mapping[str, int | None]) -> None:
        self._nodes = nodes
        self._buffers = nodes[0].scheduler.name_to_buf
        self._outputs = OrderedSet(V.graph.get_output_names())
        inputs = OrderedSet(V.graph.graph_inputs)
        by_name = nodes[0].scheduler.name_to_fused_node
        _, self._freed = prepare_planning_info(nodes, self._buffers, by_name, inputs, self._outputs)
        self._storage_of = {name: storage_of.get(name, name) for name in self._freed}
        self._workspace = _workspaces(nodes)
        # Each input takes its part of a storage; by Inductor it takes what the last kernel reads of it.
        names_in = defaultdict(list)
        for name, storage in self._storage_of.items():
            names_in[storage].append(name)
        for storage, names in names_in.items():
            nbytes = 0 if storage is None else max(map(_bytes_of_input, names))
            for name in names:
                self._freed[name].mpi_buffer.size_free = nbytes // len(names)

    def orders(self) -> list[list[BaseSchedulerNode]]:
        return [
            self._nodes,
            topological_sort_lpmf(self._nodes, self._freed, self._buffers, self._outputs),
            topological_sort_bfs(self._nodes),
            topological_sort_dfs(self._nodes),
        ]

    def live(self, order: list[BaseSchedulerNode]) -> list[int]:
        """Bytes while each kernel runs, without the inputs that outlive the graph."""
        buffers, *_ = compute_memory_timeline(order, self._freed, self._outputs)
        freed: dict[Any, int] = defaultdict(int)
        storages_of = [self._storage_of.get(name := buffer.buffer.get_name(), name) for buffer in buffers]
        for storage, buffer in zip(storages_of, buffers):
            end = len(order) if buffer.end_step == -1 else buffer.end_step + 1  # results stay
            freed[storage] = max(freed[storage], end)
        change = [0] * (len(order) + 1)
        for storage, buffer in zip(storages_of, buffers):
            change[buffer.start_step] += buffer.size_alloc
            change[freed[storage]] -= buffer.size_free
        live = itertools.accumulate(change)
        return [nbytes + self._workspace.get(node, 0) for node, nbytes in zip(order, live)]

    def peak(self, order: list[BaseSchedulerNode]) -> int:
        return max(self.live(order))


def _bytes_of_input(name: str) -> int:
    layout = V.graph.graph_inputs[name].get_layout()
    return _hint(layout.storage_size()) * int(layout.dtype.itemsize)


def _workspaces(nodes: Sequence[BaseSchedulerNode]) -> dict[BaseSchedulerNode, int]:
    """Bytes that library calls take for themselves, with their operands laid out as Inductor does."""
    calls: dict[BaseSchedulerNode, Node] = {}
    graph = Graph()
    for node in nodes:
        origin = _library_call(node)
        if origin is not None and isinstance(node.node, InputsKernel):
            calls[node] = _with_layouts(graph, origin, node.node.inputs)
    found = workspaces(calls.values())
    return {node: found[call] for node, call in calls.items()}


def _library_call(kernel: BaseSchedulerNode) -> Node | None:
    """The operator that a library is called for; None where Inductor generates code."""
    if not (isinstance(kernel, ExternKernelSchedulerNode) and isinstance(kernel.node, InputsKernel)):
        return None
    call = kernel.node
    operator = getattr(call, "op_overload", None)
    origins = [call.get_origin_node(), *(node for node in call.get_origins() if node.target is operator)]
    known = (node for node in origins if node is not None and node.op == "call_function")
    return next((node for node in known if tensors_of(node.meta.get("val"))), None)


def _with_layouts(graph: Graph, origin: Node, operands: Sequence[Any]) -> Node:
    """The operator's node, with values laid out as its operands are."""
    laid_out = dict(zip(origin.all_input_nodes, operands))
    copies: dict[Node, Node] = {}
    for used in origin.all_input_nodes:
        copies[used] = graph.placeholder(used.name)
        copies[used].meta["val"] = _laid_out(used.meta.get("val"), laid_out.get(used))
    copy = graph.node_copy(origin, copies.__getitem__)
    copy.target = origin.meta.get("dtr_sliced", origin.target)
    return copy


def _laid_out(value: Any, operand: Any) -> Any:
    stride = operand.maybe_get_stride() if isinstance(operand, IRNode) else None
    if not isinstance(value, torch.Tensor) or stride is None or len(stride) != value.dim():
        return value
    sizes = [hint(size) for size in value.shape]
    return torch.empty_strided(sizes, list(map(_hint, stride)), dtype=value.dtype, device=value.device)


def _hint(size: Any) -> int:
    """A size or a stride in the trace at hand; Inductor writes those that vary as expressions."""
    return int(size_hint(V.graph.sizevars, size))
