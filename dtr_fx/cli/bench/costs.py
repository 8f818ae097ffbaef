"""Estimated times of operators against measured ones, on training steps of models.

For each model this prints the time of a step: the sum of its operators by the roofline and by the profile,
and the shortest of 7 that were run, of its graph, operator by operator, and of the model itself. Then by how
much the roofline is off, scaled by one factor, since a plan needs only ratios: it is within "median" of the
profile for operators that make up half of the time, and within "90%" for nine tenths of it. The correlation
is that of the logarithms, weighted by time. Last come the operators whose misjudgement weighs most. Profiles
are kept in $DTR_CACHE, else in ~/.cache/dtr_fx: "timed" are the distinct operators that were not there.
Nodes that cannot be timed alone, "estimated", are left out of all sums:

  dtr-fx bench costs zoo:gpt zoo:lstm_cell

With --fusion: which costs tell how long Inductor's steps take, those of its kernels, or those of the
operators in them. For some budgets a plan is made under both costs, and one that counts the operators that
are computed again; then steps of all plans take turns. For each this prints the extra compute by either
costs, and the time of a step over that of plain torch.compile: the median of rounds, on a CPU of processor
time, which is time only with OMP_NUM_THREADS=1. Below stand the rank correlations of the expected with the
measured, and how many pairs of plans for one budget are in the right order:

  OMP_NUM_THREADS=1 dtr-fx bench costs --fusion zoo:gpt --arg layers=4 --budgets 60% 45%

With --steps: what plans tell of a step's time, by the profile, against the median of the steps that are run,
in turns for all budgets, and their time over that of aot_eager, the median of rounds. A CPU's time is that of
the processor here, too:

  OMP_NUM_THREADS=1 dtr-fx bench costs --steps zoo:gpt zoo:lstm_cell

With --kernels, without a TARGET: what the code that Inductor generates takes for an element, by operator, of
2**20 single-precision elements in the cache. What is above relu, which moves as many bytes, are the seconds
per element in the costs of a CPU (costs/devices.py); the elements of a maximum are those of its windows:

  OMP_NUM_THREADS=1 dtr-fx bench costs --kernels
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx import Node

from dtr_fx.cli.bench import Rows, add_targets, each_target
from dtr_fx.cli.output import tracked
from dtr_fx.cli.targets import load_trainee
from dtr_fx.costs.figures import FUNCTION, SCALAR
from dtr_fx.costs.operators import signature
from dtr_fx.costs.profile import Profile
from dtr_fx.costs.roofline import roofline
from dtr_fx.errors import CommandError
from dtr_fx.inspect.table import table
from dtr_fx.passes.tensors import hint, tensors_of
from dtr_fx.planning.options import Options
from dtr_fx.torch_private import OpOverload
from dtr_fx.units import format_percent, format_seconds

if TYPE_CHECKING:
    from dtr_fx.lab.trainee import Trainee

_BUDGETS = ("70%", "60%", "50%", "40%")
_STEPS = ("100%", "80%", "60%", "50%", "40%")


@dataclass(frozen=True)
class OperatorCost:
    """A distinct operator: how often a step runs it, and the seconds of one run by either account."""

    name: str
    runs: int
    roofline: float
    profile: float

    @property
    def seconds(self) -> float:
        """Of all its runs, by the profile."""
        return self.runs * self.profile


@dataclass(frozen=True)
class Fit:
    """How far the roofline, times ``factor``, is off: 0.5 is within a factor of 1.5; weighted by time."""

    factor: float
    median: float
    ninetieth: float
    correlation: float


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_targets(parser, nargs="*")
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--fusion", action="store_true", help="costs of kernels against Inductor's steps")
    mode.add_argument("--steps", action="store_true", help="the time of steps, told and measured")
    mode.add_argument("--kernels", action="store_true", help="time per element of generated code")
    usual = (
        f"of {mode} {' '.join(shares)}" for mode, shares in (("--fusion", _BUDGETS), ("--steps", _STEPS))
    )
    about = f"default {', '.join(usual)}".replace("%", "%%")
    add = parser.add_argument
    add("--budgets", nargs="+", metavar="BUDGET", help=about)
    add("--pairs", type=int, default=41, metavar="N", help="rounds of either (default: %(default)s)")


def run(arguments: argparse.Namespace) -> None:
    if arguments.kernels == bool(arguments.targets):
        raise CommandError("give TARGETs, or --kernels, which measures without them")
    arguments.budgets = arguments.budgets or (_STEPS if arguments.steps else _BUDGETS)
    if arguments.kernels:
        _kernels(arguments)
    elif arguments.steps:
        from dtr_fx.cli.bench import step_times

        each_target(arguments, step_times.rows, step_times.text)
    elif arguments.fusion:
        from dtr_fx.cli.bench import fusion

        each_target(arguments, fusion.rows, fusion.text)
    else:
        settings = dict(arguments.arg)
        found = [
            step_costs(target, load_trainee(target, **settings))
            for target in tracked("costs", arguments.targets)
        ]
        if arguments.json:
            print(json.dumps(found, indent=1, default=asdict))
        else:
            print(*_tables(found), sep="\n\n")


# The roofline against the profile


def step_costs(target: str, trainee: Trainee) -> dict[str, Any]:
    """Seconds of one training step by several accounts, and how the accounts agree.

    ``eager`` is the model as it is, ``graph`` its graph at a budget of 100%. ``estimated`` counts the nodes
    that cannot be timed alone, which ``roofline`` and ``profile`` leave out.
    """
    from dtr_fx.lab.trainee import compile_step, time_of_step

    estimate = roofline(trainee.device)
    profile = Profile(trainee.device, estimate)
    found: dict[str, OperatorCost] = {}
    estimated = 0

    def cost_of(node: Node) -> float:
        """The profile's cost; writes down what either account says."""
        nonlocal estimated
        cost, measured = profile(node), profile.measured(node)
        if measured is None:
            estimated += 1
        else:
            key = signature(node, {})
            runs = found[key].runs if key in found else 0
            found[key] = OperatorCost(_name(node), runs + 1, estimate(node), measured)
        return cost

    def shortest_step(forward: Callable[..., Any]) -> float:
        """Seconds of the training step that was disturbed least, after one that compiles."""
        trainee.fresh_step(forward)
        return min(time_of_step(trainee, forward) for _ in range(7))

    compiled, _ = compile_step(trainee, Options(costs=cost_of))
    graph = shortest_step(compiled)
    operators = list(found.values())
    if not operators:
        raise CommandError(f"{target}: its training step has no operator that can be timed")
    return {
        "target": target,
        "operators": operators,
        "estimated": estimated,
        "eager": shortest_step(trainee.model),
        "graph": graph,
        "roofline": sum(operator.runs * operator.roofline for operator in operators),
        "profile": sum(operator.seconds for operator in operators),
        "tally": profile.tally,
        "fit": fit(operators),
    }


