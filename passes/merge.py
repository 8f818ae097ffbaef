"""Operators that compute the same twice, merged into one; a detached tensor is the tensor.

Requires: ``meta["val"]`` on every node and, in a joint graph, ``partitioner_tag``; within a pass, no read of
an input after it is written to.
Ensures: the same results from fewer operators; no storage is carried from one pass into the other for it.

PyTorch's own (``torch._functorch.compile_utils.fx_graph_cse``, read on 2.13) takes two attentions with
dropout for one, and saves values for the backward pass.
"""

from __future__ import annotations

import torch
from torch.fx import GraphModule, Node

from dtr_fx.passes import rng
from dtr_fx.passes.contract import ORDER, VALUES, Pass
from dtr_fx.passes.effects import may_run_twice
from dtr_fx.passes.tensors import storage_keys


class MergeDuplicates(Pass):
    """Let the first of some operators with the same arguments in the same pass stand for all of them.

    Autograd detaches what it saves; a graph records no gradients, so there a detached tensor is the tensor.
    """

    name = "merge duplicates"
    requires = (VALUES, ORDER)

    def call(self, gm: GraphModule) -> bool:
        before = len(gm.graph.nodes)
        returned = {key for node in gm.graph.output_node().all_input_nodes for key in storage_keys(node)}
        first: dict[tuple[object, ...], Node] = {}
        for node in list(gm.graph.nodes):
            if node.op != "call_function" or rng.is_random(node) or not may_run_twice(node):
                continue
            if not returned.isdisjoint(storage_keys(node)):
                continue
            if node.target is torch.ops.aten.detach.default:
                node.replace_all_uses_with(node.all_input_nodes[0])
                gm.graph.erase_node(node)
                continue
            # By its text, since 1, 1.0 and True are equal; nodes are named apart.
            arguments = repr((node.args, node.kwargs))
            same = first.setdefault((node.target, arguments, node.meta.get("partitioner_tag")), node)
            if same is not node:
                node.replace_all_uses_with(same)
                gm.graph.erase_node(node)
        return len(gm.graph.nodes) < before
