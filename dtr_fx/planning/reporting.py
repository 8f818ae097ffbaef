"""A ``Report`` from a rewritten graph and the plan that was written into it."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from torch.fx import GraphModule, Node

from dtr_fx.inspect.views import Report
from dtr_fx.passes.roles import KEEP, SAVE_RNG, facts, origin_name, role
from dtr_fx.passes.storages import GraphProgram, Value
from dtr_fx.passes.tensors import is_selection
from dtr_fx.report import Event, Point, StorageStats
from dtr_fx.runtime import Plan
from dtr_fx.runtime import steps as kinds
from dtr_fx.runtime.steps import COMPUTE
from dtr_fx.search import Need
from dtr_fx.torch_private import OpOverload


def report_graph(
    gm: GraphModule,
    graph: GraphProgram,
    need: Need,
    plan: Plan | None,
    budget: int,
    asked: str,
    before: Sequence[Point],
    after: Sequence[Point],
) -> Report:
    """Put together what the passes know of a graph and of what a plan has made of it."""
    events = _events(gm, graph, after)
    return make_report(
        need=need,
        plan=plan,
        budget=budget,
        asked=asked,
        base_cost=graph.base_cost,
        constants=graph.constant_bytes,
        device=str(graph.device),
        before=before,
        after=after,
        events=events,
        storages=_storage_stats(graph, events),
    )


def make_report(
    *,
    need: Need,
    plan: Plan | None,
    budget: int,
    asked: str,
    base_cost: float,
    constants: int,
    device: str,
    before: Sequence[Point],
    after: Sequence[Point],
    events: Sequence[Event],
    storages: tuple[StorageStats, ...],
) -> Report:
    """The report on a plan, of a graph or of an operator log; None leaves the program as it is."""
    return Report(
        budget=budget,
        baseline_peak=max(point.live for point in before),
        planned_peak=max(point.live for point in after),
        lower_bound=need.nbytes,
        constants=constants,
        base_cost=base_cost,
        total_cost=sum(event.cost for event in events),
        heuristic="none" if plan is None else plan.decided_by,
        device=device,
        events=tuple(events),
        before=tuple(before),
        after=tuple(after),
        storages=storages,
        seconds={},
        asked=asked,
        refused=0 if plan is None else plan.refused,
    )


def source_line(node: Node) -> str:
    """The user's line that a node comes from, as ``file.py:12 in forward: y = f(x)``, or nothing."""
    return _last_frame(node.meta.get("stack_trace") or "")


@functools.lru_cache(maxsize=4096)
def _last_frame(stack_trace: str) -> str:
    frames = re.findall(r'File "([^"]+)", line (\d+), in (\S+)\n\s*(.*)', stack_trace)
    if not frames:
        return ""
    path, line, function, code = frames[-1]
    return f"{path.rsplit('/', 1)[-1]}:{line} in {function}: {code.strip()}"


def _events(gm: GraphModule, program: GraphProgram, after: Sequence[Point]) -> tuple[Event, ...]:
    step_of = {(step.role, step.node.name): step for step in program.calls}
    nodes = {node.name: node for node in gm.graph.nodes}
    position_of = {value: position for position, value in enumerate(_storages(program))}
    sources = _Sources(program, nodes, position_of)
    value_of = {node.name: tree for node, tree in program.values_of.items() if isinstance(tree, int)}
    live_at = {point.name: point.live for point in after}
    live = program.constant_bytes
    events = []
    for node in gm.graph.nodes:
        if node.op in ("placeholder", "get_attr", "output") or is_selection(node):
            continue
        known = facts(node)
        kind, origin = known["role"], known["origin"]
        is_save, is_drop = kind in _SAVES, kind == kinds.DROP
        live = live_at.get(node.name, live)
        step = step_of.get((kind if is_save else COMPUTE, origin))
        values = [value_of[origin]] if is_drop else step.outputs if step is not None else ()
        nbytes = sum([program.values[value].nbytes for value in values])
        called = node if is_save else _maker(nodes.get(origin, node))
        if is_drop:
            live -= nbytes
        read = [sources.of(used) for used in node.all_input_nodes]
        events.append(
            Event(
                kind=kind if kind in _KINDS else kinds.COMPUTE,
                name=node.name,
                origin=node.name if is_save else origin,  # a save is no node of the original graph
                phase=_phase(node),
                nbytes=nbytes,
                cost=step.cost if step is not None and not is_drop else 0.0,
                live=live,
                reason=known.get("reason", ""),
                score=known.get("score"),
                again=known.get("again"),
                away=known.get("away"),
                source=source_line(node),
                storages=tuple([position_of[value] for value in values if value in position_of]),
                uses=tuple(dict.fromkeys([at for _, positions in read for at in positions])),
                reads=tuple(dict.fromkeys([name for name, _ in read])),
                target=operator_name(called),
                module=module_path(called),
            )
        )
    return tuple(events)


