"""Show what a budget does to the training step of a model.

TARGET is a function without arguments that returns the model and its example inputs (a tensor, a tuple
of arguments, or a dictionary of keyword arguments), in a module or in a file:

  dtr-fx diff mypackage.models:make_gpt --budget 60%
  dtr-fx diff train.py:make_gpt --budget 8GiB

The model is compiled, run forward, and run backward from its output if that is a scalar, else from the
sum of its floating-point outputs. Of each graph that is traced on the way this prints the verdict, memory
over time before and after, and the difference in execution order: "-" marks a value that is dropped, "+"
one that is computed again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from dtr_fx.cli.output import check_output, write_text
from dtr_fx.cli.targets import load_target
from dtr_fx.errors import CommandError
from dtr_fx.inspect import render_diff
from dtr_fx.options import Options
from dtr_fx.report import Report
from dtr_fx.runtime import HEURISTICS

_PIPE_WIDTH = 120


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("target", metavar="TARGET", help="package.module:factory or path/to/file.py:factory")
    parser.add_argument(
        "--budget",
        required=True,
        help='a share of each graph\'s own peak ("60%%", 0.6), bytes ("8GiB", "8GB", 100000), or "auto"',
    )
    parser.add_argument(
        "--heuristic",
        choices=tuple(HEURISTICS),
        default=Options.heuristic,
        metavar="NAME",
        help=f"how values to drop are chosen: {', '.join(HEURISTICS)} (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="print the reports as a JSON list")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write to FILE, not to stdout")
    parser.add_argument("-f", "--force", action="store_true", help="overwrite FILE")


def run(arguments: argparse.Namespace) -> None:
    """Carry out the command.

    Raises
    ------
    DTRError
        A user's error: in an option, the target, the output file, or a budget that no plan fits.
    """
    # What can be wrong on the command line is said before a model is built and compiled.
    options = Options(budget=arguments.budget, heuristic=arguments.heuristic)
    check_output(arguments.output, force=arguments.force)
    model, inputs = load_target(arguments.target)

    # Compilation machinery takes seconds to import, which --help and a mistyped option need not wait for.
    from dtr_fx.backend import plan_step

    reports = plan_step(model, inputs, options)
    if not reports:
        raise CommandError(f"{arguments.target}: no graph was traced, so there is nothing to plan")
    text = _as_json(reports) if arguments.json else _as_text(reports, to_file=arguments.output is not None)
    if arguments.output is None:
        sys.stdout.write(text)
        sys.stdout.flush()
    else:
        write_text(arguments.output, text, force=arguments.force)


def _as_json(reports: Sequence[Report]) -> str:
    return json.dumps([json.loads(report.to_json()) for report in reports], indent=1) + "\n"


def _as_text(reports: Sequence[Report], *, to_file: bool) -> str:
    on_terminal = not to_file and sys.stdout.isatty()
    width = shutil.get_terminal_size((_PIPE_WIDTH, 0)).columns if on_terminal else _PIPE_WIDTH
    color = on_terminal and not os.environ.get("NO_COLOR")
    diffs = [render_diff(report, width=width, color=color) for report in reports]
    if len(diffs) == 1:
        return diffs[0]
    return "\n".join(f"graph {i} of {len(diffs)}\n{diff}" for i, diff in enumerate(diffs, 1))
