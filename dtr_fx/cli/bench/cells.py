"""What ``dtr-fx bench device`` measures: parts of cases, each of which is a cell of its file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from dtr_fx.cli.bench import Rows


@dataclass(frozen=True)
class Cell:
    """A case that was measured: its ``rows``, or the ``failure`` that it ended in."""

    part: str
    case: tuple[str, ...]
    rows: Rows
    failure: str = ""


Cells: TypeAlias = "dict[tuple[str, ...], Cell]"
"""By part and case."""


@dataclass(frozen=True)
class Part:
    """Cases in an order in which each comes after those whose cells it needs, and the text of all of them."""

    name: str
    cases: Sequence[tuple[str, ...]]
    measure: Callable[[tuple[str, ...], Cells], Rows]
    text: Callable[[Cells], str]


def failed(cell: Cell | None) -> bool:
    """True if the case is to be measured, still or again."""
    return cell is None or bool(cell.failure)


def instead(cell: Cell | None) -> str:
    """What stands for a cell that has no rows; empty if there are some."""
    if cell is None:
        return "not yet"
    return cell.failure.split(":", 1)[0]
