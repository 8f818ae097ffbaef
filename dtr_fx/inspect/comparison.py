"""The curve of a training step beside other ways to run it, and its views: terminal, page, JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from html import escape
from itertools import groupby, pairwise
from string import Template
from typing import Any

from dtr_fx.inspect.html import Choice, asset, render, row
from dtr_fx.inspect.text import BLOCKS, BOLD, DIM, YELLOW, Ink
from dtr_fx.report import Report
from dtr_fx.report.curve import Curve, CurvePoint
from dtr_fx.units import format_bytes, format_percent, format_seconds

NAMES = {
    "eager": "eager",
    "checkpoint": "checkpoint per block",
    "sqrt": "checkpoint √n",
    "partitioner": "PyTorch's partitioner",
    "inductor": "Inductor before fusion",
    "optimum": "optimum",
}


@dataclass(frozen=True)
class Mark:
    """Another way to run the step, at the peak in bytes that it reaches, and its overhead.

    ``kind`` is a key of ``NAMES``; ``setting`` tells those of a kind apart.
    """

    kind: str
    setting: str
    peak: int
    overhead: float


@dataclass(frozen=True)
class Comparison:
    """``operators`` is how many the step has; ``notes`` say what is missing, or meant otherwise."""

    name: str
    operators: int
    curve: Curve
    marks: tuple[Mark, ...]
    notes: tuple[str, ...]

    @property
    def title(self) -> str:
        curve = self.curve
        return (
            f"{self.name}: {self.operators} operators, {format_seconds(curve.base_cost)} of compute, "
            f"peak {format_bytes(curve.baseline_peak)}, {format_bytes(curve.constants)} of it inputs and "
            f"parameters, lower bound {format_bytes(curve.lower_bound)}"
        )

    @property
    def kinds(self) -> list[str]:
        """The kinds of marks that there are, each once."""
        return list(dict.fromkeys(mark.kind for mark in self.marks))

    @property
    def rows(self) -> list[tuple[str, str, int | None, int, float]]:
        """Kind, setting, budget, peak and overhead of our plans, then of the marks, which have no budget."""
        ours = [("dtr", "", point.budget, point.peak, point.overhead) for point in self.curve.points]
        return ours + [(mark.kind, mark.setting, None, mark.peak, mark.overhead) for mark in self.marks]

    def share(self, nbytes: int) -> float:
        """Of the step's own peak, inputs and parameters in both."""
        return nbytes / self.curve.baseline_peak

    def ours(self, peak: int) -> str:
        """The least overhead of our plans that need no more than a peak."""
        fitting = [point.overhead for point in self.curve.points if point.peak <= peak]
        return format_percent(min(fitting)) if fitting else "no plan"

    @property
    def top(self) -> float:
        """The highest overhead to draw: the smallest budgets can cost several times what the others do."""
        marks = [mark.overhead for mark in self.marks]
        points = [point.overhead for point in self.curve.points]
        return min(max(*marks, *points, 0.01), max(2 * max(marks, default=0.0), 0.5))


def _legs(curve: Curve) -> Iterator[tuple[int, int, float]]:
    """From each budget of the curve to the next larger one, and the overhead in between."""
    for larger, point in pairwise(curve.points):
        yield point.budget, larger.budget, point.overhead


def to_json(comparison: Comparison) -> str:
    """All that the comparison holds."""
    return json.dumps(asdict(comparison), indent=1) + "\n"


