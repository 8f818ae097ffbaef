"""Marks of the user's hints on the operators of a graph."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase

from torch.fx import GraphModule, Node
from torch.utils.checkpoint import CheckpointPolicy

from dtr_fx.passes.effects import may_run_twice
from dtr_fx.passes.hints import POLICIES, REGION, SAID, Hint, is_budget, module_stack, plain_path
from dtr_fx.passes.marks import asks_again
from dtr_fx.passes.tensors import is_backward, is_view, storage_keys


def mark_hints(joint: GraphModule, hints: Sequence[Hint], names: Mapping[str, str] | None = None) -> None:
    """Mark the forward operators of AOTAutograd's joint graph as hints say; others keep the user's marks.

    Dynamo's paths begin with the module that is traced: another is known by the ``names`` that the model has
    for its id, too, and itself by that for ``""``.  What is said of a tensor goes before what is said of a
    region, this before modules, and of these the most exact.  Each call of a module that is recomputed is a
    region of its own to ``mark_of``, as if it were checkpointed: its result is saved if the next one runs
    again.
    """
    nodes = [node for node in joint.graph.nodes if node.op == "call_function"]
    ends = [at for at, node in enumerate(nodes) if node.meta.get("partitioner_tag") == "is_forward"]
    forward = [node for node in nodes[: ends[-1] + 1] if not is_backward(node)] if ends else []
    said = {node: word for node in forward if (word := node.meta.get("custom", {}).get(SAID))}
    if not hints and not said:
        return
    regions: dict[object, int] = {}
    hints = sorted(hints, key=_exactness, reverse=True)
    find = functools.cache(functools.partial(_covering, hints, names or {}))
    for node in forward:
        stack = (("", ""), *((call, str(path)) for call, (path, _) in module_stack(node).items()))
        hint, called = find(node.meta.get("custom", {}).get(REGION), stack)
        if hint is not None:
            _mark(node, hint)
        if asks_again(node):
            entered = called if hint is not None else node.meta.get("ac_graph_id", 0)
            node.meta["ac_graph_id"] = regions.setdefault(entered, len(regions))
    for view, word in reversed(said.items()):
        makers = list(_makers(view))
        for maker in makers:
            _mark(maker, (f"{makers[-1].name} (in the code)", word))
            later = (user.meta.get("ac_graph_id", 0) for user in maker.users if asks_again(user))
            maker.meta["ac_graph_id"] = max(later, default=len(regions))


def _covering(
    hints: Sequence[Hint], names: Mapping[str, str], region: str | None, stack: Sequence[tuple[str, str]]
) -> tuple[Hint | None, str]:
    """The hint for an operator, and the outermost call, else the region, that any hint has recomputed."""

    def covers(hint: Hint, call: str, path: str) -> bool:
        in_variable = re.sub(r"^[LG]\['\w+'\]", "", path)
        known_as = plain_path(path), plain_path(in_variable), names.get(call.partition("@")[0], "")
        return any(_covers(hint[0], name) for name in known_as)

    again = [hint for hint in hints if hint[1].endswith("recompute")]
    outermost = (call for call, path in stack if any(covers(hint, call, path) for hint in again))
    inside = [hint for hint in hints if region and _covers(hint[0], region)]
    inside += [hint for hint in hints if any(covers(hint, *entered) for entered in stack)]
    return next(iter(inside), None), next(outermost, region or "")


def _exactness(hint: Hint) -> tuple[int, int]:
    """More parts are more exact, then fewer that stand for many."""
    return hint[0].count("."), -sum("*" in part or "-" in part for part in hint[0].split("."))


def _covers(pattern: str, path: str) -> bool:
    """True if a path is one that the pattern names, or is inside of it."""
    parts, names = pattern.split("."), path.split(".")
    return bool(path) and len(parts) <= len(names) and all(map(_is_name, parts, names))


def _is_name(part: str, name: str) -> bool:
    first, _, last = part.partition("-")
    if last:
        return name.isdecimal() and int(first) <= int(name) <= int(last)
    return fnmatchcase(name, part)


def _mark(node: Node, hint: Hint) -> None:
    """Of a view there is nothing to keep, and what runs once is not run again."""
    if is_budget(hint):
        node.meta["dtr_hint"] = hint
        return
    policy = POLICIES[hint[1]]
    if may_run_twice(node) and not (is_view(node) and policy is CheckpointPolicy.MUST_SAVE):
        node.meta.update(recompute=policy, dtr_hint=hint)


def _makers(view: Node) -> Iterator[Node]:
    """The operators that make what a view shows: one makes it, others may have taken views before."""
    keys, node = set(storage_keys(view)), view
    while makers := [used for used in node.all_input_nodes if not keys.isdisjoint(storage_keys(used))]:
        node = makers[0]
        if node.op == "call_function":
            yield node
