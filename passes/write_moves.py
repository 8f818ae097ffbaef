"""A plan with transfers, written into the FX graph: nodes that move storages out and bring them back."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import torch
from torch.fx import GraphModule, Node

from dtr_fx.passes import transfers
from dtr_fx.passes.roles import role
from dtr_fx.passes.storages import GraphProgram
from dtr_fx.passes.tensors import empty_like, view_like
from dtr_fx.passes.write import PROVENANCE, Write, Writer
from dtr_fx.runtime import Plan, Step
from dtr_fx.runtime.steps import OFFLOAD, RELOAD
from dtr_fx.torch_private import rename


@dataclass(frozen=True)
class WriteMoves(Write):
    """As ``Write``, with what the plan moves to the ``tier`` (see ``tiers``) and back."""

    tier: str

    def call(self, gm: GraphModule) -> bool:
        _Mover(gm, self.program, self.plan, self.tier).run()
        return True


class _Mover(Writer):
    def __init__(self, gm: GraphModule, program: GraphProgram, plan: Plan, tier: str) -> None:
        super().__init__(gm, program, plan)
        self._tier = tier
        self._handle: dict[int, Node] = {}

    def _transfer(self, step: Step) -> None:
        """Move a storage out, bring it back, or wait for either."""
        origin = self._holder[step.storage]
        value = self._newest_of(origin)
        target, arguments, result = self._transfer_call(step, origin, value)
        with self._graph.inserting_before(self._anchor):
            node = self._graph.call_function(target, arguments)
        node.meta["val"] = result
        rename(node, f"{origin.name}_{step.kind}")
        if target in (transfers.reload, transfers.wait_reload):
            self._newest[origin] = node
            self._origin[node] = origin
        else:
            self._handle[step.storage] = node
        if step.kind == RELOAD:
            self._resident.add(step.storage)
            node.meta |= {key: fact for key, fact in origin.meta.items() if key in PROVENANCE}
        self._describe(node, role=step.kind, origin=origin.name, seconds=step.seconds)

    def _transfer_call(self, step: Step, origin: Node, value: Node) -> tuple[Any, tuple[Any, ...], Any]:
        """The function, its arguments, and the fake value that it returns."""
        if step.kind == OFFLOAD:
            return transfers.offload, (value, self._tier), self._handle_value()
        handle = self._handle[step.storage]
        if step.kind == RELOAD:
            like = origin.meta["val"]
            layout = [*like.shape], [*like.stride()], like.dtype, str(like.device)
            return transfers.reload, (handle, *layout), empty_like(like)
        if role(value) == RELOAD:
            again = view_like(value.meta["val"], value.meta["val"])
            return transfers.wait_reload, (value, handle), again
        return transfers.wait_offload, (handle, value), handle.meta["val"]

    def _handle_value(self) -> torch.Tensor:
        with self._mode or contextlib.nullcontext():
            return torch.empty(1, dtype=torch.int64)
