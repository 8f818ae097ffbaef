"""DTR against static planners: Figure 3, overhead against memory.

The networks are small enough to be planned optimally, and of the paper's kinds: chains, one of them with the
costs and sizes of VGG-16, a residual network and a U-shaped one, an operator for each layer and direction.
Operator graphs of logs come beside them, for the planners that need no solver.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from dtr_fx.planners.checkmate import solve_checkmate
from dtr_fx.planners.chen import plan_chen_greedy, plan_chen_sqrt
from dtr_fx.planners.dtr import plan_dtr
from dtr_fx.planners.graph import OperatorGraph
from dtr_fx.planners.largest_first import plan_largest_first
from dtr_fx.planners.moccasin import solve_moccasin
from dtr_fx.planners.plan import CannotPlan, Plan, check
from dtr_fx.planners.revolve import plan_revolve
from dtr_fx.planners.solution import Solution
from dtr_fx.simulate.networks import Node, linear, residual, training_step, unet
from dtr_fx.simulate.schedule import Schedule

from .slowdowns import MEMORY_RATIO, panel_style
from .style import Look, heuristic_looks, legend_below, panels, strokes

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# An exact planner gets that many seconds for a budget, and graphs of no more operators than that.
SECONDS = 20.0
LARGEST_SOLVED = 64
# Searching planners try an order for each operator, which takes minutes on larger graphs.
LARGEST_PLANNED = 600
BUDGETS = 10
_MOST_SHOWN = 1.6

Outcome = Literal["optimal", "planned", "no plan"]
Planner = Callable[[OperatorGraph, float], "Plan | Solution"]

PLANNERS: dict[str, Planner] = {
    "Checkmate": partial(solve_checkmate, seconds=SECONDS),
    "MOCCASIN": partial(solve_moccasin, seconds=SECONDS),
    "dtr": partial(plan_dtr, heuristic="dtr"),
    "dtr-eq": partial(plan_dtr, heuristic="dtr-eq"),
    "lru": partial(plan_dtr, heuristic="lru"),
    "Chen √N": plan_chen_sqrt,
    "Chen greedy": plan_chen_greedy,
    "Revolve": plan_revolve,
    "largest first": plan_largest_first,
}
_EXACT = ("Checkmate", "MOCCASIN")

_LOOKS = {
    "Checkmate": Look("Checkmate", "#000000", "*"),
    "MOCCASIN": Look("MOCCASIN", "#888888", "X"),
    **heuristic_looks(("dtr", "dtr-eq", "lru")),
    "Chen √N": Look("Chen √N", "#332288", "^"),
    "Chen greedy": Look("Chen greedy", "#44AA99", ">"),
    "Revolve": Look("Revolve", "#CC6677", "<"),
    "largest first": Look("largest first", "#999933", "P"),
}


@dataclass(frozen=True)
class Planned:
    """What a planner came to on a graph of ``operators`` under a budget.

    ``budget`` and ``peak`` are bytes, constants aside, and ``ratio`` is the budget over the graph's own peak.
    ``overhead`` is total over base cost; no plan of the planner's kind is below ``bound``.  What is not known
    is None.  ``seconds`` is wall time, and ``reason`` why there is no plan.
    """

    graph: str
    operators: int
    planner: str
    budget: int
    ratio: float
    outcome: Outcome
    overhead: float | None = None
    bound: float | None = None
    peak: int | None = None
    seconds: float = 0.0
    reason: str = ""


def networks() -> list[OperatorGraph]:
    """The networks that the figure is drawn from when no log is at hand."""
    return [OperatorGraph.of(network) for network in (linear(16), vgg16(), residual(6), unet(3))]


def vgg16() -> Schedule:
    """VGG-16 on one image of 224 × 224: a node a layer, sizes in bytes of float32, costs in megaflops.

    Simonyan and Zisserman, "Very deep convolutional networks" (2015), table 1, column D.
    """
    nodes: list[Node] = []

    def add(name: str, cost: float, values: int) -> None:
        nodes.append(Node(name, (len(nodes) - 1,) if nodes else (), cost=cost / 1e6, size=4 * values))

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
    return training_step("VGG-16", nodes)


def budgets(graph: OperatorGraph) -> list[int]:
    """Evenly from below the graph's own peak down to what no plan can do without."""
    room = graph.peak - graph.floor
    return list(dict.fromkeys(graph.floor + room * step // BUDGETS for step in reversed(range(BUDGETS))))


class Comparison:
    """Every planner on every graph under every budget, ``len(comparison)`` tasks.

    Exact planners are left out on graphs of more than ``LARGEST_SOLVED`` operators, and graphs of more than
    ``LARGEST_PLANNED`` altogether.  ``results`` are there when it has run.
    """

    def __init__(self, graphs: Sequence[OperatorGraph]) -> None:
        self.graphs = [graph for graph in graphs if len(graph) <= LARGEST_PLANNED]
        self._tasks = [
            (graph, planner, budget)
            for graph in self.graphs
            for planner in PLANNERS
            for budget in budgets(graph)
            if planner not in _EXACT or len(graph) <= LARGEST_SOLVED
        ]
        self.results: list[Planned] = []

    def __len__(self) -> int:
        return len(self._tasks)

    def run(self, *, processes: int = 1, watch: Callable[[int], None] = lambda done: None) -> None:
        """Plan, ``processes`` tasks at a time; ``watch`` is told how many are done."""
        if processes > 1 and "fork" in multiprocessing.get_all_start_methods():
            with ProcessPoolExecutor(processes, multiprocessing.get_context("fork")) as pool:
                self._collect(pool.map(_plan, self._tasks), watch)
        else:
            self._collect(map(_plan, self._tasks), watch)

    def _collect(self, results: Iterable[Planned], watch: Callable[[int], None]) -> None:
        for result in results:
            self.results.append(result)
            watch(len(self.results))


def _plan(task: tuple[OperatorGraph, str, int]) -> Planned:
    graph, planner, budget = task
    about = Planned(graph.name, len(graph), planner, budget, budget / graph.peak, "no plan")
    start = time.perf_counter()
    try:
        found = PLANNERS[planner](graph, budget)
        plan = found.require() if isinstance(found, Solution) else found
    except CannotPlan as error:
        return replace(about, seconds=time.perf_counter() - start, reason=str(error))
    seconds = time.perf_counter() - start
    cost = check(graph, plan, budget)
    about = replace(
        about, outcome="planned", overhead=cost.total / graph.cost, peak=cost.peak, seconds=seconds
    )
    if isinstance(found, Solution):
        outcome: Outcome = "optimal" if found.optimal else "planned"
        about = replace(about, outcome=outcome, bound=found.bound / graph.cost)
    return about


def plot_overheads(graphs: Sequence[OperatorGraph], results: Sequence[Planned], title: str) -> Figure:
    """A panel for each graph, a curve for each planner.

    What a planner found but did not prove optimal in its time has a hollow marker, if it is one that proves.

    Raises
    ------
    DTRError
        matplotlib is not installed.
    """
    figure, axes = panels(len(graphs), title, MEMORY_RATIO, "overhead (total / base cost)")
    for graph, panel in zip(graphs, axes):
        floor = graph.floor / graph.peak
        panel_style(panel, f"{graph.name} ({len(graph)} operators)")
        panel.set(ylim=(0.98, _MOST_SHOWN), xlim=(floor - 0.1 * (1 - floor), 1.01))
        panel.axvspan(0, floor, facecolor="#D0D0D0", linewidth=0)
        for planner in PLANNERS:
            own = [result for result in results if (result.graph, result.planner) == (graph.name, planner)]
            _draw(panel, planner, own)
    legend_below(figure, _legend({result.planner for result in results if result.overhead is not None}))
    return figure


def _draw(axes: Axes, planner: str, results: Sequence[Planned]) -> None:
    axes.plot(*_points(results), **_strokes(planner), zorder=3)
    unproved = [result for result in results if planner in _EXACT and result.outcome != "optimal"]
    axes.plot(
        *_points(unproved),
        linestyle="none",
        marker=_LOOKS[planner].marker,
        markerfacecolor="#FFFFFF",
        markeredgecolor=_LOOKS[planner].color,
        zorder=5,
    )


def _points(results: Sequence[Planned]) -> tuple[list[float], list[float]]:
    ended = [(result.ratio, result.overhead) for result in results if result.overhead is not None]
    return [ratio for ratio, _ in ended], [overhead for _, overhead in ended]


def _strokes(planner: str) -> dict[str, Any]:
    rank = list(PLANNERS).index(planner)
    dash = "dotted" if planner == "MOCCASIN" else "solid"
    return {**strokes(_LOOKS[planner], rank, len(PLANNERS)), "linestyle": dash}


def _legend(planners: set[str]) -> list[Any]:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    lines = [Line2D([], [], **_strokes(planner)) for planner in PLANNERS if planner in planners]
    return [*lines, Patch(facecolor="#D0D0D0", label="no plan can do with less")]
