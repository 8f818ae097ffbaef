"""Slowdowns of operator logs that are known: those of the original simulator."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeAlias

from dtr_fx.errors import CommandError

THRASH = 2.0
"""More of its base time no replay takes: the original stops there."""

VERDICTS = {"out of memory": "OOM", "thrash": "thrash"}
"""How the reference calls what a replay comes to."""

Slowdowns: TypeAlias = "dict[str, dict[str, float | str]]"


def read_reference(path: Path) -> dict[str, Slowdowns]:
    """Of each log the slowdown, "OOM" or "thrash", by heuristic and ratio of the peak."""
    try:
        slowdowns = json.loads(path.read_text(encoding="utf-8"))["slowdown"]
        return {
            log: {
                heuristic: {ratio: _expected(ratio, value) for ratio, value in ratios.items()}
                for heuristic, ratios in heuristics.items()
            }
            for log, heuristics in slowdowns.items()
        }
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise CommandError(
            f'{path} is no reference: expected {{"slowdown": {{log: {{heuristic: {{ratio: slowdown}}}}}}}}, '
            'where a slowdown is a number, "OOM" or "thrash"'
        ) from None


def _expected(ratio: str, value: Any) -> float | str:
    if not 0 < float(ratio) <= 1:
        raise ValueError
    if isinstance(value, str):
        return {verdict.lower(): verdict for verdict in VERDICTS.values()}[value.lower()]
    if isinstance(value, bool) or not value >= 1:
        raise ValueError
    return float(value)
