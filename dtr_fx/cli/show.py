"""Show a plan at a glance: the values that matter most, and where the extra compute goes.

  dtr-fx show zoo:gpt --budget 50%
  dtr-fx show plan.json --top 20

This prints the largest values, those that cost the most to compute again, and those dropped most often; then
operators by kind and by module, first those that are computed again at the highest cost:

               runs    compute    dropped    recomputes    extra    of all
  ---------  ------  ---------  ---------  ------------  -------  --------
  blocks.0      137    4.30 ms   5.18 MiB            25   680 µs      1.3%
  blocks.2      132    4.29 ms   5.13 MiB            22   672 µs      1.3%

"of all" is the extra compute as a share of all compute of the step as it was.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from functools import partial
from typing import Any

from dtr_fx.cli import plans
from dtr_fx.cli.arguments import positive
from dtr_fx.inspect.overview import overview, render_overview
from dtr_fx.inspect.views import Report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    plans.add_arguments(parser)
    add = parser.add_argument
    add("--top", type=positive, default=5, metavar="N", help="values in a table (default: 5)")
    add("--depth", type=positive, default=2, metavar="N", help="names in a module's path (default: 2)")


def run(arguments: argparse.Namespace) -> None:
    of = partial(overview, top=arguments.top, depth=arguments.depth)

    def render(report: Report, **screen: Any) -> str:
        return render_overview(report, of(report), **screen)

    plans.show(arguments, lambda report: asdict(of(report)), render)
