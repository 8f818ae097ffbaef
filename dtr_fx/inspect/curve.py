"""A comparison as text: the curve as bars over the budget, other ways to run the step as letters above it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import groupby

from dtr_fx.inspect.comparison import NAMES, Comparison, legs
from dtr_fx.inspect.text import BLOCKS, BOLD, DIM, YELLOW, Ink
from dtr_fx.units import format_bytes, format_percent

_LETTERS = {"eager": "E", "checkpoint": "C", "partitioner": "P", "optimum": "o"}
_ABOVE = "▲"
_OVER = frozenset((*_LETTERS.values(), _ABOVE))  # what is drawn over the bars
_ROWS = 12
_MARGIN = 9  # columns for the overheads at the left
_NARROWEST, _WIDEST = 60, 110


def render_curve(comparison: Comparison, *, width: int = 100, color: bool = False) -> str:
    """Extra compute over the budget, a share of the step's own peak; 60 to 110 columns are taken."""
    ink = Ink(color)
    columns = min(max(width, _NARROWEST), _WIDEST) - _MARGIN - len("00%")
    lines = [ink(BOLD, "extra compute")]
    lines += _rows(comparison, columns, ink)
    lines += [_axis(columns), ink(DIM, _key(comparison))]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _rows(comparison: Comparison, columns: int, ink: Ink) -> Iterator[str]:
    unit = comparison.top / _ROWS
    heights = [_eighths(overhead, unit) for overhead in _bars(comparison, columns)]
    letters = _letters(comparison, columns, unit)
    for row in reversed(range(_ROWS)):
        cells = (
            letters.get((row, column)) or BLOCKS[min(max(height - 8 * row, 0), 8)]
            for column, height in enumerate(heights)
        )
        drawn = (
            ink(YELLOW if is_mark else "", "".join(run))
            for is_mark, run in groupby(cells, key=_OVER.__contains__)
        )
        label = format_percent((row + 1) * unit) if row % 3 == 2 else ""
        yield f"{label:>{_MARGIN - 2}} ┤" + "".join(drawn)


def _eighths(overhead: float, unit: float) -> int:
    """Rounded up: what costs something is seen."""
    return min(math.ceil(8 * overhead / unit - 1e-9), 8 * _ROWS)


def _bars(comparison: Comparison, columns: int) -> list[float]:
    """The overhead at the budget in the middle of each column, 0 where no plan fits."""
    steps = list(legs(comparison.curve))
    whole = comparison.curve.baseline_peak
    budgets = (whole * (column + 0.5) / columns for column in range(columns))
    return [
        next((overhead for low, high, overhead in steps if low <= budget < high), 0.0) for budget in budgets
    ]


def _letters(comparison: Comparison, columns: int, unit: float) -> Mapping[tuple[int, int], str]:
    """By row and column; the curve that leaves the picture is marked at its upper edge."""
    steps = list(legs(comparison.curve))
    letters = {
        (_ROWS - 1, _column(comparison, low, columns)): _ABOVE
        for low, _, overhead in steps
        if overhead > comparison.top
    }
    # Eager last: a partitioner that is told to keep all is at the same place.
    for mark in sorted(comparison.marks, key=lambda mark: -[*_LETTERS].index(mark.kind)):
        row = min(max(int(mark.overhead / unit), 0), _ROWS - 1)
        letters[row, _column(comparison, mark.peak, columns)] = _LETTERS[mark.kind]
    return letters


def _column(comparison: Comparison, nbytes: int, columns: int) -> int:
    return min(int(comparison.share(nbytes) * columns), columns - 1)


def _axis(columns: int) -> str:
    ticks = [" "] * (columns + 4)
    rule = ["─"] * columns
    for percent in range(0, 101, 20):
        column = min(columns * percent // 100, columns - 1)
        rule[column] = "┴"
        ticks[column : column + 4] = f"{percent}%".ljust(4)
    left = " " * (_MARGIN - 2)
    return f"{'0%':>{_MARGIN - 2}} └{''.join(rule)}\n{left}  {''.join(ticks)}"


def _key(comparison: Comparison) -> str:
    curve = comparison.curve
    low = curve.points[-1]
    letters = [f"{_LETTERS[kind]} {NAMES[kind]}" for kind in comparison.kinds]
    beyond = [f"{_ABOVE} above the picture"] if low.overhead > comparison.top else []
    smallest = f"{format_bytes(low.budget)} = {format_percent(comparison.share(low.budget))}"
    whole = format_bytes(curve.baseline_peak)
    return "   ".join((f"budget, of {whole}; no plan below {smallest}\n█ dtr", *letters, *beyond))