def fit(operators: Sequence[OperatorCost]) -> Fit:
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


def _name(node: Node) -> str:
    """The operator and the shapes of its operands, for people to read."""
    is_input = node.op in ("placeholder", "get_attr")
    operator = node.target.overloadpacket if isinstance(node.target, OpOverload) else node.target
    read = [node] if is_input else node.all_input_nodes
    operands = [tensor for used in read for tensor in tensors_of(used.meta.get("val"))]
    shapes = ["×".join(str(hint(size)) for size in tensor.shape) for tensor in operands[:3] if tensor.dim()]
    name = "copy" if is_input else str(operator).removeprefix("aten.")
    return f"{name} {', '.join(shapes)}".strip()


def _tables(found: Rows) -> Iterator[str]:
    times = [
        {
            "a step": step["target"],
            "operators": sum(operator.runs for operator in step["operators"]),
            "estimated": step["estimated"],
            "distinct": len(step["operators"]),
            "timed": step["tally"].timed,
            "in": format_seconds(step["tally"].seconds) if step["tally"].timed else "",
            **{name: format_seconds(step[name]) for name in ("roofline", "profile", "graph", "eager")},
        }
        for step in found
    ]
    fits = [
        {
            "roofline against profile": step["target"],
            "factor": f"× {step['fit'].factor:.2f}",
            "median": f"±{format_percent(step['fit'].median)}",
            "90%": f"±{format_percent(step['fit'].ninetieth)}",
            "correlation": f"{step['fit'].correlation:.3f}",
        }
        for step in found
    ]
    return map(table, (times, fits, *map(_worst, found)))


def _worst(step: dict[str, Any]) -> Rows:
    """The operators where the misjudgement, as a factor, weighs most in time."""
    factor = step["fit"].factor

    def weight(operator: OperatorCost) -> float:
        return operator.seconds * abs(math.log(factor * operator.roofline / operator.profile))

    return [
        {
            f"worst in {step['target']}": operator.name,
            "runs": operator.runs,
            "of the step": format_percent(operator.seconds / step["profile"]),
            "profile": format_seconds(operator.profile),
            "roofline, scaled": format_seconds(factor * operator.roofline),
            "profile / roofline": f"× {operator.profile / operator.roofline / factor:.2f}",
        }
        for operator in sorted(step["operators"], key=weight, reverse=True)[:5]
    ]


# Code that Inductor generates

_MOVES, _RANDOM, _MASK = "moves bytes", "random", "stores booleans"
_KERNELS: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "relu": (_MOVES, torch.relu),
    "sum": (_MOVES, lambda x: x.sum(3)),
    **{name: (FUNCTION, getattr(torch, name)) for name in ("erf", "exp", "log", "sigmoid", "sin")},
    "tanh": (SCALAR, torch.tanh),
    "max_pool2d": (SCALAR, lambda x: F.max_pool2d(x, 2)),
    "rand_like": (_RANDOM, torch.rand_like),
    "x > 0.5": (_MASK, lambda x: x > 0.5),
    "rand_like > 0.5": (_MASK, lambda x: torch.rand_like(x) > 0.5),
}


def _kernels(arguments: argparse.Namespace) -> None:
    """Seconds for an element: the median of 21 runs over 2**20 in single precision, in the cache."""
    from dtr_fx.lab.trainee import time_of

    found = {}
    for name in tracked("kernels", list(_KERNELS)):
        torch.compiler.reset()
        compiled, x = torch.compile(_KERNELS[name][1]), torch.rand(64, 16, 32, 32)
        times = [time_of(partial(compiled, x), x.device, time.process_time) for _ in range(3 + 21)]
        found[name] = statistics.median(times[3:]) / x.numel()
    cells = [
        {
            "operator": name,
            "kind": _KERNELS[name][0],
            "ns per element": f"{1e9 * seconds:.2f}",
            "above relu": f"{1e9 * (seconds - found['relu']):+.2f}",
        }
        for name, seconds in found.items()
    ]
    print(json.dumps(found) if arguments.json else table(cells, text=("kind",)))
