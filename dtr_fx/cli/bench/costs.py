"""The roofline's estimate of operators' times against their profile, on training steps of models.

TARGETs are those of dtr-fx diff. For each model this prints the time of a step: the sum of its operators by
the roofline and by the profile, and the shortest of 7 that were run, of its graph, operator by operator, and
of the model itself. Then by how much the roofline is off. It is scaled by one factor first, since a plan
needs only ratios; then it is within "median" of the profile for operators that make up half of the time, and
within "90%" for nine tenths of it. The correlation is that of the logarithms, weighted by time. Last come the
operators whose misjudgement weighs most:

  dtr-fx bench costs zoo:gpt zoo:lstm_cell

Profiles are kept in $DTR_FX_CACHE, else in ~/.cache/dtr_fx: of the distinct operators "timed" are those that
were not there. Nodes that cannot be timed alone, "estimated", are left out of all sums.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from tabulate import tabulate
from torch.fx import Node

from dtr_fx.cli.progress import progress
from dtr_fx.cli.targets import load_trainee
from dtr_fx.costs.profile import Profile, Tally, signature
from dtr_fx.costs.roofline import roofline
from dtr_fx.errors import CommandError
from dtr_fx.passes.storages import hint, tensors_of
from dtr_fx.planning.options import Options
from dtr_fx.units import format_percent, format_seconds

if TYPE_CHECKING:
    from dtr_fx.lab.trainee import Trainee

_REPEATS = 7
_WORST = 5


@dataclass(frozen=True)
class Operator:
    """A distinct operator: how often a step runs it, and the seconds of one run by either account."""

    name: str
    runs: int
    roofline: float
    profile: float

    @property
    def seconds(self) -> float:
        """What its runs take together, by the profile."""
        return self.runs * self.profile


@dataclass(frozen=True)
class Fit:
    """How well the roofline, times ``factor``, agrees with the profile.

    ``median`` and ``ninetieth`` are quantiles, weighted by time, of how far the one is above or below the
    other: 0.5 is within a factor of 1.5.
    """

    factor: float
    median: float
    ninetieth: float
    correlation: float


@dataclass(frozen=True)
class Comparison:
    """Seconds of one training step by several accounts, and how the accounts agree.

    ``eager`` is the model as it is, ``graph`` its graph at a budget of 100%. ``estimated`` counts the nodes
    that cannot be timed alone, which ``roofline`` and ``profile`` leave out.
    """

    target: str
    operators: tuple[Operator, ...]
    estimated: int
    eager: float
    graph: float
    tally: Tally
    fit: Fit

    @property
    def profile(self) -> float:
        return sum(operator.seconds for operator in self.operators)

    @property
    def roofline(self) -> float:
        return sum(operator.runs * operator.roofline for operator in self.operators)

    def worst(self, count: int) -> list[Operator]:
        """Those where the misjudgement, as a factor, weighs most in time."""

        def weight(operator: Operator) -> float:
            return operator.seconds * abs(math.log(self.fit.factor * operator.roofline / operator.profile))

        return sorted(self.operators, key=weight, reverse=True)[:count]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "targets", nargs="+", metavar="TARGET", help="package.module:factory or path/to/file.py:factory"
    )
    parser.add_argument(
        "--json", action="store_true", help="print a JSON list with an object for each target"
    )


def run(arguments: argparse.Namespace) -> None:
    """Carry out the command.

    Raises
    ------
    CommandError
        A target that is no module, or whose step has no operator that can be timed.
    """
    found = []
    with progress("costs", len(arguments.targets)) as watch:
        for target in arguments.targets:
            found.append(_compare(target))
            watch(len(found))
    if arguments.json:
        print(json.dumps([_as_json(comparison) for comparison in found], indent=1))
        return
    print(_times_table(found), _fit_table(found), *map(_worst_table, found), sep="\n\n")


def _compare(target: str) -> Comparison:
    # Compilation machinery takes seconds to import, which --help need not wait for.
    from dtr_fx.lab.trainee import compile_step

    trainee = load_trainee(target)
    accounts = _Accounts(trainee.device)
    graph, _ = compile_step(trainee, Options(costs=accounts))
    compiled = _shortest_step(trainee, graph)
    operators = accounts.operators()
    if not operators:
        raise CommandError(f"{target}: its training step has no operator that can be timed")
    eager = _shortest_step(trainee, trainee.model)
    return Comparison(
        target, operators, accounts.estimated, eager, compiled, accounts.profile.tally, fit(operators)
    )


class _Accounts:
    """A cost function that writes down what either account says of every node that it is asked about."""

    def __init__(self, device: torch.device) -> None:
        self._roofline = roofline(device)
        self.profile = Profile(device, self._roofline)
        self.estimated = 0
        self._found: dict[str, Operator] = {}

    def __call__(self, node: Node) -> float:
        cost = self.profile(node)
        measured = self.profile.measured(node)
        if measured is None:
            self.estimated += 1
        else:
            self._count(node, measured)
        return cost

    def _count(self, node: Node, measured: float) -> None:
        key = signature(node)
        runs = self._found[key].runs if key in self._found else 0
        self._found[key] = Operator(_name(node), runs + 1, self._roofline(node), measured)

    def operators(self) -> tuple[Operator, ...]:
        return tuple(self._found.values())


def fit(operators: Sequence[Operator]) -> Fit:
    """The factor that brings the roofline closest to the profile, and what remains between them."""
    logs = np.log([[operator.roofline, operator.profile] for operator in operators])
    weights = np.array([operator.seconds for operator in operators])
    ratios = logs[:, 1] - logs[:, 0]
    factor = _quantile(ratios, weights, 0.5)
    off = np.abs(ratios - factor)
    return Fit(
        factor=math.exp(factor),
        median=math.expm1(_quantile(off, weights, 0.5)),
        ninetieth=math.expm1(_quantile(off, weights, 0.9)),
        correlation=_correlation(logs, weights),
    )


def _quantile(values: np.ndarray, weights: np.ndarray, share: float) -> float:
    """The smallest value that, with those below it, has this share of the weight."""
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(reached, share * reached[-1])])


def _correlation(columns: np.ndarray, weights: np.ndarray) -> float:
    """Pearson's, weighted; not a number where one column is constant."""
    ((a, between), (_, b)) = np.atleast_2d(np.cov(columns.T, aweights=weights, ddof=0))
    return float(between / math.sqrt(a * b)) if a > 0 and b > 0 else math.nan


