"""The commands that look at plans: their target, their options, and how they print."""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from ast import literal_eval
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import torch
from torch.fx import GraphModule

from dtr_fx.cli.arguments import read, seconds
from dtr_fx.cli.output import Screen, check_output, screen, write_text
from dtr_fx.cli.progress import waiting
from dtr_fx.cli.targets import load_target, one_line
from dtr_fx.errors import CommandError, DTRError, did_you_mean
from dtr_fx.inspect.views import Report
from dtr_fx.planning.options import Options
from dtr_fx.runtime import HEURISTICS

TARGETS = """TARGET is one of

  package.module:factory      a function that returns a model and its example inputs (a tensor, a tuple of
  path/to/file.py:factory     arguments, or a dictionary of keyword arguments); --arg NAME=VALUE is passed on
  zoo:NAME                    a model that comes with dtr_fx:
                              {zoo}
  FILE.json                   reports that were saved with --json, or by options={{"report": "FILE.json"}}
  FILE.pt2                    a program saved by torch.export.save
  FILE.log, FILE.log.gz       an operator log, as dtr-fx record writes it

A model is compiled, run forward, and run backward from its output if that is a scalar, else from the sum of
its floating-point outputs. Each graph that is traced on the way has a plan of its own.
"""

Planner: TypeAlias = Callable[[Options], list[Report]]

_LOGS = (".log", ".log.gz", ".gz")
_PLAN_OPTIONS = ("budget", "heuristic", "planner", "plan_seconds", "costs")


def add_arguments(parser: argparse.ArgumentParser, *, html: bool = True) -> None:
    """TARGET, how to plan, where to print: for the commands that look at its plans."""
    add_target(parser)
    add_plan_options(parser)
    add_printing(parser, html=html)


def add_target(
    parser: argparse.ArgumentParser, help: str = "a model, a log or saved reports, see above"
) -> None:
    """TARGET, and the arguments of its factory."""
    parser.add_argument("target", metavar="TARGET", help=help)
    add_settings(parser)


def add_settings(parser: argparse.ArgumentParser) -> None:
    """The arguments of a factory."""
    parser.add_argument(
        "--arg",
        action="append",
        default=[],
        type=setting,
        metavar="NAME=VALUE",
        help="an argument of the factory: a Python literal, else a string; may be repeated",
    )


def add_plan_options(parser: argparse.ArgumentParser) -> None:
    """How to plan."""
    parser.add_argument(
        "--budget",
        help='a share of each graph\'s own peak ("60%%", 0.6), bytes ("8GiB", "8GB", 100000), or "auto"; '
        "saved reports have theirs",
    )
    parser.add_argument(
        "--heuristic",
        choices=tuple(HEURISTICS),
        metavar="NAME",
        help=f"how values to drop are chosen: {', '.join(HEURISTICS)} (default: {Options.heuristic})",
    )
    parser.add_argument(
        "--planner", choices=("search", "online"), help="many passes, or the paper's one (default: search)"
    )
    parser.add_argument("--plan-seconds", type=seconds, metavar="S", help="effort of a search")
    parser.add_argument(
        "--costs", choices=("roofline", "profile"), help="operators' times: estimated, or measured"
    )


def add_printing(parser: argparse.ArgumentParser, *, html: bool = True) -> None:
    """Where to print, and as what."""
    parser.add_argument("--json", action="store_true", help="print data, not text")
    if html:
        parser.add_argument("--html", type=Path, metavar="FILE", help="write the report as a page to FILE")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write to FILE, not to stdout")
    parser.add_argument("-f", "--force", action="store_true", help="overwrite FILE")


def setting(text: str) -> tuple[str, Any]:
    """An argument of a factory."""
    name, equals, value = text.partition("=")
    if not (equals and name.isidentifier()):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    try:
        return name, literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


# Plans


def check(arguments: argparse.Namespace) -> None:
    """Refuse what is wrong on the command line before a model is built."""
    for path in (arguments.output, getattr(arguments, "html", None)):
        check_output(path, force=arguments.force)
    if not is_saved(arguments.target):
        options_of(arguments)


def reports_of(arguments: argparse.Namespace, **more: Any) -> list[Report]:
    """The plans of the command's target; ``more`` are options."""
    if is_saved(arguments.target):
        return saved_reports(arguments.target, arguments)
    return planner_of(arguments.target, dict(arguments.arg))(options_of(arguments, **more))


def is_saved(target: str) -> bool:
    """True for a file of saved reports."""
    return target.endswith(".json")


def is_log(target: str) -> bool:
    """True for an operator log."""
    return target.endswith(_LOGS)


def options_of(arguments: argparse.Namespace, **more: Any) -> Options:
    """The options of a plan."""
    if arguments.budget is None:
        raise CommandError("a budget is missing: write --budget 60%, or bytes, as in --budget 8GiB")
    given = {name: getattr(arguments, name) for name in _PLAN_OPTIONS}
    return Options(**{name: value for name, value in given.items() if value is not None}, **more)


def parse_options(text: str) -> dict[str, Any]:
    """Options in the form ``heuristic=lru,planner=online``."""
    given: dict[str, Any] = {}
    for part in text.replace(",", " ").split():
        try:
            name, value = setting(part)
        except argparse.ArgumentTypeError as error:
            raise CommandError(f"{error}, as in heuristic=lru") from None
        if name not in _PLAN_OPTIONS:
            raise CommandError(f"unknown option {name!r}{did_you_mean(name, _PLAN_OPTIONS)}")
        given[name] = value
    return given


