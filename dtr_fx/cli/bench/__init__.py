"""Measure: training steps of models under budgets, and the runtime on the paper's networks and logs.

Each benchmark prints a table; dtr-fx bench NAME --help says what is in it.
"""

from __future__ import annotations

import argparse

from dtr_fx.cli.bench import (
    adversary,
    costs,
    device,
    dynamic,
    fusion,
    futures,
    inductor,
    kernels,
    linear,
    logs,
    models,
    optimum,
    plans,
    rivals,
    times,
)

_BENCHMARKS = {
    "models": models,
    "inductor": inductor,
    "kernels": kernels,
    "fusion": fusion,
    "device": device,
    "dynamic": dynamic,
    "costs": costs,
    "linear": linear,
    "adversary": adversary,
    "logs": logs,
    "optimum": optimum,
    "rivals": rivals,
    "futures": futures,
    "times": times,
    "plans": plans,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    benchmarks = parser.add_subparsers(metavar="BENCHMARK", required=True)
    for name, module in _BENCHMARKS.items():
        text = module.__doc__ or ""
        benchmark = benchmarks.add_parser(
            name,
            help=text.splitlines()[0],
            description=text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(benchmark)
        benchmark.set_defaults(benchmark=module.run)


def run(arguments: argparse.Namespace) -> None:
    """Carry out the command.

    Raises
    ------
    DTRError
        A user's error: in an option, a target or a log, or a heuristic that does not get through.
    """
    arguments.benchmark(arguments)
