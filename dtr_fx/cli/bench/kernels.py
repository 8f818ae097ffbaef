"""What the code that Inductor generates takes for an element, by operator.

One operator at a time is compiled and run over 2**20 single-precision elements that lie in the cache. From
what stands here over what relu takes, which moves as many bytes, come the seconds per element in the costs
of a CPU (passes/costs.py); the elements of a maximum are those of its windows:

  OMP_NUM_THREADS=1 dtr-fx bench kernels
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from tabulate import tabulate
from torch import Tensor

from dtr_fx.cli.progress import progress
from dtr_fx.costs.roofline import FUNCTION, SCALAR

_SHAPE = (64, 16, 32, 32)
_ELEMENTS = 2**20
_WARM_UPS, _REPEATS = 3, 21
_MOVES, _RANDOM, _MASK = "moves bytes", "random", "stores booleans"

_CASES: dict[str, tuple[str, Callable[[Tensor], Tensor]]] = {
    "relu": (_MOVES, torch.relu),
    "sum": (_MOVES, lambda x: x.sum(3)),
    "erf": (FUNCTION, torch.erf),
    "exp": (FUNCTION, torch.exp),
    "log": (FUNCTION, torch.log),
    "sigmoid": (FUNCTION, torch.sigmoid),
    "sin": (FUNCTION, torch.sin),
    "tanh": (SCALAR, torch.tanh),
    "max_pool2d": (SCALAR, lambda x: F.max_pool2d(x, 2)),
    "rand_like": (_RANDOM, torch.rand_like),
    "x > 0.5": (_MASK, lambda x: x > 0.5),
    "rand_like > 0.5": (_MASK, lambda x: torch.rand_like(x) > 0.5),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print seconds per element by operator")


def run(arguments: argparse.Namespace) -> None:
    found: dict[str, float] = {}
    with progress("kernels", len(_CASES)) as watch:
        for name, (_, operator) in _CASES.items():
            watch(len(found))
            found[name] = _seconds_per_element(operator)
    if arguments.json:
        print(json.dumps(found))
        return
    moving = found["relu"]
    cells = [
        {
            "operator": name,
            "kind": _CASES[name][0],
            "ns per element": f"{1e9 * seconds:.2f}",
            "above relu": f"{1e9 * (seconds - moving):+.2f}",
        }
        for name, seconds in found.items()
    ]
    print(tabulate(cells, headers="keys", disable_numparse=True, colalign=("left", "left", "right", "right")))


def _seconds_per_element(operator: Callable[[Tensor], Tensor]) -> float:
    torch._dynamo.reset()
    compiled, x = torch.compile(operator), torch.rand(_SHAPE)
    times = []
    for _ in range(_WARM_UPS + _REPEATS):
        started = time.process_time()
        compiled(x)
        times.append(time.process_time() - started)
    return statistics.median(times[_WARM_UPS:]) / _ELEMENTS
