"""Shapes of every node, by running the graph on fake tensors that share storages as the nodes do.

What was run here has its mutations, randomness and FLOPs in ``meta["dtr_facts"]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch.fx import GraphModule, Interpreter, Node
from torch.utils.flop_counter import flop_registry

from dtr_fx.errors import GraphError
from dtr_fx.passes import rng
from dtr_fx.passes.contract import VALUES, Pass
from dtr_fx.passes.effects import undeclared_writes
from dtr_fx.passes.modes import fake_mode_of_values, static_mode
from dtr_fx.passes.subgraphs import is_higher_order
from dtr_fx.passes.tensors import is_selection, storage_key, tensors_of
from dtr_fx.torch_private import (
    FakeTensor,
    FakeTensorMode,
    OpOverload,
    TorchDispatchMode,
    pytree,
    schema_of,
    version_of,
)
from dtr_fx.units import format_count


@dataclass(frozen=True)
class Facts:
    """The effect of one node, as it ran on fake tensors."""

    flops: int
    is_random: bool
    mutates: tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class Propagate(Pass):
    """See ``propagate``."""

    example_inputs: Sequence[Any] | None = None

    name = "propagate"
    ensures = (VALUES,)

    def call(self, gm: GraphModule) -> bool:
        propagate(gm, self.example_inputs)
        return False


def propagate(gm: GraphModule, example_inputs: Sequence[Any] | None) -> None:
    """Give every node its fake value, by running the graph where it has none.

    ``GraphError`` if the graph has neither shapes nor example inputs, or does not run on them.
    """
    if example_inputs is None:
        for node in gm.graph.nodes:
            if node.op.startswith("call") and "val" not in node.meta:
                if node.users:
                    raise GraphError(
                        f"node {node.name} has no shape: pass example_inputs=(...) so that shapes can be "
                        "propagated, or trace with make_fx, torch.export or torch.compile"
                    )
                # It is there for its effect: a check of torch.export's, a Drop.
                node.meta["val"] = None
        if _show_storages(gm):
            return
        example_inputs = _inputs_of(gm)
    _check_inputs(gm, example_inputs)
    mode = fake_mode_of_values(example_inputs) or static_mode()
    around = torch.nn.Module()  # through which ``functional_call`` can put fake parameters in the graph
    around.gm, around.forward = gm, _Recorder(gm, mode).run
    with mode, torch.no_grad():
        inputs = pytree.tree_map_only(torch.Tensor, mode.from_tensor, tuple(example_inputs))
        named = [*around.named_parameters(), *around.named_buffers()]
        state: dict[str, torch.Tensor] = {name: mode.from_tensor(tensor) for name, tensor in named}
        try:
            torch.func.functional_call(around, state, inputs)
        except Exception as error:
            raise GraphError(f"the graph does not run on the example inputs: {error}") from error


def _check_inputs(gm: GraphModule, given: Sequence[Any]) -> None:
    """Raise GraphError where the example inputs are not of the number or the sizes that the graph takes."""
    nodes = gm.graph.find_nodes(op="placeholder")
    required = sum(not node.args for node in nodes)  # an argument is a default
    if isinstance(given, torch.Tensor) or not required <= len(given) <= len(nodes):
        count = "one tensor" if isinstance(given, torch.Tensor) else format_count(len(given), "value")
        names = ", ".join(node.name for node in nodes)
        raise GraphError(f"example_inputs is {count}; give a tuple of {len(nodes)}: ({names})")
    for node, value in zip(nodes, given):
        known = node.meta.get("val")
        if isinstance(known, torch.Tensor) and isinstance(value, torch.Tensor):
            sizes = zip(known.shape, value.shape, strict=False)
            differs = any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in sizes)
            if differs or known.dim() != value.dim():
                raise GraphError(
                    f"example input {node.name} has shape {tuple(value.shape)}, the graph was traced for "
                    f"{tuple(known.shape)}: give such a tensor, or trace the model anew"
                )


def _show_storages(gm: GraphModule) -> bool:
    """True if the values that the nodes have show which nodes share memory.

    Those that make_fx leaves do not where it ran on real tensors (each node has its own) nor for parameters
    (each reading of one has its own).
    """
    attributes: dict[str, set[int]] = {}
    for node in gm.graph.nodes:
        made = {storage_key(tensor) for tensor in tensors_of(node.meta.get("val"))}
        if node.op == "get_attr":
            if attributes.setdefault(str(node.target), made) != made:
                return False
            if not made and isinstance(attrgetter(str(node.target))(gm), torch.Tensor):
                return False
        elif made and (is_selection(node) or _declares_alias(node.target)):
            read = [tensor for used in node.all_input_nodes for tensor in tensors_of(used.meta.get("val"))]
            if made.isdisjoint(map(storage_key, read)):
                return False
    return True


def _declares_alias(target: Any) -> bool:
    returns = schema_of(target).returns if isinstance(target, OpOverload) else ()
    return any(result.alias_info is not None for result in returns)


def _inputs_of(gm: GraphModule) -> list[Any]:
    """The values of the graph's inputs, in one mode."""
    values = [node.meta.get("val") for node in gm.graph.find_nodes(op="placeholder")]
    if len({id(value.fake_mode) for value in values if isinstance(value, FakeTensor)}) <= 1:
        return values
    with static_mode():
        return [
            torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
            if isinstance(value, FakeTensor)
            else value
            for value in values
        ]


class _Recorder(Interpreter):
    def __init__(self, gm: GraphModule, mode: FakeTensorMode) -> None:
        super().__init__(gm)
        self._mode = mode

    def fetch_attr(self, target: str) -> Any:
        """A tensor, neither parameter nor buffer, is still real; reading it again gives the same fake one."""
        value = super().fetch_attr(target)
        is_real = isinstance(value, torch.Tensor) and not isinstance(value, FakeTensor)
        return self._mode.from_tensor(value) if is_real else value

    def run_node(self, n: Node) -> Any:
        args = [] if n.op == "output" else self._reachable_tensors(n)
        versions = list(map(version_of, args))
        with _Watch() as watch:
            value = super().run_node(n)
        n.meta["val"] = value
        if is_higher_order(n):  # what is inside says what it does
            return value
        written = [tensor for tensor, version in zip(args, versions) if version_of(tensor) != version]
        n.meta["dtr_facts"] = Facts(watch.flops, watch.is_random, (*written, *watch.undeclared_writes))
        return value

    def _reachable_tensors(self, n: Node) -> list[torch.Tensor]:
        """Every tensor that the node could change: its arguments and its module's state."""
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        tensors = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if n.op == "call_module":
            module = self.fetch_attr(str(n.target))
            tensors += [*module.parameters(), *module.buffers()]
        return tensors


class _Watch(TorchDispatchMode):
    """Counts FLOPs and notices random operators and undeclared writes below one node."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.undeclared_writes: list[torch.Tensor] = []
        self.flops = 0
        self.is_random = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        value = func(*args, **kwargs)
        if not isinstance(func, OpOverload):
            return value
        self.undeclared_writes += tensors_of(undeclared_writes(func, args, kwargs))
        self.is_random |= rng.draws(func, args, kwargs)
        formula = flop_registry.get(func.overloadpacket)
        if formula is not None:
            self.flops += int(formula(*args, **kwargs, out_val=value))
        return value
