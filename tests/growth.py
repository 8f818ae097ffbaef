"""What many steps and many compilations leave behind, under dtr and under aot_eager, each in its own process.

  python tests/growth.py --steps 10000 --compilations 500

The first tenth is a warm-up, in which caches fill.  It ends with 1 where dtr leaves more than aot_eager.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import os
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn

OPTIONS = {"budget": "80%", "plan_seconds": 0.02}
ROWS = 256
_LEAST_WARM_UP = 6


class Kept(NamedTuple):
    """What is there: objects that the collector knows, tensors among them, resident KiB."""

    objects: int
    tensors: int
    resident: int


# What dtr may leave beyond a tenth more than aot_eager: what a warm-up did not come to, part-filled pages.
SLACK = Kept(objects=200, tensors=0, resident=8192)


def kept() -> Kept:
    for _ in range(3):  # what a finalizer let go of is collected in the next round
        gc.collect()
    objects = gc.get_objects()
    tensors = sum(issubclass(type(each), Tensor) for each in objects)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return Kept(len(objects), tensors, pages * os.sysconf("SC_PAGE_SIZE") // 1024)


def compiled(backend: str) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    torch.manual_seed(0)
    model = nn.Sequential(*(part for _ in range(3) for part in (nn.Linear(16, 16), nn.GELU(), nn.Dropout())))
    options = {"options": dict(OPTIONS)} if backend == "dtr" else {}
    return model, torch.compile(model, backend=backend, **options)


def step(model: nn.Module, forward: Callable[[Tensor], Tensor], rows: int = ROWS) -> None:
    model.zero_grad()
    forward(torch.ones(rows, 16)).square().mean().backward()


def steps(backend: str) -> Callable[[int], None]:
    """The same step again and again."""
    model, forward = compiled(backend)
    return lambda number: step(model, forward)


def compilations(backend: str, sizes: int = sys.maxsize) -> Callable[[int], None]:
    """A new model each time, the one before forgotten; so many sizes in turn, or a new one, too."""

    def compile_anew(number: int) -> None:
        torch._dynamo.reset()
        step(*compiled(backend), ROWS + number % sizes)

    return compile_anew


def growth(make: Callable[[str], Callable[[int], None]], backend: str, count: int) -> tuple[Kept, Kept]:
    """What is there after the warm-up, and after all rounds."""
    run = make(backend)
    warm_up = max(count // 10, _LEAST_WARM_UP)
    for number in range(warm_up):
        run(number)
    before = kept()
    for number in range(warm_up, count):
        run(number)
    return before, kept()


def excess(ours: tuple[Kept, Kept], theirs: tuple[Kept, Kept]) -> list[str]:
    """What dtr leaves more of than aot_eager."""
    grown = (Kept(*(after - before for before, after in zip(*each))) for each in (ours, theirs))
    found = zip(Kept._fields, *grown, SLACK)
    return [name for name, our, their, slack in found if our > max(1.1 * their, 0) + slack]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--compilations", type=int, default=500)
    arguments = parser.parse_args()
    spawn = multiprocessing.get_context("spawn")
    failed = False
    print(f"{'':24}{'objects':>20}{'tensors':>20}{'resident KiB':>24}")
    for make, count in ((steps, arguments.steps), (compilations, arguments.compilations)):
        found = {}
        for backend in ("aot_eager", "dtr"):
            with ProcessPoolExecutor(1, spawn) as process:
                before, after = found[backend] = process.submit(growth, make, backend, count).result()
            cells = (f"{old} → {new}" for old, new in zip(before, after))
            print("{:24}{:>20}{:>20}{:>24}".format(f"{count} {make.__name__} {backend}", *cells), flush=True)
        more = excess(found["dtr"], found["aot_eager"])
        if more:
            print(f"dtr leaves more {' and '.join(more)} than aot_eager")
        failed |= bool(more)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
