"""What the user marked with ``torch.utils.checkpoint``: AOTAutograd's tags on the operators of its regions.

They are read as PyTorch's partitioner reads them (``cleanup_recompute_tags``, torch 2.15).
"""

from __future__ import annotations

from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from dtr_fx.errors import GraphError
from dtr_fx.passes.tensors import is_backward
from dtr_fx.torch_private import HigherOrderOperator

_AGAIN = (CheckpointPolicy.MUST_RECOMPUTE, CheckpointPolicy.PREFER_RECOMPUTE)


def mark_of(node: Node) -> CheckpointPolicy | None:
    """The policy of a forward operator.

    None at the end of a region that another follows, or that has a backward hook: that is saved.
    """
    policy: CheckpointPolicy | None = node.meta.get("recompute")
    if not asks_again(node):
        return policy
    region = node.meta.get("ac_graph_id", 0)
    inside = list(filter(asks_again, node.users))
    is_entered = any(user.meta.get("ac_graph_id", region) > region for user in inside)
    is_hooked = not inside and node.meta.get("has_backward_hook", False)
    return None if is_entered or is_hooked or is_backward(node) else policy


def asks_again(node: Node) -> bool:
    """True if the operator is marked to run again, be it at the end of its region or not."""
    return node.meta.get("recompute") in _AGAIN


def runs_again(node: Node) -> bool:
    """True if the user wants the operator run again for the backward pass."""
    return mark_of(node) in _AGAIN


def saves_inputs(node: Node) -> bool:
    """True if autograd saves what the operator reads: a checkpoint's, or one that a hint has run again."""
    return mark_of(node) is not None and (asks_again(node) or "dtr_hint" not in node.meta)


def is_marked(gm: GraphModule) -> bool:
    """True if an operator has a policy."""
    return any(map(mark_of, gm.graph.nodes))


def check_marks(gm: GraphModule) -> None:
    """Raise GraphError where an operator with effects must be recomputed: it runs once, in its order."""
    for node in gm.graph.nodes:
        has_effect = isinstance(node.target, HigherOrderOperator) and node.target.name() == "with_effects"
        if has_effect and mark_of(node) is CheckpointPolicy.MUST_RECOMPUTE:
            raise GraphError(
                f"{node.args[1]} has effects and runs once, but a policy marks it MUST_RECOMPUTE: "
                "let the policy return PREFER_RECOMPUTE or MUST_SAVE for it"
            )
