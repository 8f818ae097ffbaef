"""Which tensors are resident when: Figure 5, the linear network of Theorem 3.1 under B = 2⌈√N⌉."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from dtr_fx.lab.figures.style import area_entry, legend_below, line_entry, panels
from dtr_fx.lab.networks import linear
from dtr_fx.lab.theorems import root_budget
from dtr_fx.runtime import Heuristic, Runtime, Step, parameterized
from dtr_fx.runtime.driver import drive
from dtr_fx.runtime.steps import COMPUTE, RECOMPUTE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# The heuristic of the proof (Appendix A): the cost of the evicted neighbourhood over size, without staleness.
COMPUTE_MEMORY = parameterized(staleness=False, cost="exact")

_COLORS = {"not resident": "#FFFFFF", "forward value": "#0072B2", "gradient": "#E69F00"}
_ABSENT, _FORWARD, _GRADIENT = range(3)


@dataclass(frozen=True)
class Interval:
    """Storage ``storage`` is resident from step ``start`` to step ``end - 1``; each step runs an operator."""

    storage: int
    start: int
    end: int


@dataclass(frozen=True)
class LinearTrace:
    """A run of the linear network of ``n`` operators each way.

    Storages 0 … n - 1 are t_1 … t_n, and n … 2n - 1 the gradients t̂_n … t̂_1.  ``steps`` operators ran; the
    first of the backward pass was step ``backward``.
    """

    n: int
    budget: int
    steps: int
    backward: int
    intervals: tuple[Interval, ...]

    def states(self) -> npt.NDArray[np.int8]:
        """Row i, column k: 1 if t_{i+1} was resident while step k ran, 2 if its gradient was, else 0."""
        states = np.zeros((self.n, self.steps), dtype=np.int8)
        for interval in self.intervals:
            is_gradient = interval.storage >= self.n
            row = 2 * self.n - 1 - interval.storage if is_gradient else interval.storage
            cells = states[row, interval.start : interval.end]
            np.maximum(cells, _GRADIENT if is_gradient else _FORWARD, out=cells)
        return states


def trace_linear(
    n: int = 200, heuristic: str | Heuristic = COMPUTE_MEMORY, budget: int | None = None
) -> LinearTrace:
    """Run the network under a budget, ``root_budget(n)`` if none is given."""
    budget = root_budget(n) if budget is None else budget
    runtime = Runtime(budget, heuristic)
    drive(runtime, linear(n))
    ran = [event for event in runtime.steps if event.kind in (COMPUTE, RECOMPUTE)]
    backward = next(step for step, event in enumerate(ran) if event.op == n)
    return LinearTrace(n, budget, len(ran), backward, tuple(_intervals(runtime.steps)))


def _intervals(events: Sequence[Step]) -> list[Interval]:
    """Every operator of the network makes one storage, and both have the same number."""
    since: dict[int, int] = {}
    intervals = []
    steps = 0
    for event in events:
        if event.kind in (COMPUTE, RECOMPUTE):
            since[event.op] = steps
            steps += 1
        else:
            intervals.append(Interval(event.storage, since.pop(event.storage), steps))
    return intervals + [Interval(storage, start, steps) for storage, start in since.items()]


def plot_residency(trace: LinearTrace, title: str) -> Figure:
    """A row for each tensor, a column for each operator that runs."""
    x_label = "operators executed, recomputations included"
    y_label = "tensor $t_i$, and its gradient $\\hat{t}_i$"
    figure, [axes] = panels(1, title, x_label, y_label, size=(8.0, 4.8))
    from matplotlib.colors import ListedColormap

    axes.imshow(
        trace.states(),
        cmap=ListedColormap(list(_COLORS.values())),
        vmin=_ABSENT,
        vmax=_GRADIENT,
        extent=(0, trace.steps, 0.5, trace.n + 0.5),
        origin="lower",
        aspect="auto",
        interpolation="nearest",
    )
    axes.axvline(trace.backward, color="#000000", linewidth=1, linestyle="dashed")
    areas = [area_entry(label, color, edgecolor="#999999") for label, color in _COLORS.items()]
    start = line_entry("backward pass begins", color="#000000", linestyle="dashed")
    legend_below(figure, [*areas, start])
    return figure
