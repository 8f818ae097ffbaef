"""The joint graph, split for Inductor: as PyTorch does, or by a plan over kernels."""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import torch
from torch.fx import GraphModule

import dtr_fx.passes
from dtr_fx.compiler.dynamo import module_names
from dtr_fx.compiler.publish import publish
from dtr_fx.compiler.reference import peak_of, pytorch_pair
from dtr_fx.errors import OptionError
from dtr_fx.inspect.views import Report
from dtr_fx.passes import kernels
from dtr_fx.passes.contract import KERNELS, VALUES, Pipeline
from dtr_fx.passes.drops import LowerDrops
from dtr_fx.passes.effects import last_writes
from dtr_fx.passes.join import join
from dtr_fx.passes.kernels import ContractKernels, ExpandKernels
from dtr_fx.passes.lower_slices import LowerSlices
from dtr_fx.passes.marking import mark_hints
from dtr_fx.passes.marks import is_marked
from dtr_fx.passes.modes import fake_mode_of
from dtr_fx.passes.split import Pair, prepare, split
from dtr_fx.passes.tensors import graph_device, is_tangent, is_view, storage_bytes, storage_keys, tensors_of
from dtr_fx.planning.options import Options, Others, resolve_budget
from dtr_fx.planning.planning import copy_of
from dtr_fx.planning.rewrite import rewrite
from dtr_fx.torch_private import CustomPartitionerFn, get_hash_for_files

log = logging.getLogger(__name__)

# Stands for every step of a plan.
_ANY = ""


class Setting:
    """An object among Inductor's settings, which are copied and make the key of a cached graph."""

    def uuid(self) -> Any | None:
        raise NotImplementedError

    def __getstate__(self) -> Any:
        """Where the key cannot be told, never the same again."""
        return self.uuid() or uuid4().hex

    def __deepcopy__(self, memo: Any) -> Any:
        return self


class Partitioner(Setting, CustomPartitionerFn):
    """Splits the joint graph for Inductor: as PyTorch does if that fits the budget, else by a plan.

    For those who stay with ``backend="inductor"``, whose options then have
    ``{"custom_partitioner_fn": dtr_fx.Partitioner(budget="60%")}``; it takes the options of the backend, see
    ``Options``.  The plan is within the budget; what layouts and fusion add to its peak is held against it by
    ``backend="dtr"`` only.  ``report`` is that of the last graph that was planned; what AOTAutograd has in
    its cache is not planned.
    """

    def __init__(self, budget: float | int | str = 1.0, **options: Any) -> None:
        if "executor" in options:
            raise OptionError("a Partitioner is for Inductor: leave executor out")
        self._start(Options.from_mapping({"budget": budget, **options, "executor": "inductor"}))

    def _start(self, options: Options, extra_workspace: Mapping[str, int] | None = None) -> None:
        self._options = options
        self._extra_workspace = dict(extra_workspace or {})
        self._step_of: dict[str, str] = {}
        self.budget = 0
        self.report: Report | None = None
        self.storage_of: dict[str, int | None] = {}

    def __call__(self, gm: GraphModule, joint_inputs: Sequence[object], **facts: Any) -> Pair:
        if facts.get("compiler") != "inductor" and self._options.limits:
            log.warning(
                "the budget (%s) is not in force: Partitioner plans for Inductor, and other compilers run "
                "these graphs; take dtr_fx.partition_fn, and dtr_fx.boxed_compiler beside it",
                self._options.asked,
            )
        mark_hints(gm, self._options.policy, module_names())
        pair = self._as_it_is(gm, joint_inputs, facts) or self._planned(gm, joint_inputs, facts)
        if self.report is not None:
            publish(self.report, self._options)
        return pair

    def emit_report(self) -> None:
        """Hand the report on to whom the options name; a graph without a backward pass has none."""
        if self._options.on_report is not None and self.report is not None:
            self._options.on_report(self.report)

    @property
    def is_free(self) -> bool:
        """At 100% of its peak a graph may be as it would be without a budget."""
        return not self._options.limits

    def extra_workspace(self, operators: Iterable[str], live: int) -> dict[str, int]:
        """Bytes to be planned for, by step, where so many are live while a kernel runs.

        At first they are those above the budget; a step that may have taken it from room to spare gets all
        that it needs.  If the kernel's operators are unknown, it is any step.
        """
        assert self.report is not None
        assert self.room is not None
        steps = {self._step_of[name] for name in operators if name in self._step_of}
        again = steps & self._extra_workspace.keys()
        planned = max(
            (event.live - self.report.constants for event in self.report.events if event.origin in again),
            default=self.room,
        )
        return dict.fromkeys(steps or {_ANY}, live - min(planned, self.room))

    @property
    def room(self) -> int | None:
        """Bytes of the budget for what the graphs make; None if there is no budget."""
        if self.report is None or self.is_free or self._options.max_overhead is not None:
            return None
        return self.budget - self.report.constants

    def _as_it_is(self, gm: GraphModule, inputs: Sequence[object], facts: Mapping[str, Any]) -> Pair | None:
        """The graphs of PyTorch's own partitioner, if they fit."""
        if self._options.max_overhead is not None or self._options.budget.saved is not None:
            return None
        pair = pytorch_pair(gm, inputs, facts)
        with torch.no_grad(), fake_mode_of(gm) or contextlib.nullcontext():
            if _reads_what_it_changes(pair[0]):
                return None
            step, whole = join(*pair), copy_of(gm)
            ContractKernels().call(step)
            ContractKernels().call(whole)
            self.budget = self._budget_of(whole, peak_of(step) if is_marked(gm) else None)
            if not self.is_free and peak_of(step) > self.budget:
                return None
            self.report = replace(rewrite(step, replace(self._options, budget=1.0)), budget=self.budget)
            self.storage_of = _storages_saved(pair[0])
        return pair

    def _planned(self, gm: GraphModule, inputs: Sequence[object], facts: Mapping[str, Any]) -> Pair:
        with torch.no_grad(), fake_mode_of(gm) or contextlib.nullcontext():
            marked = None
            if is_marked(gm):
                step = join(*pytorch_pair(gm, inputs, facts))
                ContractKernels().call(step)
                marked = peak_of(step)
            prepare(gm, facts.get("static_lifetime_input_indices") or ())
            ContractKernels().call(gm)
            options = self._options
            if options.max_overhead is None:
                nbytes = self._budget_of(gm, marked)
                in_bytes = replace(options.budget, kind="bytes", value=nbytes, others=Others())
                options = replace(options, budget=in_bytes)
            gm.meta["dtr_extra_workspace"] = self._extra_workspace
            self.report = rewrite(gm, options)
            self.budget = self.report.budget
            for node in gm.graph.nodes:
                # A view runs nothing, whatever kernels name it among those that they come from.
                if not is_view(node) and "dtr" not in node.meta:
                    self._step_of.update((inner.name, node.name) for inner in kernels.operators(node))
            Pipeline(LowerDrops(), ExpandKernels(), LowerSlices(), given=(VALUES, KERNELS))(gm)
            gm.recompile()
            pair = split(gm, inputs, **{name: facts[name] for name in facts if name != "compiler"})
            self.storage_of = _storages_saved(pair[0])
        return pair

    def _budget_of(self, gm: GraphModule, marked: int | None) -> int:
        """The budget in bytes, of a graph of kernels; a fraction is of its peak as it is.

        Where the user's checkpoints have a peak, ``marked``, it is of that, and the budget is not above it.
        """
        budget = self._options.budget
        device = graph_device(gm)
        inputs = gm.graph.find_nodes(op="placeholder")
        counted = (node for node in inputs if node.users and not is_tangent(node))
        tensors = [tensor for node in counted for tensor in tensors_of(node.meta.get("val"))]
        held = sum(storage_bytes(tensor, device) for tensor in tensors)
        peak = peak_of(gm) if budget.kind in ("fraction", "none") else 0
        if marked is None:
            return resolve_budget(budget, peak, device, already_held=held)
        return min(marked, resolve_budget(budget, min(peak, marked), device, already_held=held))

    def uuid(self) -> Any | None:
        """The key of a compiled graph; None, so that nothing is cached, where that cannot be told."""
        options = replace(self._options, on_report=None)
        if any(map(callable, vars(options).values())) or options.budget.kind == "auto":
            return None
        return get_hash_for_files(
            _sources(), extra=f"{type(self).__name__} {options} {sorted(self._extra_workspace.items())}"
        )


