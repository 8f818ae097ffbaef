"""DTR against the optimum, without transfers and with them, on small networks that exact planners solve."""

from __future__ import annotations

import itertools
import json
import math
import random
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

from dtr_fx.cli.bench.goals import Goal
from dtr_fx.cli.output import tracked
from dtr_fx.errors import CommandError
from dtr_fx.inspect.table import table
from dtr_fx.lab import networks
from dtr_fx.lab.planners import (
    MOVERS,
    Gap,
    Mover,
    OperatorGraph,
    TransferGap,
    find_gap,
    find_transfer_gap,
    training_chain,
)
from dtr_fx.lab.planners.gaps import SEARCH
from dtr_fx.units import format_percent

SHARES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4)
TRANSFER_SHARES = (0.8, 0.65, 0.5)
RATIOS = (0.3, 1.0, 3.0)
DEFAULTS = ("dtr", "dtr-eq", "next-use", SEARCH)


def results(
    graphs: Sequence[OperatorGraph], shares: Sequence[float], heuristics: Sequence[str], seconds: float
) -> Iterator[Gap]:
    """DTR's cost above the optimum; ``seconds`` are for each exact planner."""
    for graph, share in tracked("optima", list(itertools.product(graphs, shares))):
        yield find_gap(graph, share, heuristics, seconds)


def summary(found: Sequence[Gap]) -> str:
    each = [
        {
            "network": gap.graph,
            "operators": gap.operators,
            "budget": format_percent(gap.share),
            "optimum": _optimum(gap),
            "proved by": _prover(gap),
            **{heuristic: _above(gap, heuristic) for heuristic in gap.dtr},
        }
        for gap in found
        if gap.budget >= gap.floor
    ]
    proved = [gap for gap in found if gap.optimal]
    rows = [
        {
            "above the optimum": heuristic,
            "average": f"{statistics.mean(above):+.1%}",
            "at worst": f"{max(above):+.1%}",
            "planned": f"{len(above)} of {len(proved)}",
        }
        for heuristic in found[0].dtr
        if (above := _gaps(proved, heuristic))
    ]
    none = "every network has an operator that alone exceeds these budgets"
    return f"{table(each, text=('proved by',)) or none}\n\n{table(rows)}".rstrip()


def goals(found: Iterable[Gap]) -> list[Goal]:
    """The search's goal, over all cases whose optimum is proved; none where there is nothing to judge."""
    proved = [gap for gap in found if gap.optimal and SEARCH in gap.dtr]
    above = _gaps(proved, SEARCH)
    if not above:
        return []
    average, most = statistics.mean(above), max(above)
    goal = "optimum: every proved case planned, at most 1.0% of cost above it on average, 3.0% at worst"
    worst = f"{average:+.1%}, {most:+.1%}, {len(above)} of {len(proved)} planned"
    return [Goal(goal, worst, average <= 0.01 and most <= 0.03 and len(above) == len(proved))]


def small_networks() -> list[OperatorGraph]:
    """Training steps of 16 to 62 operators."""
    residual, unet, tree = networks.residual, networks.unet, networks.tree
    programs = [residual(4), residual(8), unet(2), unet(3), tree(3), tree(4)]
    programs += [networks.random_dag(12, seed) for seed in range(3)]
    graphs = [training_chain(8), training_chain(16), *map(OperatorGraph.of, programs)]
    return [*graphs, *(_with_random_costs(graph, seed) for seed, graph in enumerate(graphs))]


def _with_random_costs(graph: OperatorGraph, seed: int) -> OperatorGraph:
    """The graph with costs and sizes between 1 and 10."""
    draw = random.Random(seed)
    nodes = tuple(node._replace(cost=draw.randint(1, 10), size=draw.randint(1, 10)) for node in graph.nodes)
    return replace(graph, name=f"{graph.name}, random costs", nodes=nodes)


def _gaps(proved: Iterable[Gap], heuristic: str) -> list[float]:
    """The costs above the optimum of the cases that are planned."""
    return [gap.gap(heuristic) for gap in proved if math.isfinite(gap.dtr[heuristic])]


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
    return f"{gap.gap(heuristic):+.1%}" if gap.optimal else f"× {gap.dtr[heuristic] / gap.cost:.3f}"


# With transfers


