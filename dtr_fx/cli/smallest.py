"""Show the smallest budget that a plan is found for.

  dtr-fx smallest zoo:gpt
  dtr-fx smallest train.py:make_gpt --max-overhead 20%

A model is built on fake tensors and traced as one graph; nothing is executed, so it can have any size. This
prints the budget, the extra compute of its plan, and what no plan can do without:

  zoo:gpt: smallest budget 22149928 bytes = 21.1 MiB = 28.5% of its peak of 74.1 MiB
  extra compute there: 30.0%; lower bound of any plan: 20.8 MiB
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from dtr_fx.cli import plans
from dtr_fx.cli.arguments import read, seconds
from dtr_fx.cli.output import check_output, waiting
from dtr_fx.cli.targets import LOGS, SAVED
from dtr_fx.errors import CommandError
from dtr_fx.inspect.views import Report
from dtr_fx.planning.options import Options
from dtr_fx.units import format_bytes, format_percent

_FIGURES = ("budget", "baseline_peak", "planned_peak", "lower_bound", "overhead")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    plans.add_target(parser)
    parser.add_argument("--max-overhead", metavar="SHARE", help='at most so much extra compute: "20%%", 0.2')
    parser.add_argument("--plan-seconds", type=seconds, metavar="S", help="effort of a search")
    plans.add_slices(parser, Options.slices)
    plans.add_printing(parser)


def run(arguments: argparse.Namespace) -> None:
    check_output(arguments.output, force=arguments.force)
    with waiting(f"smallest budget of {arguments.target}"):
        report = _smallest(arguments)
    data = {name: getattr(report, name) for name in _FIGURES}
    peak, budget = report.baseline_peak, f"{report.budget} bytes = {format_bytes(report.budget)}"
    share = f"{format_percent(report.budget / peak)} of its peak of {format_bytes(peak)}"
    text = (
        f"{arguments.target}: smallest budget {budget} = {share}\n"
        f"extra compute there: {format_percent(report.overhead)}; "
        f"lower bound of any plan: {format_bytes(report.lower_bound)}\n"
    )
    plans.write(arguments, lambda: data, lambda on: text)


def _smallest(arguments: argparse.Namespace) -> Report:
    """The plan for the smallest budget."""
    target = arguments.target
    options = Options(
        max_overhead=arguments.max_overhead,
        plan_seconds=arguments.plan_seconds,
        slices=arguments.slices,
        offload=arguments.offload,
    )
    if target.endswith(SAVED):
        raise CommandError(f"{target} holds plans that are made: name what they were made of")
    if target.endswith(LOGS):
        if options.max_overhead is not None:
            raise CommandError("--max-overhead is for models; dtr-fx simulate has the slowdowns of logs")
        from dtr_fx.lab.log_plans import LogPlanning

        program = read(Path(target))
        planner = LogPlanning(program, options).planner
        planning = LogPlanning(program, replace(options, budget=min(planner.smallest.peak, program.peak)))
        planning.planner = planner
        return planning.report()
    plans.check_target(target)
    from dtr_fx.cli.planned import for_device, graph_of
    from dtr_fx.planning.curve import smallest_plan

    return smallest_plan(graph_of(arguments), for_device(options, arguments))
