"""Shapes, mutations, randomness and FLOPs of every node, by running the graph on fake tensors.

Requires: example inputs, or ``meta["val"]`` already on every node (AOTAutograd, make_fx, export).
Ensures: ``meta["val"]`` on every node; on graphs that were run here also ``meta["dtr_facts"]``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import GraphModule, Interpreter, Node
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

from dtr_fx.errors import GraphError


@dataclass(frozen=True)
class Facts:
    """What one node did when it ran on fake tensors."""

    flops: int
    is_random: bool
    mutates: tuple[torch.Tensor, ...]


def propagate(gm: GraphModule, example_inputs: Sequence[Any] | None) -> FakeTensorMode | None:
    """Give every node its fake value; return the mode that they belong to.

    Raises
    ------
    GraphError
        The graph has neither shapes nor example inputs, or does not run on them.
    """
    if example_inputs is None:
        _check_has_values(gm)
        return fake_mode_of(gm)
    mode = fake_mode_of_values(example_inputs) or FakeTensorMode(allow_non_fake_inputs=True)
    interpreter = _Propagation(gm)
    with mode, torch.no_grad():
        inputs = pytree.tree_map_only(torch.Tensor, mode.from_tensor, tuple(example_inputs))
        state = {
            name: mode.from_tensor(tensor) for name, tensor in [*gm.named_parameters(), *gm.named_buffers()]
        }
        try:
            torch.func.functional_call(interpreter, {f"gm.{k}": v for k, v in state.items()}, inputs)
        except Exception as error:
            raise GraphError(f"the graph does not run on the example inputs: {error}") from error
    return mode


def fake_mode_of(gm: GraphModule) -> FakeTensorMode | None:
    return fake_mode_of_values(node.meta.get("val") for node in gm.graph.nodes)


def fake_mode_of_values(values: Any) -> FakeTensorMode | None:
    for leaf in pytree.tree_leaves(list(values)):
        if isinstance(leaf, FakeTensor):
            return leaf.fake_mode
    return None


def _check_has_values(gm: GraphModule) -> None:
    for node in gm.graph.nodes:
        if node.op in ("call_function", "call_method", "call_module") and "val" not in node.meta:
            raise GraphError(
                f"node {node.name} has no shape: pass example_inputs=(...) so that shapes can be propagated, "
                "or trace with make_fx, torch.export or torch.compile"
            )


class _Propagation(torch.nn.Module):
    """A module around the graph, so that ``functional_call`` can put fake parameters in it."""

    def __init__(self, gm: GraphModule) -> None:
        super().__init__()
        self.gm = gm

    def forward(self, *inputs: Any) -> Any:
        return _Recorder(self.gm).run(*inputs)


class _Recorder(Interpreter):
    def run_node(self, n: Node) -> Any:
        args = [] if n.op == "output" else self._reachable_tensors(n)
        versions = [tensor._version for tensor in args]
        with _Watch() as watch:
            value = super().run_node(n)
        n.meta["val"] = value
        n.meta["dtr_facts"] = Facts(
            watch.flops,
            watch.is_random,
            tuple(tensor for tensor, version in zip(args, versions) if tensor._version != version),
        )
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
    """Counts FLOPs and notices random operators below one node."""

    def __init__(self) -> None:
        super().__init__()
        self.flops = 0
        self.is_random = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        value = func(*args, **kwargs)
        self.is_random |= torch.Tag.nondeterministic_seeded in func.tags
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.flops += int(formula(*args, **kwargs, out_val=value))
        return value
