"""A ``Report`` from a rewritten graph and the plan that was written into it."""

from __future__ import annotations

import functools
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, cast

import torch
from torch.fx import GraphModule, Node

from dtr_fx.inspect.views import Report
from dtr_fx.passes.hints import module_stack, plain_path
from dtr_fx.passes.liveness import kind_of
from dtr_fx.passes.roles import KEEP, SAVE_RNG, facts, is_over, origin_name, role
from dtr_fx.passes.storages import GraphProgram
from dtr_fx.passes.subgraphs import InSlices
from dtr_fx.passes.tensors import is_selection, is_update
from dtr_fx.report import Event, Point, SliceStats, StorageStats
from dtr_fx.runtime import Plan
from dtr_fx.runtime.steps import BANISH, COMPUTE, DROP, OFFLOAD, RECOMPUTE, RELOAD, WAIT
from dtr_fx.search import Need
from dtr_fx.torch_private import OpOverload

_TRANSFERS = (OFFLOAD, RELOAD, WAIT)
_KINDS = (COMPUTE, RECOMPUTE, DROP, BANISH, *_TRANSFERS)
_SAVES = (SAVE_RNG, KEEP)


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
    **more: Any,
) -> Report:
    """The report on a plan, of a graph or of an operator log; None leaves the program as it is.

    ``more`` are fields of the report that not every plan has.
    """
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
        asked=asked,
        refused=0 if plan is None else plan.refused,
        torch=str(torch.__version__),
        **{"seconds": {}, **more},
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


def events_of(gm: GraphModule, program: GraphProgram, after: Sequence[Point]) -> tuple[Event, ...]:
    """The steps of a rewritten graph, with the memory timeline that it has ``after`` rewriting."""
    found = _Events(gm, program, after)
    idle = ("placeholder", "get_attr", "output")
    nodes = (node for node in gm.graph.nodes if node.op not in idle)
    return tuple([found.of(node) for node in nodes if not (is_selection(node) or is_over(node))])


class _Events:
    """The events of a graph's nodes, asked for in the order in which they run."""

    def __init__(self, gm: GraphModule, program: GraphProgram, after: Sequence[Point]) -> None:
        self._program = program
        self._call_of = {(call.role, call.node.name): call for call in program.calls}
        self._nodes = {node.name: node for node in gm.graph.nodes}
        self._position_of = {value: position for position, value in enumerate(_storages(program))}
        trees = program.values_of.items()
        self._value_of = {node.name: tree for node, tree in trees if isinstance(tree, int)}
        self._names = names_of(program)
        self._live_at = {point.name: point.live for point in after}
        self._live = program.constant_bytes
        self._sources: dict[Node, tuple[str, list[int]]] = {}

    def of(self, node: Node) -> Event:
        known = facts(node)
        kind, origin = known["role"], known["origin"]
        maker = called = _maker(self._nodes.get(origin, node))
        seconds = known.get("seconds", 0.0)  # of a transfer, or of waiting for one
        values: Sequence[int] = ()
        cost = seconds if kind == WAIT else 0.0
        if kind == DROP or kind in _TRANSFERS:
            values = [self._value_of[origin]]
            origin = self._names[values[0]]
        else:
            is_save = kind in _SAVES
            call = self._call_of.get((kind if is_save else COMPUTE, origin))
            if call is not None:
                values, cost = call.outputs, call.cost
            if is_save:  # it is no node of the original graph
                origin, called = node.name, node
        nbytes = sum([self._program.values[value].nbytes for value in values])
        self._live = self._live_at.get(node.name, self._live) - (nbytes if kind == DROP else 0)
        read = [] if kind == RELOAD else [self._source(used) for used in node.all_input_nodes]
        touched = () if kind in (OFFLOAD, WAIT) else values
        return Event(
            kind=kind if kind in _KINDS else COMPUTE,
            name=node.name,
            origin=origin,
            phase=_phase(node),
            nbytes=nbytes,
            cost=cost,
            live=self._live,
            reason=known.get("reason", ""),
            score=known.get("score"),
            again=known.get("again"),
            away=known.get("away"),
            transfer=0.0 if kind == WAIT else seconds,
            source=source_line(node) or source_line(maker),
            storages=tuple([self._position_of[value] for value in touched if value in self._position_of]),
            uses=tuple(dict.fromkeys([at for _, positions in read for at in positions])),
            reads=tuple(dict.fromkeys([name for name, _ in read])),
            target=_operator_name(called),
            module=_module_path(called),
        )

    def _source(self, node: Node) -> tuple[str, list[int]]:
        """The operator or input that a node comes from, and the positions of the storages that it holds."""
        if node not in self._sources:
            key = role(node), origin_name(node)
            is_saved = key[0] in _SAVES and key in self._call_of
            program, whole = self._program, self._nodes.get(key[1], node)
            held = self._call_of[key].outputs if is_saved else program.values_in(whole)
            at = [self._position_of[program.storage(value)] for value in held]
            self._sources[node] = _maker(node).name, at
        return self._sources[node]


