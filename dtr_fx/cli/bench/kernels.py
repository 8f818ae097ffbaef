"""Seconds of the code that Inductor generates for an element, by operator."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from dtr_fx.cli.progress import tracked
from dtr_fx.costs.roofline import FUNCTION, SCALAR
from dtr_fx.inspect.table import table

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


def seconds_per_element() -> dict[str, float]:
    """One operator at a time is compiled, and run over 2**20 single-precision elements in the cache."""
    return {name: _seconds_per_element(_CASES[name][1]) for name in tracked("kernels", list(_CASES))}


def text(found: dict[str, float]) -> str:
    return table(
        [
            {
                "operator": name,
                "kind": _CASES[name][0],
                "ns per element": f"{1e9 * seconds:.2f}",
                "above relu": f"{1e9 * (seconds - found['relu']):+.2f}",
            }
            for name, seconds in found.items()
        ],
        text=("kind",),
    )


def _seconds_per_element(operator: Callable[[Tensor], Tensor]) -> float:
    torch.compiler.reset()
    compiled, x = torch.compile(operator), torch.rand(_SHAPE)
    times = []
    for _ in range(_WARM_UPS + _REPEATS):
        started = time.process_time()
        compiled(x)
        times.append(time.process_time() - started)
    return statistics.median(times[_WARM_UPS:]) / _ELEMENTS
