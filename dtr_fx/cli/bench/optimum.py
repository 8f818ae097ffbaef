"""DTR against the optimum, on small networks that exact planners solve.

The networks are training steps of 16 to 62 operators: chains, chains of residual blocks, U-shaped networks,
trees, and random graphs. Checkmate's integer program is tried first, MOCCASIN's constraint program where that
proves nothing in time. For each network and budget this prints the optimum over the cost of the unconstrained
program, who proved it, and by how much DTR's plan under each heuristic costs more; where no optimum is
proved, the cost of the best plan known and of DTR's over that of the program. "None in stages" is Checkmate's
proof that no plan of its kind fits: one that runs no operator twice between two first runs. Budgets that an
operator alone exceeds are left out:

  dtr-fx bench optimum
  dtr-fx bench optimum --shares 70% 40% --heuristic dtr-eq next-use --seconds 10
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import replace

from tabulate import tabulate

from dtr_fx.cli.arguments import seconds, share
from dtr_fx.cli.bench.goals import Goal, goal_table
from dtr_fx.cli.progress import progress
from dtr_fx.lab import networks
from dtr_fx.lab.planners import Gap, OperatorGraph, gaps, training_chain
from dtr_fx.lab.planners.gaps import SEARCH
from dtr_fx.runtime import HEURISTICS
from dtr_fx.units import format_percent

SHARES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4)
SECONDS = 60.0
# Goals of the search: its cost above the optimum.
_AVERAGE, _MOST = 0.01, 0.03
_HEURISTICS = ("dtr", "dtr-eq", "next-use", SEARCH)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--shares",
        nargs="+",
        type=share,
        default=list(SHARES),
        metavar="SHARE",
        help=f"budgets, of each network's peak (default: {' '.join(map(str, SHARES))})",
    )
    parser.add_argument(
        "--heuristic",
        nargs="+",
        choices=(*HEURISTICS, SEARCH),
        default=list(_HEURISTICS),
        metavar="NAME",
        help=f"{', '.join(HEURISTICS)}, or {SEARCH} (default: {' '.join(_HEURISTICS)})",
    )
    parser.add_argument(
        "--seconds",
        type=seconds,
        default=SECONDS,
        metavar="S",
        help="for each exact planner and budget (default: %(default)g)",
    )


def run(arguments: argparse.Namespace) -> None:
    """Carry out the command.

    Raises
    ------
    DTRError
        The exact planners' libraries are not installed.
    """
    found = show(small_networks(), arguments.shares, arguments.heuristic, arguments.seconds)
    if found:
        print(goal_table(found))


def show(
    graphs: Sequence[OperatorGraph], shares: Sequence[float], heuristics: Sequence[str], seconds: float
) -> list[Goal]:
    """Print the tables of some networks and return the goals; ``seconds`` are for each exact planner.

    Raises
    ------
    DTRError
        The exact planners' libraries are not installed.
    """
    found: list[Gap] = []
    with progress("optima", len(graphs) * len(shares)) as watch:
        for gap in gaps(graphs, shares, heuristics, seconds):
            found.append(gap)
            watch(len(found))
    print(_table(found, heuristics), _summary(found, heuristics), sep="\n\n", end="\n\n", flush=True)
    return goals(found)


def goals(found: Iterable[Gap]) -> list[Goal]:
    """The search's goal, over all cases whose optimum is proved; none where there is nothing to judge."""
    proved = [gap for gap in found if gap.optimal and SEARCH in gap.dtr]
    above = [gap.gap(SEARCH) for gap in proved if math.isfinite(gap.dtr[SEARCH])]
    if not above:
        return []
    average, most = statistics.mean(above), max(above)
    return [
        Goal(
            f"optimum: every proved case planned, at most {format_percent(_AVERAGE)} of cost above it "
            f"on average, {format_percent(_MOST)} at worst",
            f"{average:+.1%}, {most:+.1%}, {len(above)} of {len(proved)} planned",
            average <= _AVERAGE and most <= _MOST and len(above) == len(proved),
        )
    ]


def small_networks() -> list[OperatorGraph]:
    """Training steps of 16 to 62 operators."""
    programs = [
        networks.residual(4),
        networks.residual(8),
        networks.unet(2),
        networks.unet(3),
        networks.tree(3),
        networks.tree(4),
        *(networks.random_dag(12, seed) for seed in range(3)),
    ]
    graphs = [training_chain(8), training_chain(16), *map(OperatorGraph.of, programs)]
    return [*graphs, *(_with_random_costs(graph, seed) for seed, graph in enumerate(graphs))]


def _with_random_costs(graph: OperatorGraph, seed: int) -> OperatorGraph:
    """The graph with costs and sizes between 1 and 10."""
    draw = random.Random(seed)
    nodes = tuple(node._replace(cost=draw.randint(1, 10), size=draw.randint(1, 10)) for node in graph.nodes)
    return replace(graph, name=f"{graph.name}, random costs", nodes=nodes)


def _table(found: Iterable[Gap], heuristics: Sequence[str]) -> str:
    rows = [
        {
            "network": gap.graph,
            "operators": gap.operators,
            "budget": format_percent(gap.share),
            "optimum": _optimum(gap),
            "proved by": _prover(gap),
            **{heuristic: _above(gap, heuristic) for heuristic in heuristics},
        }
        for gap in found
        if gap.budget >= gap.floor
    ]
    if not rows:
        return "every network has an operator that alone exceeds these budgets"
    alignment = ["left", "right", "right", "right", "left", *["right"] * len(heuristics)]
    return tabulate(rows, headers="keys", disable_numparse=True, colalign=alignment)


def _optimum(gap: Gap) -> str:
    if not math.isfinite(gap.best):
        return "none found" if math.isfinite(gap.bound) else "none in stages"
    return f"{'' if gap.optimal else '≤ '}× {gap.best / gap.cost:.3f}"


def _prover(gap: Gap) -> str:
    if not math.isfinite(gap.bound):
        return gap.solver
    return f"{gap.solver}, {gap.seconds:.1f} s" if gap.optimal else "not proved"


def _above(gap: Gap, heuristic: str) -> str:
    if not math.isfinite(gap.dtr[heuristic]):
        return "no plan"
    if gap.optimal:
        return f"{gap.gap(heuristic):+.1%}"
    return f"× {gap.dtr[heuristic] / gap.cost:.3f}"


def _summary(found: Iterable[Gap], heuristics: Sequence[str]) -> str:
    proved = [gap for gap in found if gap.optimal]
    rows = []
    for heuristic in heuristics:
        above = [gap.gap(heuristic) for gap in proved if math.isfinite(gap.dtr[heuristic])]
        if above:
            rows.append(
                {
                    "above the optimum": heuristic,
                    "average": f"{statistics.mean(above):+.1%}",
                    "at worst": f"{max(above):+.1%}",
                    "planned": f"{len(above)} of {len(proved)}",
                }
            )
    return tabulate(rows, headers="keys", disable_numparse=True, colalign=["left", *["right"] * 3])
