"""A ``Report`` from a rewritten graph and the rewriter that rewrote it."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from typing import Any

from torch.fx import GraphModule, Node

from dtr_fx.passes import storages
from dtr_fx.passes.rewriter import Rewriter
from dtr_fx.passes.storages import Program
from dtr_fx.report import Event, Point, Report, StorageStats
from dtr_fx.runtime import events as kinds


def make_report(
    gm: GraphModule,
    program: Program,
    rewriter: Rewriter | None,
    *,
    budget: int,
    heuristic: str,
    lower_bound: int,
    before: Sequence[Point],
    after: Sequence[Point],
    seconds: dict[str, float],
) -> Report:
    """Put together what the passes know; ``rewriter`` is None where the graph fitted as it was."""
    events = _events(gm, program, after)
    return Report(
        budget=budget,
        baseline_peak=max(point.live for point in before),
        planned_peak=max(point.live for point in after),
        lower_bound=lower_bound,
        constants=program.constant_bytes,
        base_cost=program.base_cost,
        total_cost=sum(event.cost for event in events),
        heuristic=heuristic,
        device=str(program.device),
        events=events,
        before=tuple(before),
        after=tuple(after),
        storages=_storage_stats(program, rewriter),
        seconds=seconds,
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


def _events(gm: GraphModule, program: Program, after: Sequence[Point]) -> tuple[Event, ...]:
    step_of = {step.node.name: step for step in program.steps}
    bytes_of = {
        name: sum(program.values[value].nbytes for value in step.outputs) for name, step in step_of.items()
    }
    value_of = {node.name: tree for node, tree in program.values_of.items() if isinstance(tree, int)}
    live_at = {point.name: point.live for point in after}
    live = program.constant_bytes
    events = []
    for node in gm.graph.nodes:
        if node.op in ("placeholder", "get_attr", "output") or storages.is_selection(node):
            continue
        facts: dict[str, Any] = node.meta.get("dtr") or {"role": kinds.COMPUTE, "origin": node.name}
        is_drop = facts["role"] == kinds.DROP
        live = live_at.get(node.name, live)
        step = step_of.get(facts["origin"])
        cost = step.cost if step is not None and not is_drop else 0.0
        if facts["role"] in _SAVES:  # for a later recompute: no node of the original graph
            origin, nbytes = node.name, _bytes_made(node, program)
            cost = 0.0 if facts["role"] == storages.SAVE_RNG else cost
        else:
            origin = facts["origin"]
            nbytes = program.values[value_of[origin]].nbytes if is_drop else bytes_of.get(origin, 0)
        if is_drop:
            live -= nbytes
        events.append(
            Event(
                kind=facts["role"] if facts["role"] in _KINDS else kinds.COMPUTE,
                name=node.name,
                origin=origin,
                phase=str(node.meta.get("partitioner_tag", "")).removeprefix("is_"),
                nbytes=nbytes,
                cost=cost,
                live=live,
                reason=facts.get("reason", ""),
                score=facts.get("score"),
                source=source_line(node),
            )
        )
    return tuple(events)


_KINDS = (kinds.COMPUTE, kinds.RECOMPUTE, kinds.DROP, kinds.BANISH)
_SAVES = (storages.SAVE_RNG, storages.KEEP)


def _bytes_made(node: Node, program: Program) -> int:
    tensors = storages.tensors_of(node.meta["val"])
    return sum(storages.storage_bytes(tensor, program.device) for tensor in tensors)


def _storage_stats(program: Program, rewriter: Rewriter | None) -> tuple[StorageStats, ...]:
    drops: dict[int, int] = {}
    recomputes: dict[int, int] = {}
    costs: dict[int, float] = {}
    for event in rewriter.run.runtime.events if rewriter else ():
        if event.kind == kinds.DROP:
            assert rewriter is not None
            value = rewriter.value_of_storage[event.storage]
            drops[value] = drops.get(value, 0) + 1
        elif event.kind == kinds.RECOMPUTE:
            step = program.steps[event.op]
            for value in step.outputs:
                recomputes[value] = recomputes.get(value, 0) + 1
                costs[value] = costs.get(value, 0.0) + step.cost
    results = {value for step in program.steps for value in step.pins}
    return tuple(
        StorageStats(
            value.name,
            "output" if number in results else value.kind,
            value.nbytes,
            drops.get(number, 0),
            recomputes.get(number, 0),
            costs.get(number, 0.0),
        )
        for number, value in enumerate(program.values)
        if value.alias_of == number
    )
