"""The plans of one graph over budgets, as data."""

from __future__ import annotations

from dataclasses import dataclass

from dtr_fx.errors import OptionError


@dataclass(frozen=True)
class CurvePoint:
    """A plan: the budget it was made for and the peak that it reaches, in bytes, and its extra compute.

    ``overhead`` is a share of the graph's own compute: 0.1 is 10% more.  ``least_overhead`` is that of
    ``Report``.
    """

    budget: int
    peak: int
    overhead: float
    least_overhead: float | None = None


@dataclass(frozen=True)
class Curve:
    """The plans of one graph, from the largest budget down; a larger one never costs more.

    ``baseline_peak`` is the peak of the graph as it is, ``constants`` its inputs and parameters and
    ``lower_bound`` what no plan can do without, all in bytes; ``base_cost`` are the seconds of the graph.
    """

    points: tuple[CurvePoint, ...]
    baseline_peak: int
    constants: int
    lower_bound: int
    base_cost: float

    def within(self, max_overhead: float) -> CurvePoint:
        """The point of the lowest peak whose overhead is not above ``max_overhead``, 0 or more."""
        if not max_overhead >= 0:
            raise OptionError(f"max_overhead={max_overhead!r}: write a share of the graph's own compute, 0.1")
        points = (point for point in self.points if point.overhead <= max_overhead)
        return min(points, key=lambda point: point.peak)
