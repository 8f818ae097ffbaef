"""Which operator makes, views, reads and changes which storage: an FX graph as a program for the runtime.

Requires: ``meta["val"]`` on every node (see ``propagate``), nodes in execution order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from dtr_fx.passes import rng
from dtr_fx.passes.accumulate import is_sum_in_place
from dtr_fx.passes.effects import last_writes, may_run_twice, mutated_tensors
from dtr_fx.passes.marks import mark_of
from dtr_fx.passes.old_values import read_before_updates
from dtr_fx.passes.reach import Reached, given_back, reached_by_caller, written_after_forward
from dtr_fx.passes.roles import ARRIVE, KEEP, SAVE_RNG
from dtr_fx.passes.tensors import (
    Held,
    constant_kind,
    counts,
    held_by,
    held_by_tensor,
    is_backward,
    is_movable,
    is_selection,
    is_tangent,
    is_update,
    module_state,
    parameters_first,
    storage_key,
    tensors_of,
)
from dtr_fx.runtime.program import Call, Constant, Instruction, Keep, Output, Program, Release
from dtr_fx.runtime.steps import COMPUTE
from dtr_fx.torch_private import pytree

# Bytes of an operator's results below which they are not moved.
_SMALLEST_MOVED = 4096


class Value(NamedTuple):
    """One leaf tensor of a node; ``alias_of`` is the first value in the same storage, maybe itself."""

    name: str
    kind: str
    nbytes: int
    alias_of: int


@dataclass
class NodeCall:
    """One operator: it reads and makes values, and afterwards releases those that are not read again.

    ``selections`` are the ``getitem`` nodes that take its result apart.  ``kept`` maps an input that the
    graph changes later to the value of its copy, which a recompute reads.  ``workspace`` are the bytes that
    any run takes for itself, ``replay_workspace`` those that a recompute adds, if it is ``recomputable``.
    ``mark`` is what the user said of its results in a checkpoint's region.  They are ``movable`` if they can
    be moved out and back.
    """

    node: Node
    role: str = COMPUTE
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    cost: float = 0.0
    workspace: int = 0
    replay_workspace: int = 0
    recomputable: bool = True
    movable: bool = False
    mark: CheckpointPolicy | None = None
    selections: list[Node] = field(default_factory=list)
    kept: dict[Node, int] = field(default_factory=dict)
    pins: list[int] = field(default_factory=list)
    releases: list[int] = field(default_factory=list)


@dataclass
class GraphProgram:
    """A graph as the runtime runs it: its values are leaf tensors of nodes, ``constants`` are resident.

    ``reached`` are the tensors, by storage, that no recompute reads unless the plan trusts the caller,
    ``given_back`` the values of results that are gone when the backward pass has started.
    """

    device: torch.device
    values: list[Value] = field(default_factory=list)
    constants: list[int] = field(default_factory=list)
    calls: list[NodeCall] = field(default_factory=list)
    values_of: dict[Node, Any] = field(default_factory=dict)
    reached: dict[int, Reached] = field(default_factory=dict)
    given_back: set[int] = field(default_factory=set)

    @property
    def base_cost(self) -> float:
        """Seconds of one run without recomputation."""
        return sum(step.cost for step in self.calls if step.role == COMPUTE)

    @property
    def program(self) -> Program:
        """The program for runtime and search: a call for each of these calls, a tensor for each value."""
        found: list[Instruction] = [Constant(value, self.values[value].nbytes) for value in self.constants]
        for number, call in enumerate(self.calls):
            found.append(
                Call(
                    name=call.node.name,
                    inputs=call.inputs,
                    outputs=tuple(map(self._output, call.outputs)),
                    cost=call.cost,
                    workspace=call.workspace,
                    recomputable=call.recomputable,
                    may_defer=self._may_defer(number),
                    replay_workspace=call.replay_workspace,
                    serves_recompute=call.role in (SAVE_RNG, KEEP),
                    movable=call.movable,
                )
            )
            found += [*map(Keep, call.pins), *map(Release, call.releases)]
        name = type(self.calls[0].node.graph.owning_module).__name__
        return Program(name, tuple(found), self.boundary)

    def _output(self, value: int) -> Output:
        described = self.values[value]
        return Output(value, described.nbytes, None if self.is_storage(value) else described.alias_of)

    def _may_defer(self, number: int) -> bool:
        """True if a call does the same later; the first of the backward pass marks its start and stays."""
        call = self.calls[number]
        is_inside = self.boundary is not None and number > self.boundary
        return is_inside and call.recomputable and not call.kept and not rng.is_random(call.node)

    @cached_property
    def boundary(self) -> int | None:
        """The number of the first step of the backward pass; None if there are several, of micro-batches."""
        passes = [
            (i, is_backward(call.node)) for i, call in enumerate(self.calls) if not is_update(call.node)
        ]
        starts = [i for (_, before), (i, now) in pairwise([(-1, False), *passes]) if now and not before]
        return starts[0] if len(starts) == 1 else None

    @property
    def saved_bytes(self) -> int:
        """Bytes that the forward pass makes for the backward pass, its outputs apart."""
        forward, backward = self.calls[: self.boundary], self.calls[self.boundary :]
        made = {self.storage(value) for step in forward for value in step.outputs}
        read = {self.storage(value) for step in backward if step.role != ARRIVE for value in step.inputs}
        kept = {self.storage(value) for step in forward for value in step.pins} | {*self.constants}
        return sum(self.values[storage].nbytes for storage in (made & read) - kept)

    @property
    def held_between_passes(self) -> int:
        """Bytes of what any plan holds between the passes: inputs, outputs, and the first tangent."""
        steps = self.calls[: self.boundary]
        pins = {self.storage(value) for step in steps for value in step.pins}
        arriving = self.calls[self.boundary].outputs if self.boundary is not None else ()
        return self.constant_bytes + sum(self.values[value].nbytes for value in {*pins, *arriving})

    @property
    def constant_bytes(self) -> int:
        return sum(self.values[value].nbytes for value in self.constants)

    def storage(self, value: int) -> int:
        """The value that stands for the value's storage: the first that was made in it."""
        return self.values[value].alias_of

    def values_in(self, node: Node) -> list[int]:
        """The values of a node's leaf tensors, in order."""
        tree = self.values_of.get(node, ())
        if isinstance(tree, int):
            return [tree]
        return [leaf for leaf in pytree.tree_leaves(tree) if leaf is not None]

    def is_storage(self, value: int) -> bool:
        """True if the value stands for a storage; else it is a view of another."""
        return self.values[value].alias_of == value


