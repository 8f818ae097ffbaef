"""The Drop node: where a storage is given up that will be recomputed later.

It is a call of ``drop``, registered as having an effect so that dead-code elimination leaves it in
place.  It does nothing when run: it is the last reader of its argument, and generated code frees a
value after its last reader.
"""

from __future__ import annotations

from typing import Any

from torch.fx import Graph
from torch.fx.node import has_side_effect


@has_side_effect
def drop(value: Any) -> None:
    """Give up ``value``; nothing reads it, or a view of it, after this."""


def lower_drops(graph: Graph) -> None:
    """Take the Drop nodes out, for an executor.

    Requires: a rewritten graph.  Ensures: the same liveness, since every later reader of a dropped value
    reads its recomputed copy.
    """
    for node in graph.find_nodes(op="call_function", target=drop):
        graph.erase_node(node)