def _phase(node: Node) -> str:
    tag = "optimizer" if is_update(node) else str(node.meta.get("partitioner_tag", ""))
    return tag.removeprefix("is_").removeprefix("must_be_in_")


def _maker(node: Node) -> Node:
    """The operator or input whose result the node is, or is an element of."""
    while is_selection(node):
        node = cast(Node, node.args[0])
    return node


def _operator_name(node: Node) -> str:
    """The operator that a node calls: ``aten.mm.default``, ``Linear``, ``relu``."""
    if node.op == "call_module":
        return type(node.graph.owning_module.get_submodule(str(node.target))).__name__  # type: ignore[union-attr]
    if isinstance(node.target, OpOverload):
        return _overload_name(node.target)
    return str(getattr(node.target, "__name__", node.target))


_overload_name = functools.cache(str)


def _module_path(node: Node) -> str:
    """The path of the module that called the operator, ``blocks.0.mlp``; in backward, of its forward's."""
    path, _ = next(reversed(module_stack(node).values()), ("", None))
    return plain_path(str(path))


def _storages(program: GraphProgram) -> list[int]:
    """The values that stand for a storage, in the order of ``Report.storages``."""
    return [value for value in range(len(program.values)) if program.is_storage(value)]


def stats_of(program: GraphProgram, events: Sequence[Event]) -> tuple[StorageStats, ...]:
    """Drops and recomputes of a graph's storages."""
    constants = set(program.constants)
    results = {program.storage(value) for step in program.calls for value in step.pins} - constants
    names = names_of(program)
    makers = {value: call.node for call in program.calls if call.role == COMPUTE for value in call.outputs}

    def kind(number: int) -> str:
        own = program.values[number].kind
        if number in makers and number not in constants:
            return kind_of(makers[number], is_output=number in results)
        return "unused" if own in ("input", "parameter", "optimizer") and number not in constants else own

    described = ((names[at], kind(at), program.values[at].nbytes, at in results) for at in _storages(program))
    return storage_stats(described, events)


def storage_stats(
    described: Iterable[tuple[str, str, int, bool]], events: Sequence[Event]
) -> tuple[StorageStats, ...]:
    """Drops and recomputes of storages, given as events number them: name, kind, bytes, and if each stays."""
    drops = Counter(at for event in events if event.kind == DROP for at in event.storages)
    again = [(at, event.cost) for event in events if event.kind == RECOMPUTE for at in event.storages]
    recomputes = Counter(at for at, _ in again)
    costs: defaultdict[int, float] = defaultdict(float)
    for at, cost in again:
        costs[at] += cost
    return tuple(
        StorageStats(name, kind, nbytes, drops[at], recomputes[at], costs[at], stays)
        for at, (name, kind, nbytes, stays) in enumerate(described)
    )


def slices_of(gm: GraphModule) -> tuple[SliceStats, ...]:
    """The regions of a graph that run slice by slice."""
    nodes = (node for node in gm.graph.nodes if isinstance(node.target, InSlices))
    return tuple(
        SliceStats(
            node.name,
            len(node.target.operators),
            node.target.slices,
            node.target.is_exact,
            source_line(node),
        )
        for node in nodes
        if origin_name(node) == node.name
    )


def names_of(program: GraphProgram) -> list[str]:
    """The name of each value: that of the first node that holds it and nothing else; see ``_value_name``."""
    held = ((node, tree) for node, tree in reversed(program.values_of.items()) if isinstance(tree, int))
    holders = {tree: _value_name(node) for node, tree in held}
    return [holders.get(number, value.name) for number, value in enumerate(program.values)]


def _value_name(node: Node) -> str:
    """An operator's name for its result, ``native_dropout:1`` for the second of several."""
    if not is_selection(node):
        return node.name
    whole, index, *_ = node.args
    return f"{_value_name(cast(Node, whole))}:{index}"
