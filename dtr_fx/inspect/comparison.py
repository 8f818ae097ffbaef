"""The curve of a training step beside other ways to run it; terminal, HTML, JSON and CSV are views of it."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass

from dtr_fx.report import Curve
from dtr_fx.units import format_bytes, format_seconds

NAMES = {
    "eager": "eager",
    "checkpoint": "checkpoint per block",
    "partitioner": "PyTorch's partitioner",
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

    @property
    def top(self) -> float:
        """The highest overhead to draw: the smallest budgets can cost several times what the others do."""
        marks = [mark.overhead for mark in self.marks]
        points = [point.overhead for point in self.curve.points]
        return min(max(*marks, *points, 0.01), max(2 * max(marks, default=0.0), 0.5))

    @property
    def bottom(self) -> float:
        """The lowest overhead, 0 at most: a partitioner that merges operators can save compute."""
        return min([mark.overhead for mark in self.marks] + [0.0])


def legs(curve: Curve) -> Iterator[tuple[int, int, float]]:
    """From each budget of the curve to the next larger one, and the overhead in between."""
    larger = curve.points[0]
    for point in curve.points[1:]:
        yield point.budget, larger.budget, point.overhead
        larger = point


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