def to_csv(comparison: Comparison) -> str:
    """A row for each point and mark: bytes, and shares of the step's own peak and compute."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("kind", "setting", "budget", "peak", "share_of_peak", "overhead"))
    for *named, peak, overhead in comparison.rows:
        writer.writerow((*named, peak, comparison.share(peak), overhead))
    return text.getvalue()


# As text

_LETTERS = {"eager": "E", "checkpoint": "C", "sqrt": "S", "partitioner": "P", "inductor": "I", "optimum": "o"}
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
    # Rounded up: what costs something is seen.
    heights = [math.ceil(8 * overhead / unit - 1e-9) for overhead in _bars(comparison, columns)]
    letters = _letters(comparison, columns, unit)
    for level in reversed(range(_ROWS)):
        cells = (
            letters.get((level, column)) or BLOCKS[min(max(height - 8 * level, 0), 8)]
            for column, height in enumerate(heights)
        )
        runs = groupby(cells, key=_OVER.__contains__)
        drawn = (ink(YELLOW if is_mark else "", "".join(run)) for is_mark, run in runs)
        label = format_percent((level + 1) * unit) if level % 3 == 2 else ""
        yield f"{label:>{_MARGIN - 2}} ┤" + "".join(drawn)


def _bars(comparison: Comparison, columns: int) -> Iterator[float]:
    """The overhead at the budget in the middle of each column, 0 where no plan fits."""
    steps = list(_legs(comparison.curve))
    for column in range(columns):
        budget = comparison.curve.baseline_peak * (column + 0.5) / columns
        yield next((overhead for low, high, overhead in steps if low <= budget < high), 0.0)


def _letters(comparison: Comparison, columns: int, unit: float) -> dict[tuple[int, int], str]:
    """By row and column; the curve that leaves the picture is marked at its upper edge."""
    letters = {
        (_ROWS - 1, _column(comparison, low, columns)): _ABOVE
        for low, _, overhead in _legs(comparison.curve)
        if overhead > comparison.top
    }
    # Eager last: a partitioner that is told to keep all is at the same place.
    for mark in sorted(comparison.marks, key=lambda mark: -[*_LETTERS].index(mark.kind)):
        level = min(max(int(mark.overhead / unit), 0), _ROWS - 1)
        letters[level, _column(comparison, mark.peak, columns)] = _LETTERS[mark.kind]
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
    return f"{'0%':>{_MARGIN - 2}} └{''.join(rule)}\n{'':{_MARGIN}}{''.join(ticks)}"


def _key(comparison: Comparison) -> str:
    low = comparison.curve.points[-1]
    letters = [f"{_LETTERS[kind]} {NAMES[kind]}" for kind in comparison.kinds]
    beyond = [f"{_ABOVE} above the picture"] if low.overhead > comparison.top else []
    smallest = f"{format_bytes(low.budget)} = {format_percent(comparison.share(low.budget))}"
    whole = format_bytes(comparison.curve.baseline_peak)
    return "   ".join((f"budget, of {whole}; no plan below {smallest}\n█ dtr", *letters, *beyond))


# As a page on which to decide: the curve, a slider over some of its plans, and all that is to be seen of each


_RIVAL = '<li><svg viewBox="-7 -7 14 14" aria-hidden="true"><path class="rival {kind}"/></svg>{name}</li>'


def decision_page(comparison: Comparison, reports: Sequence[Report], command: str = "") -> str:
    """The page of plans at some budgets of the curve, from the largest to the smallest."""
    plan_at = {report.budget: number for number, report in enumerate(reports)}
    # At first the least memory that costs no more than a tenth, or the first plan that takes less at all.
    cheap = (at for at, report in enumerate(reports) if report.overhead <= 0.1)
    first = min(max([1, *cheap]), len(reports) - 1)
    html = Template(asset("curve.html")).substitute(
        subject=escape(comparison.title),
        rivals="\n".join(_RIVAL.format(kind=kind, name=NAMES[kind]) for kind in comparison.kinds),
        points="\n".join(_table(comparison, plan_at)),
        notes="\n".join(f"<p>{escape(note)}</p>" for note in comparison.notes),
    )
    return render(reports, command=command, choice=Choice(html, _data(comparison, plan_at), first))


def _data(comparison: Comparison, plan_at: Mapping[int, int]) -> dict[str, Any]:
    """What ``assets/curve.js`` draws; a point that the slider has names its plan."""
    curve = comparison.curve
    points = (
        {"budget": point.budget, "plan": plan_at.get(point.budget), **_texts(comparison, point, point.budget)}
        for point in curve.points
    )
    marks = (
        {
            "kind": mark.kind,
            "name": _name(mark.kind, mark.setting),
            "ours": comparison.ours(mark.peak),
            **_texts(comparison, mark),
        }
        for mark in comparison.marks
    )
    return {
        "whole": curve.baseline_peak,
        "bound": curve.lower_bound,
        "boundText": format_bytes(curve.lower_bound),
        "top": comparison.top,
        "points": list(points),
        "marks": list(marks),
    }


def _texts(comparison: Comparison, at: CurvePoint | Mark, budget: int | None = None) -> dict[str, Any]:
    texts = {
        "peak": format_bytes(at.peak),
        "share": format_percent(comparison.share(at.peak)),
        "overhead": format_percent(at.overhead),
    }
    if budget is not None:
        texts["budget"] = f"{format_percent(comparison.share(budget))} = {format_bytes(budget)}"
    return {"peak": at.peak, "overhead": at.overhead, "texts": texts}


def _table(comparison: Comparison, plan_at: Mapping[int, int]) -> Iterator[str]:
    """The points in words, with a button for each that the slider has."""
    yield "<thead>" + row("th", ("", "budget", "peak", "of the own peak", "extra compute")) + "</thead>"
    for kind, setting, budget, peak, overhead in comparison.rows:
        asked = "" if budget is None else format_bytes(budget)
        percents = format_percent(comparison.share(peak)), format_percent(overhead)
        name = escape(_name(kind, setting))
        if budget is not None and budget in plan_at:
            name = f'<button type="button" value="{plan_at[budget]}">dtr</button>'
        yield f"<tr><td>{name}</td>{row('td', (asked, format_bytes(peak), *percents)).removeprefix('<tr>')}"


def _name(kind: str, setting: str) -> str:
    return f"{NAMES.get(kind, kind)} {setting}".strip()
