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
from typing import Any

from dtr_fx.cli import plans
from dtr_fx.inspect.timeline import render_timeline
from dtr_fx.inspect.views import Report
from dtr_fx.report import KINDS

add_arguments = plans.add_arguments


def run(arguments: argparse.Namespace) -> None:
    plans.show(arguments, _data, render_timeline)


def _data(report: Report) -> dict[str, Any]:
    return {
        "budget": report.budget,
        "kinds": KINDS,
        "before": list(map(asdict, report.before)),
        "after": list(map(asdict, report.after)),
    }
