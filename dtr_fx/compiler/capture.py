"""A whole training step as one graph: forward, loss, backward, clipping, and the optimizer's update.

The two passes are AOTAutograd's joint graph.  The optimizer's own ``step`` runs behind it, on tensors of the
trace, so that the graph has the operators of eager's update and writes where that writes.  Its floating-point
settings, such as a learning rate, are inputs.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import sympy
import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Interpreter, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import DimDynamic, GuardOnDataDependentSymNode, ShapeEnv
from torch.fx.traceback import annotate, preserve_node_meta
from torch.nn.utils import get_total_norm

from dtr_fx.compiler.dynamo import recurrence_as_in_eager
from dtr_fx.compiler.memoryless import fake, has_no_memory
from dtr_fx.compiler.provenance import mark_backward, provenance_of
from dtr_fx.errors import GraphError, OptionError
from dtr_fx.passes.accumulate import AccumulateInPlace
from dtr_fx.passes.contract import VALUES, Pipeline
from dtr_fx.passes.marking import mark_hints
from dtr_fx.passes.marks import check_marks
from dtr_fx.passes.modes import WithoutMemory, static_mode
from dtr_fx.passes.propagate import Propagate
from dtr_fx.passes.split import ExecutionOrder, MergeDuplicates
from dtr_fx.passes.tensors import UPDATE, is_tangent, storage_keys
from dtr_fx.torch_private import (
    ConstantSource,
    DataDependent,
    DynamicShape,
    GradAOTOutput,
    InputMutationAOTOutput,
    PlainAOTInput,
    PlainAOTOutput,
    Unfakeable,
    aot_export_joint,
    checkpoints_left_out,
    compile_lock,
    compiling,
    make_state,
    pytree,
    rename,
    unset_fake_temporarily,
)

_STAGE = "dtr_stage"
PLAIN = (int, float, bool, str, type(None))  # of these a value decides which operators run


class Number(NamedTuple):
    """A floating-point setting of an optimizer: of a group, one of several if it is at a ``position``."""

    group: int
    name: str
    position: int | None
    value: float


def numbers_of(optimizer: torch.optim.Optimizer) -> list[Number]:
    """The settings that are inputs of a step; others, and those that are 0, decide which operators run."""
    found = []
    for at, group in enumerate(optimizer.param_groups):
        for name, value in group.items():
            if isinstance(value, float) and (value or name == "lr"):
                found.append(Number(at, name, None, value))
            elif isinstance(value, tuple):
                found += [Number(at, name, i, one) for i, one in enumerate(value) if isinstance(one, float)]
    return found


class StepModel(nn.Module):
    """A model and its loss as one module: ``loss(model, …)``."""

    def __init__(self, model: nn.Module, loss: Callable[..., Any]) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.loss(self.model, *args, **kwargs)


@dataclass
class Tensors:
    """What a step reads and writes beside its batch: parameters and buffers by name, and the optimizer's.

    ``state`` names a parameter by its number and an entry of the optimizer's state; ``settings`` are tensors
    among its groups' settings, by the number of the group.
    """

    parameters: list[str]
    buffers: list[str]
    state: list[tuple[int, str]]
    settings: list[tuple[int, str]]

    @classmethod
    def of(cls, model: StepModel, optimizer: torch.optim.Optimizer) -> Tensors:
        """OptionError where the optimizer has parameters that neither the model nor the loss has."""
        number = {id(parameter): at for at, parameter in enumerate(model.parameters())}
        owned = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        if any(id(parameter) not in number for parameter in owned):
            raise OptionError(
                "the optimizer has parameters that the model has not: make it of model.parameters(), and of "
                "those of the loss if that is a module"
            )
        state = [
            (number[id(parameter)], name)
            for parameter in owned
            for name, value in optimizer.state.get(parameter, {}).items()
            if isinstance(value, Tensor)
        ]
        settings = [
            (at, name)
            for at, group in enumerate(optimizer.param_groups)
            for name, value in group.items()
            if isinstance(value, Tensor)
        ]
        parameters, buffers = model.named_parameters(), model.named_buffers()
        return cls([name for name, _ in parameters], [name for name, _ in buffers], state, settings)

    def values(self, model: StepModel, optimizer: torch.optim.Optimizer) -> list[Tensor]:
        """All of them as they are now, in the order of the graph's inputs."""
        parameters = list(model.parameters())
        states = [optimizer.state[parameters[at]][name] for at, name in self.state]
        settings = [optimizer.param_groups[at][name] for at, name in self.settings]
        return [*parameters, *model.buffers(), *states, *settings]

    @property
    def names(self) -> list[str]:
        states = [f"{self.parameters[at]}_{name}" for at, name in self.state]
        return [*self.parameters, *self.buffers, *states, *(name for _, name in self.settings)]


