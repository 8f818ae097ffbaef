"""DTR against static planners: Figure 3, overhead against memory.

The networks are small enough to be planned optimally, and of the paper's kinds, an operator for each layer
and direction.  Operator graphs of logs come beside them, for the planners that are quick enough on their
size.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from dtr_fx.lab import planners
from dtr_fx.lab.figures import style
from dtr_fx.lab.networks import Layer, linear, residual, training_step, unet
from dtr_fx.lab.sweep import run_tasks
from dtr_fx.runtime import Plan
from dtr_fx.runtime.program import Program

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# An exact planner gets that many seconds for a budget.
SECONDS = 20.0
# DTR gives up when it recomputes more than that many times the program; far less is shown.
MAX_RECOMPUTE = 4.0
BUDGETS = 10
_MOST_SHOWN = 1.6

Verdict = Literal["optimal", "planned", "no plan", "not tried"]
Planner = Callable[[planners.OperatorGraph, float], "Plan | planners.Solution"]

_DTR = ("dtr", "dtr-eq", "lru")
COMPARED: dict[str, Planner] = {
    "Checkmate": partial(planners.solve_checkmate, seconds=SECONDS),
    "MOCCASIN": partial(planners.solve_moccasin, seconds=SECONDS),
    **{name: partial(planners.plan_dtr, heuristic=name, max_recompute=MAX_RECOMPUTE) for name in _DTR},
    **planners.PLANNERS,
}
_EXACT = ("Checkmate", "MOCCASIN")

# The most operators that a planner is tried on: exact ones hardly get further in their time, and those that
# try many segments take minutes.
LARGEST = {"Checkmate": 64, "MOCCASIN": 64, "Chen greedy": 600, "Revolve": 600}

_LOOKS = {
    "Checkmate": style.Look("Checkmate", "#000000", "*"),
    "MOCCASIN": style.Look("MOCCASIN", "#888888", "X"),
    **style.heuristic_looks(_DTR),
    "Chen √N": style.Look("Chen √N", "#332288", "^"),
    "Chen greedy": style.Look("Chen greedy", "#44AA99", ">"),
    "Revolve": style.Look("Revolve", "#CC6677", "<"),
}

# Curves that often lie on those before them.
_DASHES = {"MOCCASIN": "dotted", "dtr-eq": "dashed"}


@dataclass(frozen=True)
class Planned:
    """The outcome of a planner on a graph of ``operators`` under a budget; what is not known is None.

    ``budget`` and ``peak`` are bytes, constants aside, ``ratio`` is the budget over the graph's own peak,
    ``overhead`` total over base cost.  No plan of the planner's kind is below ``bound``.
    """

    graph: str
    operators: int
    planner: str
    budget: int
    ratio: float
    outcome: Verdict
    overhead: float | None = None
    bound: float | None = None
    peak: int | None = None
    seconds: float = 0.0
    reason: str = ""


def networks() -> list[planners.OperatorGraph]:
    """The networks that the figure is drawn from when no log is at hand."""
    return [planners.OperatorGraph.of(network) for network in (linear(16), vgg16(), residual(6), unet(3))]


def vgg16() -> Program:
    """VGG-16 on an image of 224 × 224, in bytes and megaflops (Simonyan and Zisserman, 2015, table 1, D)."""
    stack: list[Layer] = []

    def add(name: str, cost: float, values: int) -> None:
        stack.append(Layer(name, (len(stack) - 1,) if stack else (), cost=cost / 1e6, size=4 * values))

    channels, side = 3, 224
    for block, (width, layers) in enumerate(((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)), 1):
        for layer in range(1, layers + 1):
            add(f"conv{block}_{layer}", 2 * 9 * channels * width * side**2, width * side**2)
            channels = width
        side //= 2
        add(f"pool{block}", 4 * channels * side**2, channels * side**2)
    values = channels * side**2
    for number, width in enumerate((4096, 4096, 1000), 6):
        add(f"fc{number}", 2 * values * width, width)
        values = width
    return training_step("VGG-16", stack)


def budgets(graph: planners.OperatorGraph) -> list[int]:
    """Evenly from below the graph's own peak down to what no plan can do without."""
    room = graph.peak - graph.floor
    return list(dict.fromkeys(graph.floor + room * step // BUDGETS for step in reversed(range(BUDGETS))))


class PlannerComparison:
    """Every planner on every graph under every budget, ``len(comparison)`` tasks, and their ``results``."""

    def __init__(self, graphs: Sequence[planners.OperatorGraph]) -> None:
        self.graphs = list(graphs)
        self._tasks = [
            (graph, planner, budget) for graph in graphs for planner in COMPARED for budget in budgets(graph)
        ]
        self.results: list[Planned] = []

    def __len__(self) -> int:
        return len(self._tasks)

    def run(
        self, *, processes: int | None = None, advance: Callable[[int], None] = lambda done: None
    ) -> None:
        """Plan; ``processes`` and ``advance`` are as for ``run_tasks``."""
        self.results = run_tasks(lambda number: _plan(*self._tasks[number]), len(self), processes, advance)


def _plan(graph: planners.OperatorGraph, planner: str, budget: int) -> Planned:
    about = Planned(graph.name, len(graph), planner, budget, budget / graph.peak, "no plan")
    if len(graph) > LARGEST.get(planner, len(graph)):
        reason = f"not tried on more than {LARGEST[planner]} operators"
        return replace(about, outcome="not tried", reason=reason)
    start = time.perf_counter()
    try:
        found = COMPARED[planner](graph, budget)
        plan = found.require() if isinstance(found, planners.Solution) else found
    except planners.CannotPlan as error:
        return replace(about, seconds=time.perf_counter() - start, reason=str(error))
    seconds = time.perf_counter() - start
    cost = planners.check(graph, plan, budget)
    solution = found if isinstance(found, planners.Solution) else None
    return replace(
        about,
        outcome="optimal" if solution and solution.optimal else "planned",
        overhead=_over_base(cost.total, graph),
        bound=_over_base(solution.bound, graph) if solution else None,
        peak=cost.peak,
        seconds=seconds,
    )


def _over_base(cost: float, graph: planners.OperatorGraph) -> float:
    return cost / graph.cost if graph.cost else 1.0


def plot_overheads(
    graphs: Sequence[planners.OperatorGraph], results: Sequence[Planned], title: str
) -> Figure:
    """A panel for each graph, a curve for each planner, hollow where an exact one proves no optimum."""
    titles = [f"{graph.name} ({len(graph)} operators)" for graph in graphs]
    figure, axes = style.ratio_panels(titles, title, "overhead (total / base cost)")
    for graph, panel in zip(graphs, axes):
        floor = graph.floor / graph.peak
        panel.set(ylim=(0.98, _MOST_SHOWN), xlim=(floor - 0.1 * (1 - floor), 1.01))
        panel.axvspan(0, floor, facecolor=style.LIGHT, linewidth=0)
        for planner in COMPARED:
            own = [result for result in results if (result.graph, result.planner) == (graph.name, planner)]
            _draw(panel, planner, own)
    drawn = {result.planner for result in results if result.overhead is not None}
    lines = [style.line_entry(**_strokes(planner)) for planner in COMPARED if planner in drawn]
    ends = [style.ending_entry("x", "no plan"), style.area_entry("no plan can do with less", style.LIGHT)]
    style.legend_below(figure, [*lines, *ends])
    return figure


def _draw(axes: Axes, planner: str, results: Sequence[Planned]) -> None:
    """A planner's curve; ``results`` come by their budget."""
    color, marker = _LOOKS[planner].color, _LOOKS[planner].marker
    ratios, overheads = _points(results)
    axes.plot(ratios, overheads, **_strokes(planner), zorder=3)
    below = [result.ratio for result in results if ratios and result.ratio < ratios[-1]]
    if below:
        style.draw_ending(axes, color, (ratios[-1], below[0]), overheads[-1:] * 2)
        axes.plot(below[:1], overheads[-1:], color=color, marker="x", markersize=5.5, zorder=4)
    unproved = _points([result for result in results if planner in _EXACT and result.outcome != "optimal"])
    hollow: dict[str, Any] = {"markerfacecolor": "#FFFFFF", "markeredgecolor": color}
    axes.plot(*unproved, linestyle="none", marker=marker, **hollow, zorder=5)


def _points(results: Sequence[Planned]) -> tuple[list[float], list[float]]:
    ended = [(result.ratio, result.overhead) for result in results if result.overhead is not None]
    return [ratio for ratio, _ in ended], [overhead for _, overhead in ended]


def _strokes(planner: str) -> dict[str, Any]:
    rank = list(COMPARED).index(planner)
    return {**style.strokes(_LOOKS[planner], rank, len(COMPARED)), "linestyle": _DASHES.get(planner, "solid")}
