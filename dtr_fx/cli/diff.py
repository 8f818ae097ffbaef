"""Show what a budget does to a model's training step, or how two plans differ.

  dtr-fx diff zoo:gpt --budget 60%
  dtr-fx diff train.py:make_gpt --budget 8GiB --html plan.html
  dtr-fx diff zoo:gpt --budget 60% --vs "planner=online heuristic=lru"
  dtr-fx diff before.json after.json

Of each graph this prints the verdict, memory over time before and after, and the difference in execution
order: "-" marks a value that is dropped, with the time to make it again and for how long it is away, "+" one
that is computed again, with what for and its time. Unchanged operators are folded:

               native_dropout_1     640 KiB                               gpt.py:29…   12.4 MiB
  - drop       native_dropout_1:1   128 KiB  41.3 µs again, away 53.7 ms  gpt.py:29…   11.8 MiB
      … 18 operators                                                                 ≤ 42.8 MiB
  + recompute  native_dropout_1     640 KiB  for mm_96, 41.3 µs           gpt.py:29…   21.5 MiB

With --vs, or of two files, it prints exactly the drops and recomputes that only one of the plans has, A or B.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from dtr_fx.cli import plans
from dtr_fx.cli.targets import SAVED
from dtr_fx.errors import CommandError
from dtr_fx.inspect.diff import Difference, difference, render_diff, render_difference
from dtr_fx.inspect.views import Report
from dtr_fx.planning.options import Options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    plans.add_arguments(parser)
    parser.add_argument("other", nargs="?", metavar="FILE.json", help="saved reports to compare with")
    about = 'compare with the plan under these options: "heuristic=lru planner=online budget=50%%"'
    parser.add_argument("--vs", metavar="OPTIONS", help=about)


def run(arguments: argparse.Namespace) -> None:
    if arguments.other is None and arguments.vs is None:
        plans.show(arguments, Report.to_data, render_diff)
        return
    plans.check(arguments)
    first, second = _both(arguments)
    if len(first) != len(second):
        raise CommandError(f"there are plans of {len(first)} and of {len(second)} graphs: nothing to compare")
    plans.print_each(arguments, list(map(difference, first, second)), _data, render_difference)
    plans.write_page(arguments, [*_called("plan A", first), *_called("plan B", second)])


def _called(name: str, reports: Sequence[Report]) -> list[Report]:
    return [replace(report, trigger=", ".join(filter(None, (name, report.trigger)))) for report in reports]


def _both(arguments: argparse.Namespace) -> tuple[Sequence[Report], Sequence[Report]]:
    if arguments.vs is None:
        return plans.reports_of(arguments), plans.saved_reports(arguments.other)
    if arguments.other is not None:
        raise CommandError("give --vs, or a second file, not both")
    if arguments.target.endswith(SAVED):
        raise CommandError(f"{arguments.target} holds plans that are made: give a second file, not --vs")
    given = plans.options_of(arguments)
    other = Options(**{**vars(given), **plans.parse_options(arguments.vs)})

    from dtr_fx.cli.planned import planner

    plan = planner(arguments)
    return plan(given), plan(other)


def _data(found: Difference) -> dict[str, Any]:
    """The changes, and of the plans what the text says of them."""
    figures = ("heuristic", "verdict", "budget", "planned_peak", "drops", "recomputes", "overhead")
    return {
        "plans": [{name: getattr(plan, name) for name in figures} for plan in found.plans],
        "changes": list(map(asdict, found.changes)),
    }
