"""A plan as tags for PyTorch's partitioner, which then splits the joint graph."""

from __future__ import annotations

from typing import Any

from torch.fx import GraphModule
from torch.utils.checkpoint import CheckpointPolicy

from dtr_fx.errors import GraphError
from dtr_fx.inspect.views import Report
from dtr_fx.passes.drops import LowerDrops
from dtr_fx.passes.marking import mark_hints
from dtr_fx.passes.marks import check_marks
from dtr_fx.passes.roles import origin_name, role
from dtr_fx.passes.split import prepare
from dtr_fx.passes.tensors import is_backward
from dtr_fx.passes.updates import prepare_inference
from dtr_fx.planning.options import Options
from dtr_fx.planning.planning import copy_of
from dtr_fx.planning.rewrite import rewrite
from dtr_fx.runtime.steps import COMPUTE, RECOMPUTE


def tag(joint: GraphModule, budget: float | int | str = 1.0, **options: Any) -> Report:
    """Plan a joint graph, and mark its operators for a partitioner, or a pass, that obeys marks.

    The graph is AOTAutograd's, or has its own backward pass, as PyTorch marks it from 2.13 on.

    An operator of the forward pass gets ``CheckpointPolicy.MUST_RECOMPUTE`` in ``meta["recompute"]`` if the
    plan recomputes it in the backward pass, ``MUST_SAVE`` if the backward pass reads what was kept; all else
    stays as it is.  PyTorch's min-cut partitioner then saves what the plan does, and places recomputes
    itself, so that the peak may be above the report's.  Options and errors are those of ``partition_fn``;
    a graph without a backward pass is a ``GraphError``.
    """
    chosen = Options.from_mapping({"budget": budget, **options})
    planned = copy_of(joint)
    mark_hints(planned, chosen.policy)
    if any(is_backward(node) for node in planned.graph.find_nodes(op="placeholder")):
        prepare(planned, ())
    else:
        check_marks(planned)
        prepare_inference(planned)
        if not any(map(is_backward, planned.graph.nodes)):
            raise GraphError(
                "the graph has no backward pass to recompute in: tag takes AOTAutograd's joint graph, or one "
                "that PyTorch 2.13 or later traced with its backward pass; dtr_fx.transform plans any graph"
            )
    report = rewrite(planned, chosen)
    LowerDrops().call(planned)
    nodes = list(planned.graph.nodes)
    kept = {
        origin_name(read)
        for node in nodes
        if is_backward(node) and node.op != "output"
        for read in node.all_input_nodes
        if not is_backward(read) and role(read) == COMPUTE
    }
    again = {origin_name(node) for node in nodes if role(node) == RECOMPUTE and is_backward(node)} - kept
    for node in joint.graph.nodes:
        if node.op == "call_function" and node.name in kept | again:
            must = CheckpointPolicy.MUST_SAVE if node.name in kept else CheckpointPolicy.MUST_RECOMPUTE
            node.meta["recompute"] = must
            node.meta["ac_graph_id"] = 0
    return report
