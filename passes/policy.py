"""The option ``policy``: hints by pattern, as a user writes them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from dtr_fx.errors import OptionError, did_you_mean
from dtr_fx.passes.hints import BUDGET, POLICIES, Hint
from dtr_fx.units import parse_bytes, parse_percent

_PART = r"(?:[\w*]+|\d+-\d+)"


def parse_policy(given: Any) -> tuple[Hint, ...]:
    """The hints that a user wrote, by pattern; OptionError for what cannot be understood."""
    try:
        hints = dict(given or {})
    except (TypeError, ValueError):
        raise OptionError(f"policy={given!r}: write a dictionary, {{'blocks.*': 'recompute'}}") from None
    for pattern, word in hints.items():
        if not (isinstance(pattern, str) and re.fullmatch(rf"{_PART}(\.{_PART})*", pattern)):
            why = "write a module's path, 'blocks.0.attn'; '*' is any name, '0-3' a range"
            raise OptionError(f"policy: {pattern!r} is no pattern: {why}")
        if isinstance(word, Mapping):
            hints[pattern] = word = _spelled(word["budget"]) if list(word) == ["budget"] else word
        if isinstance(word, str) and word.startswith(BUDGET):
            _check_budget(pattern, word.removeprefix(BUDGET))
        elif word not in list(POLICIES):
            known = [*POLICIES, "{'budget': '2GiB'}"]
            raise OptionError(f"policy[{pattern!r}]={word!r}: unknown{did_you_mean(word, known)}")
    return tuple(hints.items())


def _spelled(budget: object) -> str:
    if isinstance(budget, int) and not isinstance(budget, bool):
        return f"{BUDGET}{budget}B"
    return BUDGET + (f"{100 * budget:g}%" if isinstance(budget, float) else str(budget))


def _check_budget(pattern: str, budget: str) -> None:
    try:
        size = parse_percent(budget) if "%" in budget else parse_bytes(budget)
    except ValueError as error:
        raise OptionError(f"policy[{pattern!r}]: budget={budget!r}: {error}") from None
    if not (0 < size <= 1 if "%" in budget else size >= 1):
        why = "write bytes, '2GiB', or a share of what the part takes, '50%'"
        raise OptionError(f"policy[{pattern!r}]: budget={budget!r}: {why}")
