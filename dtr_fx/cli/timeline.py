"""Show memory over the time of a training step, before and after.

  dtr-fx timeline zoo:gpt --budget 50%
  dtr-fx timeline plan.json --html plan.html

Both charts have one scale, with the budget as a line, and name the operator at the peak:

  after  peak 37.0 MiB at mm_4  gpt.py:46 in forward: return x + self.mlp(self.norm_mlp(x))
  ▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▂▃▄▆▇██▆▇▆▆▄▄▃▄▁▂▔▁▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔▔ budget 37.1 MiB
                       ▂▄▄▅████████████████████▇▆▆▅▆▃▄▃▅▃▃▂▄▄▂▂▁▃▁▁
             ▁▂▂▃▄▅▆▆▇█████████████████████████████████████████████▇█▇▇▅██▆▆▄▇▅▅▃▆▄▄▄▃
   ▁ ▁▂▃▄▄▄▆▇█████████████████████████████████████████████████████████████████████████
  ▆███████████████████████████████████████████████████████████████████████████████████
  ████████████████████████████████████████████████████████████████████████████████████

Below stands what is live at the two peaks, by kind.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from functools import partial
from typing import Any

from dtr_fx.cli import plans
from dtr_fx.cli.output import Screen
from dtr_fx.inspect.timeline import render_timeline
from dtr_fx.report import KINDS, Report


def add_arguments(parser: argparse.ArgumentParser) -> None:
    plans.add_target(parser)
    plans.add_plan_options(parser)
    plans.add_printing(parser)


def run(arguments: argparse.Namespace) -> None:
    """Carry out the command.

    Raises
    ------
    DTRError
        A user's error: in an option, the target, the output file, or a budget that no plan fits.
    """
    plans.check(arguments)
    reports = plans.reports_of(arguments)
    views = [partial(_text, report) for report in reports]
    plans.print_plans(arguments, reports, views, lambda: list(map(_data, reports)))


def _text(report: Report, on: Screen) -> str:
    return render_timeline(report, width=on.width, color=on.color)


def _data(report: Report) -> dict[str, Any]:
    return {
        "budget": report.budget,
        "kinds": KINDS,
        "before": list(map(asdict, report.before)),
        "after": list(map(asdict, report.after)),
    }
