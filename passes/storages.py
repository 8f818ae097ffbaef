"""Which operator makes, views, reads and changes which storage: an FX graph as a program for the runtime.

Requires: ``meta["val"]`` on every node (see ``propagate``), nodes in execution order.
Ensures: a ``GraphProgram``, whose values are the leaf tensors of the nodes.  Two values share a storage
when their fake tensors do.  A step is recomputable only when running it twice computes the same.
"""

from __future__ import annotations

import functools
import operator
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import torch
import torch.utils._pytree as pytree
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.fx import Graph, GraphModule, Node

from dtr_fx.passes import rng, subgraphs
from dtr_fx.runtime.program import Call, Constant, Instruction, Keep, Output, Program, Release

COMPUTE = "compute"  # an operator of the graph
ARRIVE = "arrive"  # an input that comes late: a tangent, when the backward pass starts
SAVE_RNG = "save rng"  # the generator's state, saved before a random operator
KEEP = "keep"  # a copy of an input that the graph changes later

# Schemas of these name spaces do not show that every rank must take part.
_COLLECTIVES = ("_c10d_functional", "_c10d_functional_autograd", "c10d_functional", "c10d", "symm_mem")
# These update their running statistics in training.
_BATCH_NORMS = frozenset(
    {
        torch.ops.aten.batch_norm,
        torch.ops.aten._batch_norm_impl_index,
        torch.ops.aten.native_batch_norm,
        torch.ops.aten.cudnn_batch_norm,
        torch.ops.aten.miopen_batch_norm,
        torch.ops.aten.instance_norm,
    }
)
_PURE_PYTHON = ("torch", "_operator", "operator", "math", "builtins")


@dataclass(frozen=True)
class Value:
    """One leaf tensor of a node; ``alias_of`` is the first value in the same storage, maybe itself."""

    name: str
    kind: str
    nbytes: int
    alias_of: int


@dataclass
class Step:
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
    """A graph as the runtime runs it: ``constants`` are resident from the start."""

    device: torch.device
    values: list[Value] = field(default_factory=list)
    constants: list[int] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    values_of: dict[Node, Any] = field(default_factory=dict)

    @property
    def base_cost(self) -> float:
        """Seconds of one run without recomputation."""
        return sum(step.cost for step in self.steps if step.role == COMPUTE)

    def program(self) -> Program:
        """The program for the runtime: a call for each step, a tensor for each value."""
        steps: list[Instruction] = [Constant(value, self.values[value].nbytes) for value in self.constants]
        for number, step in enumerate(self.steps):
            outputs = tuple(map(self._output, step.outputs))
            workspace = step.workspace + step.replay_workspace
            recomputable, may_wait = step.recomputable, self._may_wait(number)
            name = step.node.name
            steps.append(Call(name, step.inputs, outputs, step.cost, workspace, recomputable, may_wait))
            steps += map(Keep, step.pins)
            steps += map(Release, step.releases)
        return Program(self.steps[0].node.graph.owning_module.__class__.__name__, tuple(steps), self.boundary)

    def _may_wait(self, number: int) -> bool:
        """Whether a step does the same later; the first of the backward pass marks its start and stays."""
        step = self.steps[number]
        is_inside = self.boundary is not None and number > self.boundary
        return is_inside and step.recomputable and not step.kept and not rng.is_random(step.node)

    @cached_property
    def boundary(self) -> int | None:
        """The number of the first step of the backward pass."""
        return next((i for i, step in enumerate(self.steps) if is_backward(step.node)), None)

    @property
    def saved_bytes(self) -> int:
        """Bytes that the forward pass makes for the backward pass, besides its outputs."""
        forward, backward = self.steps[: self.boundary], self.steps[self.boundary :]
        made = {self.storage(value) for step in forward for value in step.outputs}
        read = {self.storage(value) for step in backward for value in step.inputs}
        kept = {self.storage(value) for step in forward for value in step.pins}
        return sum(self.values[storage].nbytes for storage in (made & read) - kept)

    @property
    def held_between_passes(self) -> int:
        """Bytes of what any plan holds between the passes: inputs, outputs, and the first tangent."""
        steps = self.steps[: self.boundary]
        pins = {self.storage(value) for step in steps for value in step.pins}
        arriving = self.steps[self.boundary].outputs if self.boundary is not None else ()
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
        """Whether the value stands for a storage; else it is a view of another."""
        return self.values[value].alias_of == value


