"""Show what a budget does to a model's training step, or how two plans differ.

  dtr-fx diff zoo:gpt --budget 60%
  dtr-fx diff train.py:make_gpt --budget 8GiB --html plan.html
  dtr-fx diff zoo:gpt --budget 60% --vs "planner=online heuristic=lru"
  dtr-fx diff before.json after.json

Of each graph this prints the verdict, memory over time before and after, and the difference in execution
order: "-" marks a value that is dropped, "+" one that is computed again. Unchanged operators are folded:

      … 17 operators                                                                        ≤ 17.7 MiB
               view_61                         0 B                      gpt.py:27 in forwa…   17.7 MiB
  + recompute  where                      16.0 KiB  for add_13          gpt.py:27 in forwa…   17.8 MiB
               add_13                      512 KiB                      gpt.py:27 in forwa…   18.3 MiB
  - drop       bmm_8                       512 KiB  planned                                   17.8 MiB

With --vs, or of two files, it prints exactly the drops and recomputes that only one of the plans has, A or B.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any

from dtr_fx.cli import plans
from dtr_fx.cli.output import Screen
from dtr_fx.errors import CommandError
from dtr_fx.inspect.diff import render_diff
from dtr_fx.inspect.difference import Difference, difference, render_difference
from dtr_fx.inspect.views import Report
from dtr_fx.planning.options import Options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    plans.add_target(parser)
    parser.add_argument("other", nargs="?", metavar="FILE.json", help="saved reports to compare with")
    plans.add_plan_options(parser)
    parser.add_argument(
        "--vs",
        type=str,
        metavar="OPTIONS",
        help='compare with the plan under these options: "heuristic=lru planner=online budget=50%%"',
    )
    plans.add_printing(parser)


def run(arguments: argparse.Namespace) -> None:
    """Carry out the command.

    Raises
    ------
    DTRError
        A user's error: in an option, the target, the output file, or a budget that no plan fits.
    """
    plans.check(arguments)
    if arguments.other is not None or arguments.vs is not None:
        _compare(arguments)
        return
    reports = plans.reports_of(arguments)
    views = [partial(_text, report) for report in reports]
    plans.print_plans(arguments, reports, views, lambda: list(map(asdict, reports)))


def _text(report: Report, on: Screen) -> str:
    return render_diff(report, width=on.width, color=on.color)


def _compare(arguments: argparse.Namespace) -> None:
    first, second = _both(arguments)
    if len(first) != len(second):
        raise CommandError(f"there are plans of {len(first)} and of {len(second)} graphs: nothing to compare")
    found = [difference(*pair) for pair in zip(first, second)]
    plans.print_views(
        arguments, [partial(_text_of_both, each) for each in found], lambda: list(map(_data, found))
    )
    plans.write_page(arguments, [*_called("plan A", first), *_called("plan B", second)])


def _called(name: str, reports: Sequence[Report]) -> list[Report]:
    return [replace(report, trigger=", ".join(filter(None, (name, report.trigger)))) for report in reports]


def _both(arguments: argparse.Namespace) -> tuple[Sequence[Report], Sequence[Report]]:
    if arguments.vs is None:
        return plans.reports_of(arguments), plans.saved_reports(arguments.other)
    if arguments.other is not None:
        raise CommandError("give --vs, or a second file, not both")
    if plans.is_saved(arguments.target):
        raise CommandError(f"{arguments.target} holds plans that are made: give a second file, not --vs")
    given = plans.options_of(arguments)
    other = Options(**{**vars(given), **plans.parse_options(arguments.vs)})
    plan = plans.planner_of(arguments.target, dict(arguments.arg))
    return plan(given), plan(other)


def _text_of_both(found: Difference, on: Screen) -> str:
    return render_difference(found, width=on.width, color=on.color)


def _data(found: Difference) -> dict[str, Any]:
    """The changes, and of the plans what the text says of them."""
    return {
        "plans": [
            {
                "heuristic": plan.heuristic,
                "budget": plan.budget,
                "planned_peak": plan.planned_peak,
                "drops": plan.drops,
                "recomputes": plan.recomputes,
                "overhead": plan.overhead,
            }
            for plan in found.plans
        ],
        "changes": list(map(asdict, found.changes)),
    }