class Results(NamedTuple):
    """How the loss nests what it returns; ``constants`` has what is no tensor, in a tuple, else None."""

    nesting: Any
    constants: list[tuple[Any] | None]

    def of(self, tensors: Iterable[Tensor]) -> Any:
        given = iter(tensors)
        leaves = [next(given) if constant is None else constant[0] for constant in self.constants]
        return pytree.tree_unflatten(leaves, self.nesting)


class Captured(NamedTuple):
    """A traced step: it takes ``tensors``, numbers and the batch's tensors, and gives the loss's results.

    Behind these it gives ``new_state``, entries of the optimizer's state that the step makes anew, by number
    of the parameter and name, here as fake tensors.  ``results`` is how the loss nests its results,
    ``gradient_bytes`` are those of all gradients.  It ``writes_batch`` if the forward pass does, and is right
    for numbers of which ``holds`` is true.
    """

    gm: GraphModule
    tensors: Tensors
    results: Results
    new_state: dict[tuple[int, str], Tensor]
    gradient_bytes: int
    writes_batch: bool
    holds: Callable[[Sequence[float]], bool]


def capture(
    model: StepModel,
    optimizer: torch.optim.Optimizer,
    leaves: Sequence[Any],
    nesting: Any,
    *,
    micro_batches: int = 1,
    max_norm: float | None = None,
) -> Captured:
    """Trace one step; GraphError where that fails.  Nothing is run, but the optimizer's state is made."""
    # What tracing changes is the process's; the model may have been made in a mode that is still on.
    with compile_lock, unset_fake_temporarily():
        return _Capture(model, optimizer, leaves, nesting, micro_batches, max_norm).trace()