def analyze(
    gm: GraphModule,
    device: torch.device,
    cost: Callable[[Node], float],
    workspace: Mapping[Node, int],
    *,
    replays_randomness: bool = True,
    trusts_caller: bool = False,
    moves: bool = False,
) -> GraphProgram:
    """The graph as a program, with the bytes that are on ``device``; values share storages as tensors do.

    ``cost`` gives seconds, ``workspace`` bytes that only the operator sees.  Random operators run once where
    nothing ``replays_randomness``.  What the caller may write before the backward pass is not read by a
    recompute, unless the plan ``trusts_caller`` not to.  Results may be moved out if a plan ``moves`` any.
    """
    writes, between = last_writes(gm.graph), written_after_forward(gm)
    reached = reached_by_caller(gm, "input", "output")
    if not trusts_caller:
        between.update(reached)
    nodes = enumerate(gm.graph.nodes)
    start = next((i for i, node in nodes if node.op.startswith("call") and is_backward(node)), -1)
    last_write = {**writes, **{key: max(start, writes.get(key, start)) for key in between}}
    program = GraphProgram(device, reached=reached)
    analysis = _Analysis(
        program,
        cost,
        workspace,
        replays_randomness,
        writes,
        last_write,
        _totals(gm, writes.keys() - between) if moves else set(),
        given_back(gm),
        moves,
        *read_before_updates(gm),
    )
    for name, tensor in module_state(gm):
        analysis.constants[analysis.new_value(name, "parameter", held_by_tensor(tensor))] = None
    for position, node in enumerate(gm.graph.nodes):
        analysis.visit(position, node)
    analysis.finish()
    return analysis.program