def saved_reports(path: str, arguments: argparse.Namespace | None = None) -> list[Report]:
    """Reports in a file: one, or a list of them."""
    for name in (*_PLAN_OPTIONS, "arg"):
        if arguments is not None and getattr(arguments, name):
            raise CommandError(f"{path} holds plans that are made: leave --{name.replace('_', '-')} out")
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"cannot read {path}: {getattr(error, 'strerror', None) or 'no text'}") from None
    try:
        found = json.loads(text)
        entries = found if isinstance(found, list) else [found]
        reports = [Report.from_json(json.dumps(entry)) for entry in entries]
    except ValueError as error:
        raise CommandError(f"{path} holds no reports: {' '.join(str(error).split())}") from None
    if not reports:
        raise CommandError(f"{path} holds no reports: its list is empty")
    return reports


def planner_of(target: str, settings: Mapping[str, Any]) -> Planner:
    """Load a target; what is returned plans it, as often as it is called."""
    if is_log(target) or _is_program(target):
        _check_no(settings, target)
        return _plans_of_log(Path(target)) if is_log(target) else _plans_of_program(Path(target))
    model, inputs = load_target(target, **settings)

    # Compilation machinery takes seconds to import, which --help and a mistyped option need not wait for.
    from dtr_fx.compiler.backend import plan_step
    from dtr_fx.torch_private import TorchDynamoException

    def plan(options: Options) -> list[Report]:
        with waiting(f"tracing and planning {target}"):
            try:
                reports = plan_step(model, inputs, options)
            except (RuntimeError, TypeError, ValueError, TorchDynamoException) as error:
                if isinstance(error, DTRError):
                    raise
                raise CommandError(f"{target}: the model fails on its example inputs: {error}") from error
        if not reports:
            raise CommandError(f"{target}: no graph was traced, so there is nothing to plan")
        return reports

    return plan


def _is_program(target: str) -> bool:
    return target.endswith(".pt2")


def _check_no(settings: Mapping[str, Any], target: str) -> None:
    if settings:
        raise CommandError(f"{target} is no factory: leave --arg out")


def _plans_of_log(path: Path) -> Planner:
    from dtr_fx.lab.log_plans import LogPlanning

    program = read(path)
    return lambda options: [LogPlanning(program, options).report()]


def _plans_of_program(path: Path) -> Planner:
    from dtr_fx.planning.transform import rewritten_copy

    graph = exported_graph(path)
    return lambda options: [rewritten_copy(graph, options)[1]]


def exported_graph(path: Path) -> GraphModule:
    """The graph of a program that ``torch.export.save`` wrote."""
    if not path.is_file():
        raise CommandError(f"there is no file {path}")
    with one_line(f"{path} holds no exported program"):
        return torch.export.load(path).module()


def graph_of(target: str, settings: Mapping[str, Any]) -> GraphModule:
    """The target's training step as one graph, traced on fake tensors."""
    if _is_program(target):
        _check_no(settings, target)
        return exported_graph(Path(target))

    from dtr_fx.lab import baselines
    from dtr_fx.torch_private import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        joint = baselines.trace(*load_target(target, **settings))
    # At its own peak the graph is only put into the order in which it runs.
    return baselines.plan(joint, Options())[0]


# Printing


class View(NamedTuple):
    """A plan as data for ``json.dumps``, and as text: ``render(width=, color=)``."""

    data: Callable[[], object]
    render: Callable[..., str]


def show(arguments: argparse.Namespace, view: Callable[[Report], View]) -> None:
    """Plan the command's target and print a view of each plan, under why its graph was traced."""
    check(arguments)
    reports = reports_of(arguments)
    print_views(arguments, list(map(view, reports)), [report.trigger for report in reports])
    write_page(arguments, reports)


def print_views(arguments: argparse.Namespace, views: Sequence[View], triggers: Sequence[str] = ()) -> None:
    """Print a text for each plan, or the data, to where the command says.

    ``triggers`` say why each graph was traced, where a model is traced several times.
    """

    def text(on: Screen) -> str:
        texts = [view.render(width=on.width, color=on.color) for view in views]
        return _numbered(texts, triggers or [""] * len(views))

    write(arguments, lambda: [view.data() for view in views], text)


def write(arguments: argparse.Namespace, data: Callable[[], object], text: Callable[[Screen], str]) -> None:
    """Print the text, or the data with ``--json``, to where the command says."""
    if arguments.json:
        shown = json.dumps(data()) + "\n"
    else:
        shown = text(screen(to_file=arguments.output is not None))
    if arguments.output is not None:
        write_text(arguments.output, shown, force=arguments.force)
    else:
        sys.stdout.write(shown)
        sys.stdout.flush()


def _numbered(texts: Sequence[str], triggers: Sequence[str]) -> str:
    if len(texts) == 1:
        return texts[0]
    titles = (
        f"graph {number} of {len(texts)}{': ' if trigger else ''}{trigger}"
        for number, trigger in enumerate(triggers, 1)
    )
    return "\n".join(f"{title}\n{text}" for title, text in zip(titles, texts))


def write_page(arguments: argparse.Namespace, reports: Sequence[Report]) -> None:
    """Write the page of all plans, if it is asked for."""
    if arguments.html is None:
        return
    from dtr_fx.inspect.html import render

    data_on_stdout = arguments.json and arguments.output is None
    with contextlib.redirect_stdout(sys.stderr if data_on_stdout else sys.stdout):
        write_text(arguments.html, render(reports), force=arguments.force)
