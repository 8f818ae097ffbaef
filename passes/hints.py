"""What the user says of parts of a model: that they are kept, or recomputed, or may take so many bytes.

A hint names modules by path, or regions of the code, and becomes a mark on their forward operators, which
every plan obeys as it does those of ``torch.utils.checkpoint``; for budgets of parts see ``planning.parts``.
"""

from __future__ import annotations

import functools
import re
from contextlib import AbstractContextManager
from typing import cast

import torch
from torch.fx import GraphModule, Node
from torch.fx.traceback import annotate
from torch.utils.checkpoint import CheckpointPolicy

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
REGION, SAID = "dtr_region", "dtr_said"


def keep(tensor: torch.Tensor, *, hard: bool = True) -> torch.Tensor:
    """The tensor; a compiled step does not compute it again, or if not ``hard`` does so at twice its cost."""
    return _said("keep" if hard else "prefer keep", tensor)


def drop(tensor: torch.Tensor, *, hard: bool = True) -> torch.Tensor:
    """The tensor; a compiled step lets it go until the backward pass, or if not ``hard`` does so first."""
    return _said("recompute" if hard else "prefer recompute", tensor)


def region(name: str) -> AbstractContextManager[None]:
    """Operators inside are of the region ``name``, which a pattern of the option ``policy`` can name."""
    return annotate({REGION: name})


def _said(word: str, tensor: torch.Tensor) -> torch.Tensor:
    if not torch.compiler.is_compiling():
        return tensor
    with annotate({SAID: word}):  # on views of its own, which Inductor does not take out, as it does others
        return tensor.unsqueeze(0).squeeze(0)


def is_budget(hint: Hint) -> bool:
    """True if a hint gives a part a budget."""
    return hint[1].startswith(BUDGET)


def part_budget(hint: Hint, taken: int) -> int:
    """The bytes of a part that takes so many without a plan."""
    budget = hint[1].removeprefix(BUDGET)
    return int(parse_percent(budget) * taken) if "%" in budget else parse_bytes(budget)


def says_something(joint: GraphModule) -> bool:
    """True if the code that a graph was traced from says something of a tensor."""
    return any(SAID in node.meta.get("custom", {}) for node in joint.graph.nodes)


def hint_of(node: Node) -> Hint | None:
    """The hint that marked an operator."""
    return cast("Hint | None", node.meta.get("dtr_hint"))


def module_stack(node: Node) -> dict[str, tuple[str, object]]:
    """The calls of modules that an operator runs in, the outermost first; in backward, its forward's."""
    return node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}


@functools.lru_cache(maxsize=4096)
def plain_path(path: str) -> str:
    """Without what Dynamo puts around the names: ``L['self'].blocks[0]`` is ``blocks.0``."""
    return ".".join(name for name in re.findall(r"\w+", path) if name not in ("L", "self", "_modules"))