def analyze(
    gm: GraphModule,
    device: torch.device,
    cost: Callable[[Node], float],
    workspace: Mapping[Node, int],
    *,
    replays_randomness: bool = True,
) -> GraphProgram:
    """The graph as a program, with the bytes that are on ``device``.

    ``cost`` gives seconds, ``workspace`` bytes that only the operator sees.

    Random operators run once where nothing ``replays_randomness``.
    """
    analysis = _Analysis(gm, device, cost, workspace, replays_randomness)
    for node in gm.graph.nodes:
        analysis.visit(node)
    return analysis.finish()


def is_selection(node: Node) -> bool:
    """Whether the node takes an element of another node's tuple, list or mapping."""
    return (
        node.op == "call_function"
        and node.target is operator.getitem
        and isinstance(node.args[0], Node)
        and not isinstance(node.args[0].meta.get("val"), torch.Tensor)
    )


def tensors_of(value: Any) -> list[torch.Tensor]:
    """The tensors in a node's value, in order."""
    if isinstance(value, torch.Tensor):
        return [value]
    if value is None:
        return []
    if isinstance(value, (tuple, list)):
        return [tensor for leaf in value for tensor in tensors_of(leaf)]
    return [leaf for leaf in pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]


def storage_key(tensor: torch.Tensor) -> int:
    """What two tensors share when they share memory; a tensor without a storage has its own."""
    try:
        return tensor.untyped_storage()._cdata
    except (NotImplementedError, RuntimeError):
        return id(tensor)


class Held(NamedTuple):
    """What a tensor holds: its storage (see ``storage_key``), the type of its device, and bytes there.

    ``elements`` are the bytes of its elements, which are those that reading or writing it moves.
    """

    storage: int
    device: str
    nbytes: int
    elements: int


def held_by(node: Node) -> list[Held]:
    """What the tensors in a node's value hold, in order; looked up once for each value."""
    value = node.meta.get("val")
    known = node.meta.get("dtr_held")
    if known is None or known[0] is not value:
        known = node.meta["dtr_held"] = value, list(map(_held, tensors_of(value)))
    held: list[Held] = known[1]
    return held


def _held(tensor: torch.Tensor) -> Held:
    device = tensor.device
    return Held(storage_key(tensor), device.type, storage_bytes(tensor, device), nbytes_of(tensor))


def storage_keys(node: Node) -> list[int]:
    """The storages of the tensors in a node's value, in order; see ``storage_key``."""
    return [held.storage for held in held_by(node)]


