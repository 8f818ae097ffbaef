"""Which operator makes, views, reads and changes which storage: an FX graph as a program for the runtime.

Requires: ``meta["val"]`` on every node (see ``propagate``), nodes in execution order.
Ensures: a ``GraphProgram``, whose values are the leaf tensors of the nodes.  Two values share a storage
when their fake tensors do.  A call is recomputable only when running it twice computes the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch.fx import GraphModule, Node

from dtr_fx.passes import rng
from dtr_fx.passes.effects import last_writes, may_run_twice
from dtr_fx.passes.reach import Reached, reached_by_caller, written_after_forward
from dtr_fx.passes.roles import ARRIVE, KEEP, SAVE_RNG
from dtr_fx.passes.tensors import (
    Held,
    held_by,
    held_by_tensor,
    is_backward,
    is_selection,
    is_tangent,
    module_state,
)
from dtr_fx.runtime.program import Call, Constant, Instruction, Keep, Output, Program, Release
from dtr_fx.runtime.steps import COMPUTE
from dtr_fx.torch_private import pytree


@dataclass(frozen=True)
class Value:
    """One leaf tensor of a node; ``alias_of`` is the first value in the same storage, maybe itself."""

    name: str
    kind: str
    nbytes: int
    alias_of: int


@dataclass
class NodeCall:
    """One operator: it reads and makes values, and afterwards releases those that are not read again.

    ``selections`` are the ``getitem`` nodes that take its result apart.  ``kept`` maps an input that the
    graph changes later to the value of its kept copy, which a recompute reads instead.  ``workspace`` are
    the bytes that any run of it takes for itself, ``replay_workspace`` those that a recompute adds.
    """

    node: Node
    role: str = COMPUTE
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    cost: float = 0.0
    workspace: int = 0
    replay_workspace: int = 0
    recomputable: bool = True
    selections: list[Node] = field(default_factory=list)
    kept: dict[Node, int] = field(default_factory=dict)
    pins: list[int] = field(default_factory=list)
    releases: list[int] = field(default_factory=list)


@dataclass
class GraphProgram:
    """A graph as the runtime runs it: ``constants`` are resident from the start.

    ``reached`` are the tensors, by storage, that no recompute reads unless the plan trusts the caller.
    """

    device: torch.device
    values: list[Value] = field(default_factory=list)
    constants: list[int] = field(default_factory=list)
    calls: list[NodeCall] = field(default_factory=list)
    values_of: dict[Node, Any] = field(default_factory=dict)
    reached: dict[int, Reached] = field(default_factory=dict)

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
                )
            )
            found += map(Keep, call.pins)
            found += map(Release, call.releases)
        name = type(self.calls[0].node.graph.owning_module).__name__
        return Program(name, tuple(found), self.boundary)

    def _may_defer(self, number: int) -> bool:
        """True if a call does the same later; the first of the backward pass marks its start and stays."""
        call = self.calls[number]
        is_inside = self.boundary is not None and number > self.boundary
        return is_inside and call.recomputable and not call.kept and not rng.is_random(call.node)

    @cached_property
    def boundary(self) -> int | None:
        """The number of the first step of the backward pass."""
        return next((i for i, step in enumerate(self.calls) if is_backward(step.node)), None)

    @property
    def saved_bytes(self) -> int:
        """Bytes that the forward pass makes for the backward pass, its outputs apart."""
        forward, backward = self.calls[: self.boundary], self.calls[self.boundary :]
        made = {self.storage(value) for step in forward for value in step.outputs}
        read = {self.storage(value) for step in backward for value in step.inputs}
        kept = {self.storage(value) for step in forward for value in step.pins}
        return sum(self.values[storage].nbytes for storage in (made & read) - kept)

    @property
    def held_between_passes(self) -> int:
        """Bytes of what any plan holds between the passes: inputs, outputs, and the first tangent."""
        steps = self.calls[: self.boundary]
        pins = {self.storage(value) for step in steps for value in step.pins}
        arriving = self.calls[self.boundary].outputs if self.boundary is not None else ()
        return self.constant_bytes + sum(self.values[value].nbytes for value in {*pins, *arriving})

    def _output(self, value: int) -> Output:
        described = self.values[value]
        return Output(value, described.nbytes, None if self.is_storage(value) else described.alias_of)

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
) -> GraphProgram:
    """The graph as a program, with the bytes that are on ``device``.

    ``cost`` gives seconds, ``workspace`` bytes that only the operator sees.

    Random operators run once where nothing ``replays_randomness``.  What the caller may write before the
    backward pass is not read by a recompute, unless the plan ``trusts_caller`` not to.
    """
    analysis = _Analysis(gm, device, cost, workspace, replays_randomness, trusts_caller)
    for node in gm.graph.nodes:
        analysis.visit(node)
    return analysis.finish()


class _Analysis:
    """The state of one reading of a graph."""

    def __init__(
        self,
        gm: GraphModule,
        device: torch.device,
        cost: Callable[[Node], float],
        workspace: Mapping[Node, int],
        replays_randomness: bool,
        trusts_caller: bool,
    ) -> None:
        self._gm = gm
        self._replays_randomness = replays_randomness
        self._cost = cost
        self._workspace = workspace
        self._program = GraphProgram(device)
        self._device = device.type
        self._keys: list[int] = []
        self._first_value: dict[int, int] = {}
        self._written = last_writes(gm.graph)
        self._last_write = {**self._written, **self._writes_between_passes(trusts_caller)}
        self._position: dict[Node, int] = {node: i for i, node in enumerate(gm.graph.nodes)}
        self._step_of: dict[Node, NodeCall] = {}
        self._tangents: list[Node] = []
        self._kept: dict[Node, int] = {}
        self._constants: dict[int, None] = {}
        self._results: set[int] = set()
        self._add_module_state()

    def visit(self, node: Node) -> None:
        if node.op in ("placeholder", "get_attr"):
            if is_tangent(node):
                self._tangents.append(node)
            else:
                self._add_constant(node)
        elif node.op == "output":
            self._results.update(self._inputs(node))
        elif is_selection(node):
            self._select(node)
        else:
            if self._tangents and is_backward(node):
                self._arrive()
            self._add_operator(node)

    def finish(self) -> GraphProgram:
        self._arrive()
        self._program.constants = list(self._constants)
        last_use: dict[int, NodeCall] = {}
        for step in self._program.calls:
            for value in (*step.outputs, *step.inputs):
                last_use[value] = step
            step.pins = [value for value in step.outputs if value in self._results]
        for value, step in last_use.items():
            if value not in self._results and value not in self._constants:
                step.releases.append(value)
        return self._program

    def _add_module_state(self) -> None:
        for name, tensor in module_state(self._gm):
            self._constants[self._new_value(name, "parameter", held_by_tensor(tensor))] = None

    def _writes_between_passes(self, trusts_caller: bool) -> dict[int, int]:
        """What is written outside the graph before its backward pass, as if where that starts."""
        nodes = enumerate(self._gm.graph.nodes)
        start = next((i for i, node in nodes if node.op.startswith("call") and is_backward(node)), None)
        if start is None:
            return {}
        between = written_after_forward(self._gm)
        self._program.reached = reached_by_caller(self._gm)
        if not trusts_caller:
            between.update(self._program.reached)
        return {key: max(start, self._written.get(key, start)) for key in between}

    def _add_constant(self, node: Node) -> None:
        values = self._new_values(node, _constant_kind(node))
        if node.users:
            self._constants.update(dict.fromkeys(map(self._program.storage, values)))

    def _arrive(self) -> None:
        """The inputs that come with the backward pass; they stay with their caller to its end."""
        for node in self._tangents:
            values = self._new_values(node, "input")
            if node.users:
                fresh = tuple(value for value in values if self._program.is_storage(value))
                self._results.update(fresh)
                self._program.calls.append(NodeCall(node, ARRIVE, outputs=fresh, recomputable=False))
        self._tangents = []

    def _add_operator(self, node: Node) -> None:
        step = NodeCall(node, inputs=self._inputs(node), recomputable=may_run_twice(node))
        if step.recomputable:
            self._replay_randomness(step)
            if self._last_write:
                self._protect_from_writes(step)
        outputs = self._new_values(node, "activation")
        step.outputs = tuple(dict.fromkeys(outputs))
        fresh = [value for value in step.outputs if self._program.is_storage(value)]
        is_written = any(self._keys[value] in self._written for value in fresh)
        if is_written or _is_used_whole(node) or len(step.outputs) < len(outputs):
            step.recomputable = False
        if fresh or not step.recomputable:
            step.cost = self._cost(node)
            step.workspace = self._workspace.get(node, 0)
        self._step_of[node] = step
        self._program.calls.append(step)

    def _select(self, node: Node) -> None:
        source, index = node.args
        assert isinstance(source, Node)
        tree = self._program.values_of[source]
        self._program.values_of[node] = () if tree == () else tree[index]
        if source in self._step_of:
            self._step_of[node] = self._step_of[source]
            self._step_of[node].selections.append(node)

    def _replay_randomness(self, step: NodeCall) -> None:
        """A random operator depends on the generator's state, which is saved before it."""
        if not rng.is_random(step.node):
            return
        if not (self._replays_randomness and rng.can_replay(step.node)):
            step.recomputable = False
            return
        name = f"{step.node.name}_rng_state"
        held = held_by_tensor(rng.state_like(self._program.device))
        state = self._new_value(name, "rng state", held, own_storage=True)
        self._program.calls.append(NodeCall(step.node, SAVE_RNG, outputs=(state,), recomputable=False))
        step.inputs += (state,)
        # A replay keeps the generator's own state meanwhile.
        step.replay_workspace = self._program.values[state].nbytes

    def _protect_from_writes(self, step: NodeCall) -> None:
        """A value read before the graph changes it is gone when a recompute would read it.

        An input that is changed later is kept as a copy, unless that costs more than what it lets go.
        """
        position = self._position[step.node]
        for value in dict.fromkeys(self._program.storage(value) for value in step.inputs):
            if position > self._last_write.get(self._keys[value], -1):
                continue
            node = self._readable_input(step.node, value)
            made = sum(held.nbytes for held in held_by(step.node) if held.device == self._device)
            if node is None or self._program.values[value].nbytes > made:
                step.recomputable = False
                return
            if node not in self._kept:
                self._keep(node, value)
            step.kept[node] = self._kept[node]
            step.inputs += (self._kept[node],)

    def _readable_input(self, reader: Node, value: int) -> Node | None:
        """The input of the graph that the reader reads directly, if that is how it reads the storage."""
        reads = [
            node
            for node in reader.all_input_nodes
            if value in map(self._program.storage, self._program.values_in(node))
        ]
        if len(reads) == 1 and reads[0].op in ("placeholder", "get_attr"):
            return reads[0]
        return None

    def _keep(self, node: Node, value: int) -> None:
        [held] = held_by(node)
        copy = self._new_value(f"{node.name}_kept", "kept copy", held, own_storage=True)
        self._kept[node] = copy
        cost = self._cost(node)
        self._program.calls.append(NodeCall(node, KEEP, (value,), (copy,), cost, recomputable=False))

    def _inputs(self, node: Node) -> tuple[int, ...]:
        """The values that the node reads; inputs that share a storage are one constant."""
        inputs: dict[int, None] = {}
        for used in node.all_input_nodes:
            for value in self._program.values_in(used):
                first = self._program.storage(value)
                inputs[first if first in self._constants else value] = None
        return tuple(inputs)

    def _new_values(self, node: Node, kind: str) -> list[int]:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            [held] = held_by(node)
            tree: Any = self._new_value(node.name, kind, held)
        else:
            new = functools.partial(self._new_leaf, node.name, kind, len(self._keys), iter(held_by(node)))
            tree = pytree.tree_map(new, value)
        self._program.values_of[node] = tree
        return self._program.values_in(node)

    def _new_leaf(self, name: str, kind: str, first: int, held: Iterator[Held], leaf: Any) -> int | None:
        """The leaf's value: that of a sibling, numbered from ``first``, if both are in one new storage."""
        if not isinstance(leaf, torch.Tensor):
            return None
        new = next(held)
        sibling = self._first_value.get(new.storage, -1)
        return sibling if sibling >= first else self._new_value(name, kind, new)

    def _new_value(self, name: str, kind: str, held: Held, *, own_storage: bool = False) -> int:
        number = len(self._keys)
        key = -number - 1 if own_storage else held.storage
        first = self._first_value.setdefault(key, number)
        nbytes = held.nbytes if first == number and held.device == self._device else 0
        self._keys.append(key)
        self._program.values.append(Value(name, kind, nbytes, first))
        return number


def _is_used_whole(node: Node) -> bool:
    """True if something holds on to the node's whole tuple, so that its elements live and die together."""
    return isinstance(node.meta.get("val"), (tuple, list, dict)) and any(
        not is_selection(user) and user.op != "output" for user in node.users
    )


def _constant_kind(node: Node) -> str:
    if node.op == "get_attr":
        return "parameter"
    return "parameter" if node.meta.get("dtr_parameter") else "input"