def transfer_results(
    graphs: Sequence[OperatorGraph],
    shares: Sequence[float],
    seconds: float,
    planners: Mapping[str, Mover] = MOVERS,
    ratios: Sequence[float] = RATIOS,
    resume: Path | None = None,
) -> Iterator[TransferGap]:
    """The planners' times above the optimum with transfers; ``seconds`` are for the optimum.

    Cases that are in the file ``resume`` are taken from there, and others added to it.
    """
    cases = list(itertools.product(graphs, shares, ratios))
    known = {(gap.graph, gap.share, gap.ratio): gap for gap in _kept(resume)}
    for graph, share, ratio in tracked("optima with transfers", cases):
        gap = known.get((graph.name, share, ratio))
        if gap is None:
            gap = find_transfer_gap(graph, share, ratio, planners, seconds)
            if gap is not None and resume is not None:
                with resume.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(asdict(gap)) + "\n")
        if gap is not None:
            yield gap


def _kept(resume: Path | None) -> list[TransferGap]:
    if resume is None or not resume.exists():
        return []
    try:
        return [TransferGap(**json.loads(line)) for line in resume.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError, TypeError):
        raise CommandError(f"--resume {resume}: not a file that this option wrote") from None


def transfer_row(gap: TransferGap) -> str:
    optimum = f"{'' if gap.optimal else '≥ '}× {gap.bound / gap.cost:.3f}"
    ends = ", ".join(f"{name} × {end / gap.cost:.3f}" for name, end in gap.plans.items())
    case = f"{gap.graph}, {format_percent(gap.share)}, transfer × {gap.ratio:g}"
    return f"{case}: optimum {optimum} in {gap.seconds:.1f} s; {ends}"


def transfer_summary(found: Sequence[TransferGap]) -> str:
    each = [
        {
            "program": gap.graph,
            "operators": gap.operators,
            "budget": format_percent(gap.share),
            "transfer": f"× {gap.ratio:g}",
            "optimum": f"{'' if gap.optimal else '≥ '}× {gap.bound / gap.cost:.3f}",
            "seconds": f"{gap.seconds:.1f}",
            **{name: f"× {end / gap.cost:.3f}" for name, end in gap.plans.items()},
        }
        for gap in found
    ]
    rows = [
        {
            "planner": planner,
            "transfer": f"× {ratio:g}",
            "average": f"{statistics.mean(above):+.1%}",
            "at worst": f"{max(above):+.1%}",
            "planned": f"{len(above)} of {len(proved)}",
        }
        for planner in (found[0].plans if found else ())
        for ratio in sorted({gap.ratio for gap in found})
        if (proved := [gap for gap in found if gap.optimal and gap.ratio == ratio])
        and (above := [gap.gap(planner) for gap in proved if math.isfinite(gap.plans[planner])])
    ]
    return f"{table(each)}\n\n{table(rows, text=('planner',))}".rstrip()


def transfer_goals(found: Iterable[TransferGap]) -> list[Goal]:
    """The search's goal, over all cases whose optimum is proved; none where there is nothing to judge."""
    above = [gap.gap(SEARCH) for gap in found if gap.optimal and SEARCH in gap.plans]
    if not above:
        return []
    average, most = statistics.mean(above), max(above)
    goal = "transfers: every proved case planned, at most 1.0% above the optimum on average, 5.0% at worst"
    return [Goal(goal, f"{average:+.1%}, {most:+.1%}", average <= 0.01 and most <= 0.05)]


TRANSFERS = SimpleNamespace(each=transfer_row, summary=transfer_summary, goals=transfer_goals)
"""The part of the benchmark that compares with the optimum with transfers."""


def small_programs() -> list[OperatorGraph]:
    """Training steps of 10 to 17 operators."""
    programs = [networks.unet(1), networks.residual(2), networks.residual(3), networks.tree(2)]
    programs += [networks.random_dag(5, seed) for seed in range(4)]
    programs += [networks.random_dag(6, seed) for seed in range(4)]
    chains = [training_chain(layers) for layers in (5, 6, 8)]
    graphs = [*chains, *map(OperatorGraph.of, programs)]
    return [*graphs, *(_with_random_costs(graph, seed) for seed, graph in enumerate(graphs[:7]))]