def view_like(tensor: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    """The view of ``base`` that the tensor is of its own storage."""
    if tensor.layout is not torch.strided:
        return base
    storage, offset = base.untyped_storage(), tensor.storage_offset()
    return _made_like(
        base,
        lambda device: torch.empty(0, dtype=tensor.dtype, device=device).set_(
            storage, offset, tensor.shape, tensor.stride()
        ),
    )


def empty_like(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor laid out as this one, in a storage of its own."""
    if tensor.layout is not torch.strided:
        return torch.empty_like(tensor)
    return _made_like(
        tensor,
        lambda device: torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device),
    )


def _made_like(like: torch.Tensor, make: Callable[[torch.device], torch.Tensor]) -> torch.Tensor:
    """A tensor that is as real, or as fake, as another.

    By hand: the mode itself takes five times as long.  Private (checked on torch 2.11 and 2.13).
    """
    if not isinstance(like, FakeTensor):
        return make(like.device)
    with unset_fake_temporarily():
        return FakeTensor(like.fake_mode, make(torch.device("meta")), like.fake_device)


def storage_bytes(tensor: torch.Tensor, device: torch.device) -> int:
    """Bytes of the tensor's storage on ``device``, as its allocator hands them out; 0 on another device."""
    if tensor.device.type != device.type or tensor.layout is not torch.strided:
        return 0
    nbytes = hint(tensor.untyped_storage().nbytes())
    return -(-nbytes // 512) * 512 if device.type == "cuda" else nbytes


def nbytes_of(tensor: torch.Tensor) -> int:
    """Bytes of the tensor's elements, in the trace at hand."""
    return hint(tensor.numel()) * tensor.element_size()


def hint(size: int | torch.SymInt) -> int:
    """The size in the trace at hand, without a guard on it (``SymNode.hint``: torch 2.11 to 2.13)."""
    return size if isinstance(size, int) else int(size.node.hint or 0)


def graph_device(gm: GraphModule) -> torch.device:
    """The device that holds most of the graph's tensors."""
    count: dict[torch.device, int] = defaultdict(int)
    for node in gm.graph.nodes:
        value = node.meta.get("val")
        if isinstance(value, torch.Tensor):
            count[value.device] += 1
    accelerators = [device for device in count if device.type not in ("cpu", "meta")]
    return max(accelerators or count or [torch.device("cpu")], key=lambda device: count[device])


def module_state(gm: GraphModule) -> list[tuple[str, torch.Tensor]]:
    """Parameters and buffers that modules read without a node for it."""
    if not any(node.op == "call_module" for node in gm.graph.nodes):
        return []
    named = {node.target for node in gm.graph.nodes if node.op == "get_attr"}
    tensors = [*gm.named_parameters(), *gm.named_buffers()]
    return [(name, tensor) for name, tensor in tensors if name not in named]


def is_tangent(node: Node) -> bool:
    """Whether AOTAutograd passes this input to the backward pass only."""
    return node.op == "placeholder" and is_backward(node)


def is_backward(node: Node) -> bool:
    """Whether AOTAutograd made the node for the backward pass."""
    return node.meta.get("partitioner_tag") in ("is_backward", "must_be_in_backward")


def mutated_tensors(node: Node) -> list[torch.Tensor]:
    """The tensors that the node writes in place."""
    facts = node.meta.get("dtr_facts")
    if facts is not None:
        return list(facts.mutates)
    if not isinstance(node.target, torch._ops.OpOverload):
        return []
    written = undeclared_writes(node.target, node.args, node.kwargs)
    for position, name in _declared_writes(node.target):
        written.append(node.args[position] if position < len(node.args) else node.kwargs.get(name))
    if not written:
        return []
    nodes = [leaf for leaf in pytree.tree_leaves(written) if isinstance(leaf, Node)]
    return [tensor for leaf in nodes for tensor in tensors_of(leaf.meta.get("val"))]


@functools.cache
def _declared_writes(target: torch._ops.OpOverload) -> tuple[tuple[int, str], ...]:
    """The arguments, by position and name, that an operator writes by its schema."""
    return tuple(
        (position, argument.name)
        for position, argument in enumerate(target._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def undeclared_writes(
    target: torch._ops.OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[Any]:
    """The arguments that an operator writes although its schema does not say so."""
    if target.overloadpacket not in _BATCH_NORMS:
        return []
    names = (argument.name for argument in target._schema.arguments)
    given = {**dict(zip(names, args)), **kwargs}
    in_training = given.get("training", given.get("use_input_stats"))
    return [given.get("running_mean"), given.get("running_var")] if in_training else []


def may_run_twice(node: Node) -> bool:
    """Whether a second run computes the same and does nothing else (randomness apart, see ``rng``)."""
    facts = node.meta.get("dtr_facts")
    if facts is not None and facts.mutates:
        return False
    if node.op == "call_module":
        module = node.graph.owning_module.get_submodule(str(node.target))  # type: ignore[union-attr]
        return type(module).__module__.startswith("torch.nn.")
    if node.op == "call_method":
        return True
    target = node.target
    if isinstance(target, torch._ops.OpOverload):
        writes = bool(undeclared_writes(target, node.args, node.kwargs))
        return not (writes or target.namespace in _COLLECTIVES or _has_effect(node))
    if subgraphs.is_higher_order(node):
        operators = subgraphs.operators_of(node)
        repeats = not any(map(rng.is_random, operators)) and all(map(may_run_twice, operators))
        return subgraphs.is_pure(node) and repeats
    inside = getattr(target, "graph", None)
    if isinstance(inside, Graph):  # operators as one, see kernels
        return all(may_run_twice(inner) for inner in inside.nodes if inner.op.startswith("call"))
    module_name = str(getattr(target, "__module__", None) or "")
    # torch.rand_like and its kin count as impure whatever is asked.
    is_pure = rng.is_random(node) or not node.is_impure(impure_random=False)
    return is_pure and module_name.partition(".")[0] in _PURE_PYTHON


def _has_effect(node: Node) -> bool:
    """Whether an operator's schema or registration says that it does more than compute.

    Of PyTorch's own that is asked once; another may be registered as having an effect at any time.
    """
    if node.target.namespace != "aten":  # type: ignore[union-attr]
        return bool(node.is_impure(impure_random=False))
    if node.target not in _effects:
        _effects[node.target] = node.is_impure(impure_random=False)
    return _effects[node.target]


_effects: dict[Any, bool] = {}


class _Analysis:
    """The state of one reading of a graph."""

    def __init__(
        self,
        gm: GraphModule,
        device: torch.device,
        cost: Callable[[Node], float],
        workspace: Mapping[Node, int],
        replays_randomness: bool,
    ) -> None:
        self._gm = gm
        self._replays_randomness = replays_randomness
        self._cost = cost
        self._workspace = workspace
        self._program = GraphProgram(device)
        self._device = device.type
        self._keys: list[int] = []
        self._first_value: dict[int, int] = {}
        self._last_write = last_writes(gm.graph)
        self._position: dict[Node, int] = {node: i for i, node in enumerate(gm.graph.nodes)}
        self._step_of: dict[Node, Step] = {}
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
        last_use: dict[int, Step] = {}
        for step in self._program.steps:
            for value in (*step.outputs, *step.inputs):
                last_use[value] = step
            step.pins = [value for value in step.outputs if value in self._results]
        for value, step in last_use.items():
            if value not in self._results and value not in self._constants:
                step.releases.append(value)
        return self._program

    def _add_module_state(self) -> None:
        for name, tensor in module_state(self._gm):
            self._constants[self._new_value(name, "parameter", _held(tensor))] = None

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
                self._program.steps.append(Step(node, ARRIVE, outputs=fresh, recomputable=False))
        self._tangents = []

    def _add_operator(self, node: Node) -> None:
        step = Step(node, inputs=self._inputs(node), recomputable=may_run_twice(node))
        if step.recomputable:
            self._replay_randomness(step)
            if self._last_write:
                self._protect_from_writes(step)
        outputs = self._new_values(node, "activation")
        step.outputs = tuple(dict.fromkeys(outputs))
        fresh = [value for value in step.outputs if self._program.is_storage(value)]
        is_written = any(self._keys[value] in self._last_write for value in fresh)
        if is_written or _is_used_whole(node) or len(step.outputs) < len(outputs):
            step.recomputable = False
        if fresh or not step.recomputable:
            step.cost = self._cost(node)
            step.workspace = self._workspace.get(node, 0)
        self._step_of[node] = step
        self._program.steps.append(step)

    def _select(self, node: Node) -> None:
        source, index = node.args
        assert isinstance(source, Node)
        tree = self._program.values_of[source]
        self._program.values_of[node] = () if tree == () else tree[index]
        if source in self._step_of:
            self._step_of[node] = self._step_of[source]
            self._step_of[node].selections.append(node)

    def _replay_randomness(self, step: Step) -> None:
        """A random operator depends on the generator's state, which is saved before it."""
        if not rng.is_random(step.node):
            return
        if not (self._replays_randomness and rng.can_replay(step.node)):
            step.recomputable = False
            return
        name = f"{step.node.name}_rng_state"
        held = _held(rng.state_like(self._program.device))
        state = self._new_value(name, "rng state", held, own_storage=True)
        self._program.steps.append(Step(step.node, SAVE_RNG, outputs=(state,), recomputable=False))
        step.inputs += (state,)
        # A replay keeps the generator's own state meanwhile.
        step.replay_workspace = self._program.values[state].nbytes

    def _protect_from_writes(self, step: Step) -> None:
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
        self._program.steps.append(Step(node, KEEP, (value,), (copy,), cost, recomputable=False))

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


def last_writes(graph: Graph) -> dict[int, int]:
    """For every storage that the graph changes, the position of the last node that does."""
    last = {}
    for position, node in enumerate(graph.nodes):
        if node.op.startswith("call"):
            for tensor in mutated_tensors(node):
                last[storage_key(tensor)] = position
    return last


def _is_used_whole(node: Node) -> bool:
    """Whether something holds on to the node's whole tuple, so that its elements live and die together."""
    return isinstance(node.meta.get("val"), (tuple, list, dict)) and any(
        not is_selection(user) and user.op != "output" for user in node.users
    )


def _constant_kind(node: Node) -> str:
    if node.op == "get_attr":
        return "parameter"
    return "parameter" if node.meta.get("dtr_parameter") else "input"
