"""Deep budgets: plans of recurrent networks and of chains whose optimum is known, as a table.

python tests/deep.py
python tests/deep.py --smooth lstm_64 gpt lstm_cell     # 40 budgets of each: no cliffs, convex to within 10%
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from dtr_fx.lab import baselines, zoo
from dtr_fx.lab.planners import OperatorGraph, training_chain
from dtr_fx.planning.options import Options
from dtr_fx.planning.planning import Planning
from dtr_fx.runtime import HEURISTICS, Program
from dtr_fx.search import Infeasible, Policy, find_plan
from dtr_fx.torch_private import FakeTensorMode

# Of the LSTM the steps, and budgets in MiB.
_LSTMS = ((64, (32.8, 29.5, 28.5, 26.0)), (48, (47.8,)))
_LENGTHS = (50, 200, 1000)
_SHARES = (0.6, 0.4, 0.2, 0.1, 0.05, 0.02)


class LSTM(nn.Module):
    """A cell of two linear maps in a plain loop; the loss is of the last output alone."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.of_input = nn.Linear(inputs, 4 * hidden)
        self.of_state = nn.Linear(hidden, 4 * hidden, bias=False)

    def forward(self, sequence: Tensor, target: Tensor) -> Tensor:
        h = c = torch.zeros_like(target)
        for x in sequence.unbind():
            enter, forget, new, leave = (self.of_input(x) + self.of_state(h)).chunk(4, 1)
            c = forget.sigmoid() * c + enter.sigmoid() * new.tanh()
            h = leave.sigmoid() * c.tanh()
        return nn.functional.mse_loss(h, target)


def lstm(steps: int, inputs: int = 256, hidden: int = 512, batch: int = 64) -> Program:
    """The program of the LSTM's training step."""
    with FakeTensorMode(allow_non_fake_inputs=True):
        given = torch.randn(steps, batch, inputs), torch.randn(batch, hidden)
        joint = baselines.trace(LSTM(inputs, hidden), given)
    return Planning(joint.planned, Options(cache=False)).graph.program


def chain(layers: int, seed: int | None = None) -> OperatorGraph:
    """A training chain; with a seed, of random sizes and costs, a layer's gradient like the layer."""
    graph = training_chain(layers)
    if seed is None:
        return graph
    dice = random.Random(seed)
    drawn = [(dice.randint(1, 10), dice.randint(1, 10)) for _ in range(layers)]
    nodes = [
        node._replace(cost=node.cost * cost, size=size)
        for node, (cost, size) in zip(graph.nodes, [*drawn, *reversed(drawn)])
    ]
    return replace(graph, name=f"{graph.name}, seed {seed}", nodes=tuple(nodes))


def optima(graph: OperatorGraph, most: int) -> npt.NDArray[np.float64]:
    """The least cost of such a chain for every budget up to ``most``, where kept values stay until read.

    To go back along an interval of layers, with what is before it and behind it there: one layer is computed;
    of more, those up to some layer are, whose value is kept, then the rest is gone back along, then the first
    ones are.  Where all layers are alike, only an interval's length and whether it is the last one count.
    """
    layers = graph.nodes[: graph.backward]
    size, count = [*(node.size for node in layers), 0], len(layers)
    before = [0.0, *accumulate(node.cost for node in layers)]
    alike = len({(node.size, node.cost) for node in layers}) == 1
    table: dict[tuple[int, int], npt.NDArray[np.float64]] = {}

    def known(first: int, end: int) -> npt.NDArray[np.float64]:
        if first == end:
            return np.zeros(most + 1)
        return table[(first, end) if not alike or end == count else (0, end - first)]

    for length in range(1, count + 1):
        for first in range(count - length + 1) if not alike else {0, count - length}:
            end = first + length
            best = np.full(most + 1, np.inf)
            if length == 1:
                best[2 * size[first] + 2 * size[end] :] = before[end] - before[first]
            wide = 0
            for kept in range(first, end - 1):
                wide = max(wide, size[kept] + (size[kept - 1] if kept > first else 0))
                cost = np.full(most + 1, np.inf)
                cost[size[kept] :] = known(kept + 1, end)[: most + 1 - size[kept]]
                cost += known(first, kept) + before[kept + 1] - before[first]
                cost[: max(2 * size[end] + wide, 2 * size[kept] + 2 * size[kept + 1])] = np.inf
                np.minimum(best, cost, out=best)
            table[first, end] = best
    return known(0, count) + sum(node.cost for node in graph.nodes[count:])


def cost_of(program: Program, budget: int, seconds: float | None = None) -> float:
    """The cost of the plan that is found, infinite without one."""
    try:
        return program.cost + find_plan(program, budget, Policy(HEURISTICS["next-use"]), seconds).cost
    except Infeasible:
        return float("inf")


def overheads(name: str, count: int = 40) -> tuple[list[float], list[float]]:
    """So many budgets from the smallest to the peak, as shares of it, and what each costs in a sweep."""
    torch.manual_seed(0)
    if name == "lstm_64":
        model, inputs = LSTM(256, 512), (torch.randn(64, 64, 256), torch.randn(64, 512))
    else:
        model, inputs = zoo.MODELS[name]()
    with FakeTensorMode(allow_non_fake_inputs=True):
        joint = baselines.trace(model, inputs)
    planning = Planning(joint.planned, Options(cache=False, slices="off"))
    low, high = planning.planner.smallest.peak, planning.baseline_peak
    budgets = [round(low + (high - low) * number / (count - 1)) for number in range(count)]
    found = [planning.overhead(planning.planner.plan(budget)) for budget in budgets[:-1]]
    # A plan for less memory that costs less stands for one that has more.
    return [budget / high for budget in budgets], [*accumulate(found, min), 0.0]


def above_chords(costs: Sequence[float], within: float = 0.1) -> Iterator[tuple[int, float]]:
    """The positions of costs more than so much above the chord of their neighbours, and the factors."""
    for number, (before, cost, after) in enumerate(zip(costs, costs[1:], costs[2:]), 1):
        chord = (before + after) / 2
        if cost > (1 + within) * chord:
            yield number, cost / chord


def _smoothness(names: Sequence[str]) -> None:
    for name in names:
        shares, costs = overheads(name)
        print(name, *(f"{share:.1%}: {cost:.2%}" for share, cost in zip(shares, costs)), sep="  ")
        for number, factor in above_chords(costs):
            print(
                f"{name} at {shares[number]:.1%}: {costs[number]:.2%}, × {factor:.2f} of the chord",
                flush=True,
            )


def _rows(lengths: Sequence[int]) -> None:
    for steps, budgets in _LSTMS:
        program = lstm(steps)
        for mebibytes in budgets:
            overhead = cost_of(program, round(mebibytes * 2**20)) / program.cost - 1
            print(f"LSTM of {steps} at {mebibytes} of {program.peak / 2**20:.1f} MiB: {overhead:+.1%}")
    for graph in (
        chain(length, seed) for length in lengths for seed in (None, 1) if length < 1000 or not seed
    ):
        best = optima(graph, round(max(_SHARES) * graph.peak))
        for budget in (round(share * graph.peak) for share in _SHARES):
            if np.isfinite(best[budget]):
                above = cost_of(graph.program, budget) / best[budget] - 1
                print(f"{graph.name} at {budget} of {graph.peak}: {above:+.2%} of the optimum")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--smooth", nargs="+", metavar="MODEL", help="lstm_64, or a name of zoo:NAME")
    asked = parser.parse_args().smooth
    _smoothness(asked) if asked else _rows(_LENGTHS)
