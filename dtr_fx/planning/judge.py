"""The peak and the cost of any pair of forward and backward graphs, by one rule for all of them.

The pair is joined into the one graph that a training step runs, which is read as ``transform`` reads its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch.fx import GraphModule, Node

from dtr_fx.costs import roofline as cost_model
from dtr_fx.costs.workspaces import workspaces
from dtr_fx.errors import GraphError
from dtr_fx.passes import rng, storages
from dtr_fx.passes.drops import drop
from dtr_fx.passes.join import join
from dtr_fx.passes.liveness import liveness
from dtr_fx.passes.propagate import propagate
from dtr_fx.passes.tensors import graph_device
from dtr_fx.runtime.steps import COMPUTE


@dataclass(frozen=True)
class Judgement:
    """The memory and compute of a training step.

    ``peak`` and ``constants`` (the inputs and parameters that it reads) are bytes, ``cost`` is seconds of
    compute. ``operator`` names the node that runs at the peak.
    """

    peak: int
    constants: int
    cost: float
    operator: str

    @property
    def above_constants(self) -> int:
        """Bytes of the peak that are neither inputs nor parameters."""
        return self.peak - self.constants

    def overhead(self, eager: Judgement) -> float:
        """Extra compute over that of the eager step: 0.1 is 10% more."""
        return self.cost / eager.cost - 1 if eager.cost else 0.0


def judge(
    forward: GraphModule,
    backward: GraphModule | None = None,
    *,
    costs: str | cost_model.Cost | Mapping[Any, float] = "roofline",
) -> Judgement:
    """The peak and the cost of a training step that runs ``forward``, then ``backward``.

    Inputs and parameters are resident throughout, tangents from the start of the backward pass, outputs and
    gradients from their computation to the end. A saved activation is freed after its last use in the
    backward pass, as boxed code does it. Operators count the bytes that they take for themselves; views and
    saved states of generators cost nothing, a recompute costs what its origin does.

    The graphs are as AOTAutograd's partitioners leave them: with shapes in ``meta["val"]``, the inputs of the
    backward graph named as what the forward graph returns for them; those with other names are tangents. A
    lone graph is judged alone: a joint graph, one for inference, or any other. ``costs`` are as for
    ``transform``. Costs that cannot be understood are an OptionError, a graph without shapes or operators is
    a GraphError.

    The input is a constant of 1 MiB; its sine and the cosine of that are 1 MiB each.

    >>>     >>> from torch.fx.experimental.proxy_tensor import make_fx
    >>> gm = make_fx(lambda x: x.sin().cos(), tracing_mode="fake")(torch.ones(512, 512))
    >>> found = judge(gm)
    >>> found.constants // 2**20, found.above_constants // 2**20
    (1, 2)
    """
    step = join(forward, backward)
    propagate(step, None)
    operators = [node for node in step.graph.nodes if node.op.startswith("call")]
    if not operators:
        raise GraphError("the graph has no operators: there is nothing to judge")
    device = graph_device(step)
    workspace = workspaces(node for node in operators if "dtr" not in node.meta)
    cost = cost_model.resolve(costs, device)
    nodes = {node.name: node for node in step.graph.nodes}

    def by_origin(node: Node) -> float:
        """A recompute or a kept copy costs what the plan says, which is by its origin."""
        facts = node.meta.get("dtr")
        if node.target in (drop, rng.save_state):
            return 0.0
        return cost(nodes.get(facts["origin"], node) if facts else node)

    program = storages.analyze(step, device, by_origin, workspace)
    workspace_of = {node.name: nbytes for node, nbytes in workspace.items()}
    peak = max(liveness(step, workspace_of, device), key=lambda point: point.live)
    # Analysis adds what a plan would save or keep; this graph runs only its own nodes.
    seconds = sum(run.cost for run in program.calls if run.role == COMPUTE)
    return Judgement(peak.live, program.constant_bytes, seconds, peak.name)
