"""Defaults of the backend's options: from the program, ``dtr_fx.config``, or from the environment."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

_LIMITS = {"budget", "max_overhead"}


@dataclass(slots=True)
class Config:
    """What an option is where ``torch.compile`` is not told; see ``Options``.

    ``dtr_fx.config.budget = "60%"`` serves whoever cannot hand options over.  None leaves an option to the
    environment: ``DTR_BUDGET``, ``DTR_MAX_OVERHEAD``, ``DTR_PLANNER``, ``DTR_COUNT``, ``DTR_CACHE``.
    """

    budget: float | int | str | None = None
    max_overhead: float | str | None = None
    planner: str | None = None
    count: str | None = None
    cache: str | bool | None = None


config = Config()


def defaults(given: Mapping[str, Any]) -> Iterator[tuple[str, Any, str]]:
    """Name, value and origin of each option that is not given; of the two limits a given one stands alone."""
    is_limited = not _LIMITS.isdisjoint(given)
    for name in (field.name for field in fields(Config)):
        if name in given or (is_limited and name in _LIMITS):
            continue
        variable = f"DTR_{name.upper()}"
        value = getattr(config, name)
        if value is not None:
            yield name, value, f"dtr_fx.config.{name}"
        elif os.environ.get(variable):
            yield name, os.environ[variable], variable
