"""A loss over rows, in two steps: what each row contributes, and the sum.

The rows may then run slice by slice.  The sum is the same operator, over what the rows contribute as a matrix
of one column: it adds in the same order, and so the loss keeps its bits.
"""

from __future__ import annotations

import operator
from typing import Any, cast

import torch
from torch.fx import Graph, Node
from torch.fx.node import map_arg

from dtr_fx.passes.tensors import described

_aten = torch.ops.aten
_NONE = 0  # of the reductions: none, mean, sum


def rows_of_loss(graph: Graph, node: Node) -> Node | None:
    """Let ``nll_loss_forward`` add up the rows of another one, put before it; that one, or None.

    None of any other node, of a single or of weighted classes, and where targets of 0 are ignored.
    Requires ``meta["val"]``.
    """
    if node.target != _aten.nll_loss_forward.default:
        return None
    logs, labels, weight, reduction, ignored = node.args
    shape = cast(Node, logs).meta["val"].shape
    if weight is not None or reduction == _NONE or ignored == 0 or len(shape) != 2 or shape[1] == 1:
        return None

    def add(target: Any, *args: Any) -> Node:
        made = graph.call_function(target, args)
        made.meta = described(node, target(*map_arg(args, lambda used: used.meta["val"])))
        return made

    with graph.inserting_before(node), torch.no_grad():
        rows = add(_aten.nll_loss_forward.default, logs, labels, None, _NONE, ignored)
        picked = add(_aten.neg.default, add(operator.getitem, rows, 0))
        column = add(_aten.unsqueeze.default, picked, 1)
        first = add(_aten.masked_fill.Scalar, labels, add(_aten.ne.Scalar, labels, ignored), 0)
    node.args = column, first, None, reduction, ignored
    return rows
