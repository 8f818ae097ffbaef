"""The tables that commands print."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Literal

from tabulate import tabulate


def table(
    rows: Sequence[Mapping[str, object]],
    text: Collection[str] = (),
    widths: Sequence[int | None] | None = None,
    *,
    starts_with: Literal["words", "numbers"] = "words",
) -> str:
    """A row for each mapping, whose keys are the heads of the columns.

    The first column, unless it ``starts_with`` numbers, and those named in ``text`` are words; all others are
    numbers, which end at one edge. Words wider than their column's ``widths`` go on in the next line.

    >>> print(table([{"model": "gpt", "peak": "8 MiB"}, {"model": "lstm", "peak": "12 MiB"}]))
    model      peak
    -------  ------
    gpt       8 MiB
    lstm     12 MiB
    """
    if not rows:
        return ""
    first, *_ = rows[0]
    words = {*text, first} if starts_with == "words" else {*text}
    alignment = ["left" if name in words else "right" for name in rows[0]]
    return str(tabulate(rows, headers="keys", disable_numparse=True, colalign=alignment, maxcolwidths=widths))
