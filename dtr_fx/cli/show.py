"""Show a plan at a glance: the values that matter most, and where the extra compute goes.

  dtr-fx show zoo:gpt --budget 50%
  dtr-fx show plan.json --top 20

This prints the largest values, those that cost the most to compute again, and those dropped most often; then
operators by kind, first those that are computed again at the highest cost; and the modules as a tree:

               compute    at the peak    dropped    recomputed    extra    of all
  -----------  ---------  -------------  ---------  ------------  -------  --------
  whole graph    52.6 ms       44.3 MiB   38.1 MiB      38.1 MiB  2.97 ms      5.6%
  ├ blocks       51.5 ms       43.5 MiB   38.1 MiB      38.1 MiB  2.97 ms      5.6%
  │ ├ 0          4.30 ms       3.15 MiB   4.13 MiB      4.13 MiB   334 µs      0.6%

"at the peak" are the bytes that are live at the plan's peak, parameters and inputs where they are read first.
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
    add("--depth", type=positive, metavar="N", help="levels of the tree of modules (default: some 24 rows)")


def run(arguments: argparse.Namespace) -> None:
    of = partial(overview, top=arguments.top)

    def render(report: Report, **screen: Any) -> str:
        return render_overview(report, of(report), depth=arguments.depth, **screen)

    plans.show(arguments, lambda report: asdict(of(report)), render)