def _shortest_step(trainee: Trainee, forward: Callable[..., Any]) -> float:
    """Seconds of the training step that was disturbed least, after one that compiles."""
    trainee.restart()
    trainee.step(forward)
    times = []
    for _ in range(_REPEATS):
        trainee.clear_gradients()
        started = time.perf_counter()
        trainee.step(forward)
        if trainee.device.type == "cuda":
            torch.cuda.synchronize(trainee.device)
        times.append(time.perf_counter() - started)
    return min(times)


def _name(node: Node) -> str:
    """The operator and the shapes of its operands, for people to read."""
    is_input = node.op in ("placeholder", "get_attr")
    operator = node.target.overloadpacket if isinstance(node.target, torch._ops.OpOverload) else node.target
    read = [node] if is_input else node.all_input_nodes
    operands = [tensor for used in read for tensor in tensors_of(used.meta.get("val"))]
    shapes = ["×".join(str(hint(size)) for size in tensor.shape) for tensor in operands[:3] if tensor.dim()]
    name = "copy" if is_input else str(operator).removeprefix("aten.")
    return f"{name} {', '.join(shapes)}".strip()


def _as_json(comparison: Comparison) -> dict[str, Any]:
    sums = {"roofline": comparison.roofline, "profile": comparison.profile}
    return {**asdict(comparison), **sums}


def _times_table(found: Iterable[Comparison]) -> str:
    return _table(
        {
            "a step": comparison.target,
            "operators": sum(operator.runs for operator in comparison.operators),
            "estimated": comparison.estimated,
            "distinct": len(comparison.operators),
            "timed": comparison.tally.timed,
            "in": format_seconds(comparison.tally.seconds) if comparison.tally.timed else "",
            "roofline": format_seconds(comparison.roofline),
            "profile": format_seconds(comparison.profile),
            "graph": format_seconds(comparison.graph),
            "eager": format_seconds(comparison.eager),
        }
        for comparison in found
    )


def _fit_table(found: Iterable[Comparison]) -> str:
    return _table(
        {
            "roofline against profile": comparison.target,
            "factor": f"× {comparison.fit.factor:.2f}",
            "median": f"±{format_percent(comparison.fit.median)}",
            "90%": f"±{format_percent(comparison.fit.ninetieth)}",
            "correlation": f"{comparison.fit.correlation:.3f}",
        }
        for comparison in found
    )


def _worst_table(comparison: Comparison) -> str:
    factor = comparison.fit.factor
    return _table(
        {
            f"worst in {comparison.target}": operator.name,
            "runs": operator.runs,
            "of the step": format_percent(operator.seconds / comparison.profile),
            "profile": format_seconds(operator.profile),
            "roofline, scaled": format_seconds(factor * operator.roofline),
            "profile / roofline": f"× {operator.profile / operator.roofline / factor:.2f}",
        }
        for operator in comparison.worst(_WORST)
    )


def _table(rows: Iterable[dict[str, Any]]) -> str:
    cells = list(rows)
    alignment = ["left", *["right"] * (len(cells[0]) - 1)]
    return tabulate(cells, headers="keys", disable_numparse=True, colalign=alignment)
