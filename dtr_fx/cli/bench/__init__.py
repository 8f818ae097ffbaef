"""Measure: training steps of models under budgets, and the runtime on the paper's networks and logs.

Each benchmark prints a table; dtr-fx bench NAME --help says what is in it.
"""

from __future__ import annotations

import argparse

from dtr_fx.cli.bench import costs, device, paper, plans, steps

_BENCHMARKS = {"steps": steps, "plans": plans, "costs": costs, "device": device, "paper": paper}


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
    """Carry out the command."""
    arguments.benchmark(arguments)
