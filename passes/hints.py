"""What the user says of parts of a model: that they are kept, or recomputed, or may take so many bytes.

A hint names modules by path, or regions of the code, and becomes a mark on their forward operators, which
every plan obeys as it does those of ``torch.utils.checkpoint``; for budgets of parts see ``planning.parts``.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from fnmatch import fnmatchcase
from typing import cast

import torch
from torch.fx import GraphModule, Node
from torch.fx.traceback import annotate
from torch.utils.checkpoint import CheckpointPolicy

from dtr_fx.passes.effects import may_run_twice
from dtr_fx.passes.marks import asks_again
from dtr_fx.passes.tensors import is_backward, is_view, storage_keys
from dtr_fx.units import parse_bytes, parse_percent

# A pattern, or what is said in the code, and one of the words below, or as ``budget 2GiB`` a part's budget.
Hint = tuple[str, str]

POLICIES = {
    "keep": CheckpointPolicy.MUST_SAVE,
    "prefer keep": CheckpointPolicy.PREFER_SAVE,
    "recompute": CheckpointPolicy.MUST_RECOMPUTE,
    "prefer recompute": CheckpointPolicy.PREFER_RECOMPUTE,
}
BUDGET = "budget "
_REGION, _SAID = "dtr_region", "dtr_said"


def keep(tensor: torch.Tensor, *, hard: bool = True) -> torch.Tensor:
    """The tensor; a compiled step does not compute it again, or if not ``hard`` does so at twice its cost."""
    return _said("keep" if hard else "prefer keep", tensor)


def drop(tensor: torch.Tensor, *, hard: bool = True) -> torch.Tensor:
    """The tensor; a compiled step lets it go until the backward pass, or if not ``hard`` does so first."""
    return _said("recompute" if hard else "prefer recompute", tensor)


def region(name: str) -> AbstractContextManager[None]:
    """Operators inside are of the region ``name``, which a pattern of the option ``policy`` can name."""
    return annotate({_REGION: name})


def _said(word: str, tensor: torch.Tensor) -> torch.Tensor:
    if not torch.compiler.is_compiling():
        return tensor
    with annotate({_SAID: word}):  # on views of its own, which Inductor does not take out, as it does others
        return tensor.unsqueeze(0).squeeze(0)


def is_budget(hint: Hint) -> bool:
    """True if a hint gives a part a budget."""
    return hint[1].startswith(BUDGET)


def part_budget(hint: Hint, taken: int) -> int:
    """The bytes of a part that takes so many without a plan."""
    budget = hint[1].removeprefix(BUDGET)
    return int(parse_percent(budget) * taken) if "%" in budget else parse_bytes(budget)


def hint_of(node: Node) -> Hint | None:
    """The hint that marked an operator."""
    return cast("Hint | None", node.meta.get("dtr_hint"))


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
    said = {node: word for node in forward if (word := node.meta.get("custom", {}).get(_SAID))}
    if not hints and not said:
        return
    regions: dict[object, int] = {}
    hints = sorted(hints, key=_exactness, reverse=True)
    find = functools.cache(functools.partial(_covering, hints, names or {}))
    for node in forward:
        stack = (("", ""), *((call, str(path)) for call, (path, _) in module_stack(node).items()))
        hint, called = find(node.meta.get("custom", {}).get(_REGION), stack)
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


def module_stack(node: Node) -> dict[str, tuple[str, object]]:
    """The calls of modules that an operator runs in, the outermost first; in backward, its forward's."""
    return node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}


@functools.lru_cache(maxsize=4096)
def plain_path(path: str) -> str:
    """Without what Dynamo puts around the names: ``L['self'].blocks[0]`` is ``blocks.0``."""
    return ".".join(name for name in re.findall(r"\w+", path) if name not in ("L", "self", "_modules"))
