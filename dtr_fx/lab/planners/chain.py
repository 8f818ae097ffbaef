"""The training chain on which optima are known."""

from __future__ import annotations

from dtr_fx.lab.planners.graph import Node, OperatorGraph


def training_chain(layers: int) -> OperatorGraph:
    """A chain of layers f_0 … f_{N-1} and its gradients b_{N-1} … b_0, 2N operators of one byte each.

    A layer costs 1.  A gradient reads its layer's result, the result of the layer behind it and the gradient
    of that one, and costs 2; the first, b_{N-1}, reads its layer's result alone and costs 1.  The peak is
    N + 2, every plan needs 4, and the cost is 3N - 1, for two layers or more.

    Raises
    ------
    ValueError
        No layers.

    >>> chain = training_chain(12)
    >>> len(chain), chain.peak, chain.floor, chain.cost
    (24, 14, 4, 35.0)
    """
    if layers < 1:
        raise ValueError(f"layers is {layers}; it must be at least 1")
    nodes = [Node(f"f{layer}", 1.0, 1, (layer - 1,) if layer else ()) for layer in range(layers)]
    for layer in reversed(range(layers)):
        if layer == layers - 1:
            nodes.append(Node(f"b{layer}", 1.0, 1, (layer,)))
        else:
            nodes.append(Node(f"b{layer}", 2.0, 1, (layer, layer + 1, len(nodes) - 1)))
    return OperatorGraph(f"chain of {layers}", tuple(nodes), layers, frozenset({2 * layers - 1}))