@dataclass
class _Analysis:
    """The state of one reading of a graph.

    ``last_write`` is where each storage is changed last, be it by one of the graph's ``writes`` or between
    the passes; ``totals`` are those that nothing but sums in place writes; what is ``given_back`` is there
    until the backward pass starts.  ``read_before`` and ``stay`` are as of ``read_before_updates``.
    """

    program: GraphProgram
    cost: Callable[[Node], float]
    workspace: Mapping[Node, int]
    replays_randomness: bool
    writes: dict[int, int]
    last_write: dict[int, int]
    totals: set[int]
    given_back: set[int]
    moves: bool
    read_before: dict[int, int]
    stay: set[Node]
    keys: list[int] = field(default_factory=list)
    first_value: dict[int, int] = field(default_factory=dict)
    step_of: dict[Node, NodeCall] = field(default_factory=dict)
    tangents: list[Node] = field(default_factory=list)
    kept: dict[Node, int] = field(default_factory=dict)
    constants: dict[int, None] = field(default_factory=dict)
    results: set[int] = field(default_factory=set)

    def visit(self, position: int, node: Node) -> None:
        if is_tangent(node):
            self.tangents.append(node)
        elif node.op in ("placeholder", "get_attr"):
            values = self._new_values(node, constant_kind(node))
            if counts(node):
                self.constants.update(dict.fromkeys(map(self.program.storage, values)))
        elif node.op == "output":
            self.results.update(self._inputs(node))
        elif is_selection(node):
            self._select(node)
        else:
            if is_backward(node):
                self._arrive()
            self._add_operator(position, node)

    def finish(self) -> None:
        self._arrive()
        self._give_back()
        values = self.program.values
        self.program.constants = parameters_first(self.constants, lambda value: values[value].kind)
        last_use: dict[int, NodeCall] = {}
        # What a result is a view of stays from when it is made, as the search has it.
        held = self.results | {self.program.storage(value) for value in self.results}
        for step in self.program.calls:
            last_use.update(dict.fromkeys((*step.outputs, *step.inputs), step))
            step.pins = [value for value in step.outputs if value in held]
            step.movable = step.movable and not step.pins
        for value, step in last_use.items():
            if value not in self.results and value not in self.constants:
                step.releases.append(value)

    def _give_back(self) -> None:
        """Results that their caller has used when the backward pass starts are read there last."""
        start = next((call for call in self.program.calls if call.role == ARRIVE), None)
        given = {value for value in self.results if self.keys[value] in self.given_back}
        if start is not None:
            self.results -= given
            storages = {self.program.storage(value) for value in given}
            self.program.given_back = storages
            start.inputs += tuple(sorted(given))
            for call in self.program.calls:
                call.recomputable = call.recomputable and storages.isdisjoint(
                    map(self.program.storage, call.outputs)
                )

    def _arrive(self) -> None:
        """The inputs that come with the backward pass, all at once; they stay with their caller."""
        used = [node for node in self.tangents if node.users]
        values = {node: self._new_values(node, "input") for node in used}
        fresh = tuple(value for node in used for value in values[node] if self.program.is_storage(value))
        self.results.update(fresh)
        if used:
            self.program.calls.append(NodeCall(used[0], ARRIVE, outputs=fresh, recomputable=False))
        for node in used:
            views = tuple(value for value in values[node] if not self.program.is_storage(value))
            if views:
                read = tuple(map(self.program.storage, views))
                self.program.calls.append(NodeCall(node, ARRIVE, read, views, recomputable=False))
        self.tangents = []

    def _add_operator(self, position: int, node: Node) -> None:
        mark = mark_of(node)
        repeats = may_run_twice(node) and mark is not CheckpointPolicy.MUST_SAVE and node not in self.stay
        step = NodeCall(node, inputs=self._inputs(node), recomputable=repeats, mark=mark)
        if step.recomputable:
            self._replay_randomness(step)
            if self.last_write:
                self._protect_from_writes(step, position)
        outputs = self._new_values(node, "activation")
        step.outputs = tuple(dict.fromkeys(outputs))
        fresh = list(filter(self.program.is_storage, step.outputs))
        is_written = any(self.keys[value] in self.writes for value in fresh)
        if is_written or _is_used_whole(node) or len(step.outputs) < len(outputs):
            step.recomputable = False
        if fresh or not may_run_twice(node):  # a view is free, whatever it is of
            step.cost = self.cost(node)
            step.workspace = self.workspace.get(node, 0)
        step.movable = bool(fresh) and self._is_movable(node, step)
        self.step_of[node] = step
        self.program.calls.append(step)

    def _is_movable(self, node: Node, step: NodeCall) -> bool:
        """True if the results are large enough to be moved, and nobody writes them or holds on to them.

        Sums in place may write them: they are moved after the last one.
        """
        keys = {self.keys[value] for value in step.outputs}
        if not self.moves or _is_used_whole(node) or not self.totals.issuperset(keys & {*self.last_write}):
            return False
        tensors = tensors_of(node.meta.get("val"))
        nbytes = sum(self.program.values[value].nbytes for value in step.outputs)
        return (
            nbytes >= _SMALLEST_MOVED and len(tensors) == len(step.outputs) and all(map(is_movable, tensors))
        )

    def _select(self, node: Node) -> None:
        source, index = node.args
        assert isinstance(source, Node)
        tree = self.program.values_of[source]
        self.program.values_of[node] = () if tree == () else tree[index]
        if source in self.step_of:
            self.step_of[node] = self.step_of[source]
            self.step_of[node].selections.append(node)

    def _replay_randomness(self, step: NodeCall) -> None:
        """A random operator depends on the generator's state, which is saved before it."""
        if not rng.is_random(step.node):
            return
        if not (self.replays_randomness and rng.can_replay(step.node)):
            step.recomputable = False
            return
        held = held_by_tensor(rng.save_state(str(self.program.device)))
        state = self.new_value(f"{step.node.name}_rng_state", "rng state", held, own_storage=True)
        self.program.calls.append(NodeCall(step.node, SAVE_RNG, outputs=(state,), recomputable=False))
        step.inputs += (state,)
        # A replay keeps the generator's own state meanwhile.
        step.replay_workspace = self.program.values[state].nbytes

    def _protect_from_writes(self, step: NodeCall, position: int) -> None:
        """A value read before the graph changes it is gone when a recompute would read it.

        An input that is changed later is kept as a copy, unless that costs more than what it lets go.
        """
        program, device = self.program, self.program.device.type
        for value in dict.fromkeys(map(program.storage, step.inputs)):
            key = self.keys[value]
            if position > self.last_write.get(key, -1) or position < self.read_before.get(key, -1):
                continue
            used = step.node.all_input_nodes
            read = [node for node in used if value in map(program.storage, program.values_in(node))]
            is_input = len(read) == 1 and read[0].op in ("placeholder", "get_attr")
            made = sum(held.nbytes for held in held_by(step.node) if held.device == device)
            if not is_input or program.values[value].nbytes > made:
                step.recomputable = False
                return
            [node] = read
            if node not in self.kept:
                [held] = held_by(node)
                copy = self.new_value(f"{node.name}_kept", "kept copy", held, own_storage=True)
                keep = NodeCall(node, KEEP, (value,), (copy,), self.cost(node), recomputable=False)
                program.calls.append(keep)
                self.kept[node] = copy
            step.kept[node] = self.kept[node]
            step.inputs += (self.kept[node],)

    def _inputs(self, node: Node) -> tuple[int, ...]:
        """The values that the node reads; inputs that share a storage are one constant."""
        storage, constants = self.program.storage, self.constants
        read = [value for used in node.all_input_nodes for value in self.program.values_in(used)]
        return tuple(dict.fromkeys(storage(one) if storage(one) in constants else one for one in read))

    def _new_values(self, node: Node, kind: str) -> list[int]:
        first, held = len(self.keys), iter(held_by(node))

        def new(leaf: Any) -> int | None:
            """The leaf's value: that of a sibling if both are in one new storage."""
            if not isinstance(leaf, torch.Tensor):
                return None
            described = next(held)
            sibling = self.first_value.get(described.storage, -1)
            return sibling if sibling >= first else self.new_value(node.name, kind, described)

        value = node.meta.get("val")
        tree = new(value) if isinstance(value, torch.Tensor) else pytree.tree_map(new, value)
        self.program.values_of[node] = tree
        return self.program.values_in(node)

    def new_value(self, name: str, kind: str, held: Held, *, own_storage: bool = False) -> int:
        number = len(self.keys)
        key = -number - 1 if own_storage else held.storage
        first = self.first_value.setdefault(key, number)
        nbytes = held.nbytes if first == number and held.device == self.program.device.type else 0
        self.keys.append(key)
        self.program.values.append(Value(name, kind, nbytes, first))
        return number


def _totals(gm: GraphModule, keys: Set[int]) -> set[int]:
    """Those of the storages, all of them written, that nothing but sums in place writes."""
    others = (node for node in gm.graph.nodes if node.op.startswith("call") and not is_sum_in_place(node))
    return {*keys}.difference(storage_key(tensor) for node in others for tensor in mutated_tensors(node))


def _is_used_whole(node: Node) -> bool:
    """True if something holds on to the node's whole tuple, so that its elements live and die together."""
    return isinstance(node.meta.get("val"), (tuple, list, dict)) and any(
        not is_selection(user) and user.op != "output" for user in node.users
    )