class AsItIs(Partitioner):
    """PyTorch's own partition or, where that does not fit, none."""

    def __init__(self, options: Options) -> None:
        self._start(options)

    def __call__(self, gm: GraphModule, joint_inputs: Sequence[object], **facts: Any) -> Pair:
        mark_hints(gm, self._options.policy, module_names())
        pair = self._as_it_is(gm, joint_inputs, facts)
        if pair is None:
            raise TooMuch(0, {})
        return pair


class Planned(Partitioner):
    """A plan in which some steps need extra workspace, in bytes."""

    def __init__(self, options: Options, extra_workspace: Mapping[str, int]) -> None:
        self._start(options, extra_workspace)

    def __call__(self, gm: GraphModule, joint_inputs: Sequence[object], **facts: Any) -> Pair:
        mark_hints(gm, self._options.policy, module_names())
        return self._planned(gm, joint_inputs, facts)


@functools.cache
def _sources() -> tuple[str, ...]:
    folders = [path for package in (dtr_fx, dtr_fx.passes) for path in map(Path, package.__path__)]
    return tuple(sorted(str(path) for folder in folders for path in folder.rglob("*.py")))


def _reads_what_it_changes(forward: GraphModule) -> bool:
    """True if the backward graph is given an input that the forward graph changes.

    It would compute from the new value what the forward graph computed from the old one (pytorch#197039).
    """
    written = last_writes(forward.graph)
    returned = forward.graph.output_node().all_input_nodes
    return any(key in written for node in returned if node.op == "placeholder" for key in storage_keys(node))


def _storages_saved(forward: GraphModule) -> dict[str, int | None]:
    """The storage of each value that the forward graph returns, by name; None if it is one of its inputs'."""
    inputs = forward.graph.find_nodes(op="placeholder")
    of_inputs = {key for node in inputs for key in storage_keys(node)}
    returned = forward.graph.output_node().all_input_nodes
    return {node.name: None if key in of_inputs else key for node in returned for key in storage_keys(node)}


@dataclass(eq=False)
class TooMuch(Exception):
    """Ends a compilation whose kernels need more than the budget.

    ``excess`` is by how much; ``extra_workspace`` is how much more than planned, by step of the plan.
    """

    excess: int
    extra_workspace: Mapping[str, int]