class _Sources:
    """The storages that nodes of a rewritten graph read, and the nodes that they read them from."""

    def __init__(
        self, program: GraphProgram, nodes: Mapping[str, Node], position_of: Mapping[int, int]
    ) -> None:
        self._program = program
        self._nodes = nodes
        self._position_of = position_of
        self._saved = {
            (step.role, step.node.name): step.outputs for step in program.calls if step.role in _SAVES
        }
        self._known: dict[Node, tuple[str, list[int]]] = {}

    def of(self, node: Node) -> tuple[str, list[int]]:
        """The operator or input that a node comes from, and the positions of the storages that it holds."""
        if node not in self._known:
            positions = [self._position_of[self._program.storage(value)] for value in self._values(node)]
            self._known[node] = _maker(node).name, positions
        return self._known[node]

    def _values(self, node: Node) -> Sequence[int]:
        key = role(node), origin_name(node)
        if key in self._saved:
            return self._saved[key]
        return self._program.values_in(self._nodes.get(key[1], node))


def _maker(node: Node) -> Node:
    """The operator or input whose result the node is, or is an element of."""
    while is_selection(node):
        node = cast(Node, node.args[0])
    return node


def operator_name(node: Node) -> str:
    """The operator that a node calls: ``aten.mm.default``, ``Linear``, ``relu``."""
    if node.op == "call_module":
        return type(node.graph.owning_module.get_submodule(str(node.target))).__name__  # type: ignore[union-attr]
    if isinstance(node.target, OpOverload):
        return _overload_name(node.target)
    return str(getattr(node.target, "__name__", node.target))


_overload_name = functools.cache(str)


def module_path(node: Node) -> str:
    """The path of the module that called the operator, ``blocks.0.mlp``; in backward, of its forward's."""
    stack = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack")
    if not stack:
        return ""
    path, _ = next(reversed(stack.values()))
    return _plain_path(str(path))


@functools.lru_cache(maxsize=4096)
def _plain_path(path: str) -> str:
    """Without what Dynamo puts around the names: ``L['self'].blocks[0]`` is ``blocks.0``."""
    return ".".join(name for name in re.findall(r"\w+", path) if name not in ("L", "self", "_modules"))


_KINDS = (kinds.COMPUTE, kinds.RECOMPUTE, kinds.DROP, kinds.BANISH)
_SAVES = (SAVE_RNG, KEEP)


def _phase(node: Node) -> str:
    tag = str(node.meta.get("partitioner_tag", ""))
    return tag.removeprefix("is_").removeprefix("must_be_in_")


def _storages(program: GraphProgram) -> list[int]:
    """The values that stand for a storage, in the order of ``Report.storages``."""
    return [value for value in range(len(program.values)) if program.is_storage(value)]


def _storage_stats(program: GraphProgram, events: Sequence[Event]) -> tuple[StorageStats, ...]:
    kinds_of = _storage_kinds(program)
    names = names_of(program)
    described = (
        (names[number], kinds_of[number], program.values[number].nbytes) for number in _storages(program)
    )
    return storage_stats(described, events)


def _storage_kinds(program: GraphProgram) -> list[str]:
    """The kind of each value, as a report has it."""
    constants = set(program.constants)
    results = {program.storage(value) for step in program.calls for value in step.pins} - constants

    def kind(number: int, value: Value) -> str:
        if number in results:
            return "output"
        return "unused" if value.kind in ("input", "parameter") and number not in constants else value.kind

    return [kind(number, value) for number, value in enumerate(program.values)]


def storage_stats(
    described: Iterable[tuple[str, str, int]], events: Sequence[Event]
) -> tuple[StorageStats, ...]:
    """Drops and recomputes of storages, given by name, kind and bytes as events number them."""
    again = [event for event in events if event.kind == kinds.RECOMPUTE]
    drops = Counter(at for event in events if event.kind == kinds.DROP for at in event.storages)
    recomputes = Counter(at for event in again for at in event.storages)
    costs: dict[int, float] = {}
    for event in again:
        for at in event.storages:
            costs[at] = costs.get(at, 0.0) + event.cost
    return tuple(
        StorageStats(name, kind, nbytes, drops[at], recomputes[at], costs.get(at, 0.0))
        for at, (name, kind, nbytes) in enumerate(described)
    )


def names_of(program: GraphProgram) -> list[str]:
    """The name of each value: that of the first node that holds it and nothing else."""
    holders = {tree: node.name for node, tree in reversed(program.values_of.items()) if isinstance(tree, int)}
    return [holders.get(number, value.name) for number, value in enumerate(program.values)]