class _Capture:
    def __init__(
        self,
        model: StepModel,
        optimizer: torch.optim.Optimizer,
        leaves: Sequence[Any],
        nesting: Any,
        micro_batches: int,
        max_norm: float | None,
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._leaves = leaves
        self._nesting = nesting
        self._parts = micro_batches
        self._max_norm = max_norm
        tensors = (*model.parameters(), *model.buffers())
        self._mode = WithoutMemory() if any(map(has_no_memory, tensors)) else static_mode()
        self._results = Results(None, [])

    def trace(self) -> Captured:
        batch = [leaf for leaf in self._leaves if isinstance(leaf, Tensor)]
        joint = self._trace_passes(batch)
        make_state(self._optimizer, [self._parameters[at] for at in joint.trained])
        tensors = Tensors.of(self._model, self._optimizer)
        numbers = numbers_of(self._optimizer)
        given = [*map(self._fake, tensors.values(self._model, self._optimizer)), *map(self._symbol, numbers)]
        new_state: dict[tuple[int, str], Tensor] = {}

        def step(*inputs: Any) -> list[Tensor]:
            inside = inputs[: len(given)], inputs[len(given) :]
            results, gradients = joint.run(inside[0], inside[1], self._parts)
            with annotate({_STAGE: UPDATE}):
                made = self._update(tensors, numbers, inside[0], gradients)
            new_state.update(made)
            return [*results, *made.values()]

        with (
            self._mode,
            torch.no_grad(),
            _no_autocast(batch),
            preserve_node_meta(),
            _explained("the optimizer's step"),
        ):
            gm = make_fx(step)(*given, *map(self._fake, batch))
        names = [*tensors.names, *(_name(number) for number in numbers), *("batch" for _ in batch)]
        _label(gm, names, tensors)
        mark_hints(gm, ())
        check_marks(gm)
        Pipeline(Propagate())(gm)
        gradients = sum(self._parameters[number].nbytes for number in joint.trained)
        holds = self._guards([number.node.expr for number in given[len(given) - len(numbers) :]])
        return Captured(gm, tensors, self._results, new_state, gradients, joint.writes_batch, holds)

    def _guards(self, symbols: Sequence[sympy.Symbol]) -> Callable[[Sequence[float]], bool]:
        """True of values of the symbols for which the trace holds."""
        guards = [guard.expr for guard in self._shapes.guards]

        def holds(values: Sequence[float]) -> bool:
            known = {symbol: sympy.Float(value) for symbol, value in zip(symbols, values)}
            return all(guard.xreplace(known) == sympy.true for guard in guards)

        return holds

    @property
    def _shapes(self) -> ShapeEnv:
        shapes = self._mode.shape_env
        assert shapes is not None
        return shapes

    @property
    def _parameters(self) -> list[Tensor]:
        return list(self._model.parameters())

    def _fake(self, tensor: Tensor) -> Tensor:
        return fake(tensor, self._mode)

    def _symbol(self, number: Number) -> Any:
        source = ConstantSource(_name(number))
        symbol = self._shapes.create_unspecified_symbol(number.value, source, DimDynamic.DYNAMIC)
        return self._shapes.create_symfloatnode(symbol, hint=number.value, source=source)

    def _trace_passes(self, batch: Sequence[Tensor]) -> _Joint:
        """The joint graph of a micro-batch, whose loss is divided by the number of these."""
        names = [name for name, _ in (*self._model.named_parameters(), *self._model.named_buffers())]
        state = [*self._model.parameters(), *self._model.buffers()]

        class Passes(nn.Module):
            def forward(_, *inputs: Any) -> list[Tensor]:
                return self._forward(dict(zip(names, inputs)), inputs[len(names) :])

        with self._mode, torch.enable_grad():
            fakes = [self._fake(tensor).requires_grad_(tensor.requires_grad) for tensor in state]
            fakes += [part[0] for part in _parts([*map(self._fake, batch)], self._parts)]
        with contextlib.ExitStack() as stack, torch.enable_grad(), _explained("the model and its loss"):
            stack.enter_context(_attributes_as_before(self._model))
            stack.enter_context(compiling())
            stack.enter_context(checkpoints_left_out())
            stack.enter_context(recurrence_as_in_eager())
            gm = aot_export_joint(stack, Passes(), tuple(fakes)).graph_module
        mark_backward(gm)
        Pipeline(ExecutionOrder(), MergeDuplicates(), AccumulateInPlace(), given=(VALUES,))(gm)
        return _Joint(gm, len(names), self._parameters)

    def _forward(self, state: Mapping[str, Any], batch: Sequence[Any]) -> list[Tensor]:
        given = iter(batch)
        batch_leaves = [next(given) if isinstance(leaf, Tensor) else leaf for leaf in self._leaves]
        args, kwargs = pytree.tree_unflatten(batch_leaves, self._nesting)
        after = dict(state)
        with provenance_of(self._model.model):
            output = torch.func.functional_call(self._model, after, args, kwargs)
        for name, value in after.items():
            if value is not state[name]:  # the forward pass has put another tensor there
                _put(name, state[name], value)
        leaves, nesting = pytree.tree_flatten(output)
        self._results = Results(nesting, [None if isinstance(one, Tensor) else (one,) for one in leaves])
        found = [one for one in leaves if isinstance(one, Tensor)]
        if not (found and not found[0].dim() and found[0].requires_grad):
            raise OptionError(
                "loss(model, …) must return the loss, a scalar tensor that depends on parameters, or a tuple "
                "or dictionary whose first it is"
            )
        for one in leaves:
            if not isinstance(one, (Tensor, *PLAIN)):
                raise OptionError(
                    f"loss(model, …) returns a {type(one).__name__}: return tensors, numbers, None"
                )
        return [found[0] / self._parts if self._parts > 1 else found[0], *(one.detach() for one in found[1:])]

    def _update(
        self,
        tensors: Tensors,
        numbers: Sequence[Number],
        inputs: Sequence[Any],
        gradients: Mapping[int, Tensor],
    ) -> dict[tuple[int, str], Tensor]:
        """Clip gradients and let the optimizer take its step; entries of its state that it makes anew."""
        count, start = len(tensors.parameters), len(tensors.parameters) + len(tensors.buffers)
        parameters = inputs[:count]
        states, settings = inputs[start:][: len(tensors.state)], inputs[start + len(tensors.state) :]
        for number, gradient in _clipped(gradients, self._max_norm).items():
            parameters[number].grad = gradient
        traced = {id(own): parameter for own, parameter in zip(self._parameters, parameters)}
        state: defaultdict[Any, dict[str, Any]] = defaultdict(dict)
        for parameter, entries in self._optimizer.state.items():
            state[traced[id(parameter)]].update(entries)
        for (number, name), value in zip(tensors.state, states):
            state[parameters[number]][name] = value
        before = {parameter: dict(entries) for parameter, entries in state.items()}
        stand_in = object.__new__(type(self._optimizer))
        groups = self._groups(tensors, numbers, settings, traced)
        stand_in.__dict__.update(self._optimizer.__dict__, param_groups=groups, state=state)
        inspect.unwrap(type(self._optimizer).step)(stand_in)
        return self._made([(before.get(each, {}), state.get(each, {})) for each in parameters])

    def _groups(
        self,
        tensors: Tensors,
        numbers: Sequence[Number],
        settings: Sequence[Any],
        traced: Mapping[int, Any],
    ) -> list[dict[str, Any]]:
        """The optimizer's groups, with what is ``traced`` in the place of parameters, by their ids."""
        groups = [dict(group) for group in self._optimizer.param_groups]
        for group in groups:
            group["params"] = [traced[id(parameter)] for parameter in group["params"]]
            # One parameter after the other, so that each can be updated when its gradient is there.
            group.update({name: False for name in ("foreach", "fused") if name in group})
        for (number, name), value in zip(tensors.settings, settings):
            groups[number][name] = value
        for setting, value in zip(numbers, settings[len(tensors.settings) :]):
            _set(groups[setting.group], setting, value)
        return groups

    def _made(
        self, states: Iterable[tuple[Mapping[str, Any], Mapping[str, Any]]]
    ) -> dict[tuple[int, str], Tensor]:
        """The tensors that are new in each parameter's state; GraphError where a step counts in Python."""
        made = {}
        for number, (before, after) in enumerate(states):
            for name, value in after.items():
                if isinstance(value, Tensor):
                    if value is not before.get(name):
                        made[number, name] = value
                elif before.get(name) != value:
                    raise GraphError(
                        f"{type(self._optimizer).__name__} counts in Python ({name}), which one graph for "
                        "all steps cannot: take an optimizer that keeps its state in tensors"
                    )
        return made


def _set(group: dict[str, Any], number: Number, value: Any) -> None:
    if number.position is None:
        group[number.name] = value
    else:
        several = list(group[number.name])
        several[number.position] = value
        group[number.name] = tuple(several)


def _name(number: Number) -> str:
    return f"{number.name}_{number.group}" + ("" if number.position is None else f"_{number.position}")


def _clipped(gradients: Mapping[int, Tensor], max_norm: float | None) -> Mapping[int, Tensor]:
    """As ``clip_grad_norm_`` does, one after the other."""
    if max_norm is None or not gradients:
        return gradients
    ordered = dict(sorted(gradients.items()))
    norm = get_total_norm(list(ordered.values()), foreach=False)
    factor = torch.clamp(max_norm / (norm + 1e-6), max=1.0)
    return {number: gradient.mul_(factor.to(gradient.device)) for number, gradient in ordered.items()}


class _Joint:
    """The two passes of a micro-batch, as AOTAutograd's joint graph; ``trained`` are parameters by number."""

    def __init__(self, gm: GraphModule, states: int, parameters: Sequence[Tensor]) -> None:
        self._gm = gm
        self._states = states
        self._parameters = parameters
        output = gm.graph.output_node()
        nodes: Any = output.args[0]
        self._new: list[tuple[int, int]] = []
        self._result_of: defaultdict[Node, list[int]] = defaultdict(list)
        self._results = 0
        self._gradient_of: defaultdict[Node, list[int]] = defaultdict(list)
        self._tangents = [node.meta for node in gm.graph.find_nodes(op="placeholder") if is_tangent(node)]
        for number, (node, desc) in enumerate(zip(nodes, output.meta["desc"])):
            if isinstance(desc, GradAOTOutput):
                if node is not None:
                    if node.meta["val"].layout is not torch.strided:
                        raise GraphError("a gradient is sparse: let the embedding be dense, sparse=False")
                    self._gradient_of[node].append(_position(desc.grad_of))
            elif isinstance(desc, InputMutationAOTOutput):
                self._new.append((_position(desc.mutated_input), number))
            elif node is not None:
                self._result_of[node].append(self._results)
                self._results += 1
        self.trained = sorted(number for numbers in self._gradient_of.values() for number in numbers)
        self.writes_batch = any(position >= states for position, _ in self._new)
        self._shared = _shared(gm, self._gradient_of)

    def run(
        self, state: Sequence[Any], batch: Sequence[Tensor], parts: int
    ) -> tuple[list[Tensor], dict[int, Tensor]]:
        """The results, and the gradients by number of the parameter, summed over the micro-batches."""
        totals: dict[int, Tensor] = {}
        results: list[list[Tensor]] = [[] for _ in range(self._results)]
        tangents = [_tangent(meta) for meta in self._tangents]
        splits = _parts(batch, parts)
        rows = batch_size(each[0] for each in splits)

        def made(node: Node, value: Any) -> None:
            """At once: what waits for the end could not be computed again when parameters are updated."""
            for number in self._gradient_of.get(node, ()):
                self._add(totals, number, value, is_own=node not in self._shared)
            for number in self._result_of.get(node, ()):
                found = [*results[number], value]
                results[number] = found if len(found) < parts else [_joined(found, rows, is_loss=not number)]

        for part in range(parts):
            inputs = [*state[: self._states], *(each[part] for each in splits)]
            new = _Passes(self._gm, made).run(*inputs, *tangents, enable_io_processing=False)
            for position, number in self._new:
                inputs[position].copy_(new[number])
        return [result for [result] in results], totals

    def _add(self, totals: dict[int, Tensor], number: int, gradient: Tensor, *, is_own: bool) -> None:
        if number in totals:
            totals[number].add_(gradient)
        else:
            totals[number] = _as_grad(gradient, self._parameters[number], is_own=is_own)


class _Passes(Interpreter):
    """Runs the joint graph, and tells ``made`` of every value as soon as it is there."""

    def __init__(self, gm: GraphModule, made: Callable[[Node, Any], None]) -> None:
        super().__init__(gm)
        self._made = made

    def run_node(self, n: Node) -> Any:
        value = super().run_node(n)
        self._made(n, value)
        return value


def _put(name: str, buffer: Tensor, value: Tensor) -> None:
    """Write into a buffer what the forward pass assigns to it."""
    if (value.shape, value.dtype) != (buffer.shape, buffer.dtype):
        raise GraphError(f"{name} gets a tensor of another shape or type in the forward pass: keep both")
    with torch.no_grad():
        buffer.copy_(value)


def _tangent(meta: Mapping[str, Any]) -> Tensor:
    """1 of the loss; 0 of a parameter's new value, which nothing reads."""
    value = meta["val"]
    is_loss = isinstance(meta["desc"].output, PlainAOTOutput)
    make = torch.ones if is_loss else torch.zeros
    return make(value.shape, dtype=value.dtype, device=value.device)


def _position(desc: Any) -> int:
    if not isinstance(desc, PlainAOTInput):
        raise GraphError(
            f"{desc} is a part of a parameter: parameters that are tensor subclasses have no step"
        )
    return int(desc.idx)


def _shared(gm: GraphModule, gradients: Iterable[Node]) -> set[Node]:
    """The gradients whose storage is that of another gradient, or is read by others later."""
    uses = Counter(key for node in gradients for key in set(storage_keys(node)))
    held = {key for node in gm.graph.find_nodes(op="placeholder") for key in storage_keys(node)}
    place = {node: number for number, node in enumerate(gm.graph.nodes)}
    last: dict[int, int] = {}
    for node in gm.graph.nodes:
        if node.op != "output":
            last.update((key, place[node]) for used in node.all_input_nodes for key in storage_keys(used))
    return {
        node
        for node in gradients
        for key in storage_keys(node)
        if uses[key] > 1 or key in held or last.get(key, -1) > place[node]
    }


def _as_grad(gradient: Tensor, parameter: Tensor, *, is_own: bool) -> Tensor:
    """What autograd would put into ``parameter.grad``: a tensor of its own, laid out as the parameter."""
    if is_own and gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_strided(
        parameter.shape, parameter.stride(), dtype=gradient.dtype, device=gradient.device
    ).copy_(gradient)


def _parts(batch: Sequence[Tensor], parts: int) -> list[list[Tensor]]:
    """Of each tensor its parts along its first dimension, if that is the batch's, or itself for each."""
    size = batch_size(batch)
    return [
        list(tensor.chunk(parts))
        if parts > 1 and tensor.dim() and tensor.shape[0] == size
        else [tensor] * parts
        for tensor in batch
    ]


def batch_size(batch: Iterable[Any]) -> int:
    """The first dimension of the first tensor that has one; 1 if there is none."""
    return next((tensor.shape[0] for tensor in batch if isinstance(tensor, Tensor) and tensor.dim()), 1)


def _joined(parts: Sequence[Tensor], rows: int, *, is_loss: bool) -> Tensor:
    """A result of the batch: the loss is summed, rows are put together, all else is stacked."""
    if len(parts) == 1:
        return parts[0]
    if is_loss:
        return functools.reduce(torch.add, parts)
    return (
        torch.cat(tuple(parts)) if parts[0].dim() and parts[0].shape[0] == rows else torch.stack(tuple(parts))
    )


def _label(gm: GraphModule, names: Sequence[str], tensors: Tensors) -> None:
    """Names of the inputs, what they are, and the pass that each operator is in."""
    passes = len(tensors.parameters) + len(tensors.buffers)
    state = passes + len(tensors.state)
    for number, (node, name) in enumerate(zip(gm.graph.find_nodes(op="placeholder"), names)):
        rename(node, name.replace(".", "_"))
        node.meta["dtr_counts"] = True
        if number < state:
            node.meta["dtr_parameter" if number < passes else "dtr_state"] = True
    tag = "is_forward"
    for node in gm.graph.nodes:
        if node.op.startswith("call"):
            if (node.meta.get("custom") or {}).get(_STAGE) == UPDATE:
                tag = UPDATE
            elif tag != UPDATE:
                tag = node.meta.get("partitioner_tag", tag)
            node.meta["partitioner_tag"] = tag


@contextlib.contextmanager
def _explained(what: str) -> Iterator[None]:
    """GraphError, with the reason, where PyTorch cannot trace; what the user's code raises stays."""
    try:
        yield
    except (GuardOnDataDependentSymNode, DataDependent, DynamicShape, Unfakeable) as error:
        reason = str(error).strip().partition("\n")[0]
        raise GraphError(
            f"{what} cannot be traced into one graph: {type(error).__name__}: {reason}; a step that branches "
            "on the value of a tensor has to be compiled in parts: torch.compile(model, backend='dtr')"
        ) from error


@contextlib.contextmanager
def _attributes_as_before(model: nn.Module) -> Iterator[None]:
    """GraphError where the forward pass sets attributes of modules: a graph would not do so."""
    before = [(module, dict(vars(module))) for module in model.modules()]
    try:
        yield
    finally:
        changed = [
            (module, name)
            for module, attributes in before
            for name, value in vars(module).items()
            if _is_state(value) and attributes.get(name) is not value
        ]
        for module, attributes in before:
            vars(module).clear()
            vars(module).update(attributes)
    for module, name in changed:
        raise GraphError(
            f"{type(module).__name__}.{name} is set in the forward pass, which one graph for all steps does "
            "not: register it as a buffer, which holds a tensor, or return it"
        )


def _is_state(value: object) -> bool:
    return isinstance(value, Tensor) or type(value) in PLAIN


def _no_autocast(batch: Iterable[Tensor]) -> contextlib.AbstractContextManager[Any]:
    """The passes were traced with what autocast asks for."""
    stack = contextlib.ExitStack()
    for device in {"cpu", *(tensor.device.type for tensor in batch)}:
        if torch.amp.is_autocast_available(device):
            stack.enter_context(torch.autocast(device, enabled=False))
    return stack
