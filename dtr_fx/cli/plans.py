"""The commands that look at plans: their target, their options, and how they print."""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import sys
from ast import literal_eval
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import torch
from torch.fx import GraphModule

from dtr_fx.cli.arguments import add_heuristic, read, seconds
from dtr_fx.cli.output import Screen, check_output, screen, waiting, write_text
from dtr_fx.cli.targets import load_target, one_line
from dtr_fx.errors import CommandError, DTRError, did_you_mean
from dtr_fx.inspect.views import Report
from dtr_fx.planning.options import Options

TARGETS = """TARGET is one of

  package.module:factory      a function that returns a model and its example inputs (a tensor, a tuple of
  path/to/file.py:factory     arguments, or a dictionary of keyword arguments); --arg NAME=VALUE is passed on
  zoo:NAME                    a model that comes with dtr_fx:
                              {zoo}
  FILE.json                   reports that were saved with --json, or by options={{"report": "FILE.json"}}
  FILE.pt2                    a program saved by torch.export.save
  FILE.log, FILE.log.gz       an operator log, as dtr-fx record writes it

A model is compiled, run forward, and run backward from its output if that is a scalar, else from the sum of
its floating-point outputs. Each graph that is traced on the way has a plan of its own. With --optimizer the
whole training step is one graph, traced and not run, and a budget counts gradients and the optimizer's state.
"""

Planner: TypeAlias = Callable[[Options], list[Report]]
_Shown = TypeVar("_Shown")

SAVED, LOGS, _PROGRAM = ".json", (".log", ".log.gz", ".gz"), ".pt2"
_PLAN_OPTIONS = ("budget", "heuristic", "planner", "plan_seconds", "costs", "slices")


def add_arguments(parser: argparse.ArgumentParser, *, html: bool = True) -> None:
    """TARGET, how to plan, where to print: for the commands that look at its plans."""
    add = parser.add_argument
    add_target(parser)
    add("--budget", help='a share of each graph\'s own peak ("60%%", 0.6), bytes ("8GiB", 100000), or "auto"')
    add_heuristic(parser, Options.heuristic)
    add("--planner", choices=("search", "online"), help="many passes, or the paper's one (default: search)")
    add("--plan-seconds", type=seconds, metavar="S", help="effort of a search")
    add("--costs", choices=("roofline", "profile"), help="operators' times: estimated, or measured")
    about = "operators that may run slice by slice (default: exact, those whose results stay the same)"
    add("--slices", choices=("exact", "summed", "off"), help=about)
    add_printing(parser)
    if html:
        add("--html", type=Path, metavar="FILE", help="write the report as a page to FILE")


def add_target(parser: argparse.ArgumentParser, help: str = "a model, a log or saved reports") -> None:
    """TARGET, and the arguments of its factory."""
    parser.add_argument("target", metavar="TARGET", help=help)
    about = 'plan whole steps of this optimizer, with its settings: adamw, "sgd lr=0.1 momentum=0.9"'
    parser.add_argument("--optimizer", type=optimizer, metavar="NAME", help=about)
    add_settings(parser)


def add_settings(parser: argparse.ArgumentParser) -> None:
    """The arguments of a factory."""
    about = "an argument of the factory: a Python literal, else a string; may be repeated"
    parser.add_argument("--arg", action="append", default=[], type=setting, metavar="NAME=VALUE", help=about)


def add_printing(parser: argparse.ArgumentParser) -> None:
    """Where to print, and as what."""
    add = parser.add_argument
    add("--json", action="store_true", help="print data, not text")
    add("-o", "--output", type=Path, metavar="FILE", help="write to FILE, not to stdout")
    add("-f", "--force", action="store_true", help="overwrite FILE")


def setting(text: str) -> tuple[str, Any]:
    """An argument of a factory."""
    name, equals, value = text.partition("=")
    if not (equals and name.isidentifier()):
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    try:
        return name, literal_eval(value)
    except (ValueError, SyntaxError):
        return name, value


def optimizer(text: str) -> Callable[..., torch.optim.Optimizer]:
    """An optimizer of ``torch.optim`` and its settings, as in ``sgd momentum=0.9``, to be made."""
    name, *settings = text.split()
    known = {name.lower(): kind for name, kind in vars(torch.optim).items() if isinstance(kind, type)}
    kind = known.get(name.lower())
    if kind is None or not issubclass(kind, torch.optim.Optimizer):
        raise argparse.ArgumentTypeError(f"torch.optim has no {name!r}{did_you_mean(name.lower(), known)}")
    return functools.partial(kind, **dict(map(setting, settings)))


# Plans


def check(arguments: argparse.Namespace) -> None:
    """Refuse what is wrong on the command line before a model is built."""
    for path in (arguments.output, getattr(arguments, "html", None)):
        check_output(path, force=arguments.force)
    if not arguments.target.endswith(SAVED):
        options_of(arguments)


def reports_of(arguments: argparse.Namespace, **more: Any) -> list[Report]:
    """The plans of the command's target; ``more`` are options."""
    if arguments.target.endswith(SAVED):
        return saved_reports(arguments.target, arguments)
    return planner(arguments)(options_of(arguments, **more))


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


def planner(arguments: argparse.Namespace) -> Planner:
    """Load the command's target; what is returned plans it, as often as it is called."""
    target, settings = arguments.target, dict(arguments.arg)
    if arguments.optimizer is not None:
        step = whole_step(target, settings, arguments.optimizer)
        return lambda options: [_planned(step, options)]
    if target.endswith(LOGS):
        from dtr_fx.lab.log_plans import LogPlanning

        _check_no(settings, target)
        program = read(Path(target))
        return lambda options: [LogPlanning(program, options).report()]
    if target.endswith(_PROGRAM):
        graph = _exported_graph(target, settings)
        return lambda options: [_planned(graph, options)]
    model, inputs = load_target(target, **settings)

    # Only now: a mistyped option need not wait for compilation machinery.
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


def _planned(graph: GraphModule, options: Options) -> Report:
    from dtr_fx.planning.transform import rewritten_copy

    with waiting("planning"):
        return rewritten_copy(graph, options)[1]


def whole_step(
    target: str, settings: Mapping[str, Any], make: Callable[..., torch.optim.Optimizer]
) -> GraphModule:
    """The target's whole training step as one graph, without a plan."""
    if target.endswith((SAVED, _PROGRAM, *LOGS)):
        raise CommandError(f"{target} is no model: leave --optimizer out")
    model, inputs = load_target(target, **settings)
    if not isinstance(model, torch.nn.Module):
        raise CommandError(f"{target}: a function has no parameters to train; give a module")

    from dtr_fx.compiler.train_step import train_step
    from dtr_fx.planning.step import call, loss_of

    def loss(model: torch.nn.Module, inputs: Any) -> Any:
        return loss_of(call(model, inputs))

    with waiting(f"tracing {target}"), one_line(f"{target}: --optimizer"):
        return train_step(model, loss, make(model.parameters())).graph(inputs)


def _check_no(settings: Mapping[str, Any], target: str) -> None:
    if settings:
        raise CommandError(f"{target} is no factory: leave --arg out")


def _exported_graph(target: str, settings: Mapping[str, Any]) -> GraphModule:
    """The graph of a program that ``torch.export.save`` wrote."""
    _check_no(settings, target)
    if not Path(target).is_file():
        raise CommandError(f"there is no file {target}")
    with one_line(f"{target} holds no exported program"):
        return torch.export.load(target).module()


def graph_of(arguments: argparse.Namespace) -> GraphModule:
    """The command's target as one graph, traced on fake tensors."""
    target, settings = arguments.target, dict(arguments.arg)
    if arguments.optimizer is not None:
        return whole_step(target, settings, arguments.optimizer)
    if target.endswith(_PROGRAM):
        return _exported_graph(target, settings)

    from dtr_fx.lab import baselines
    from dtr_fx.torch_private import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        joint = baselines.trace(*load_target(target, **settings))
    # At its own peak the graph is only put into the order in which it runs.
    return baselines.plan(joint, Options())[0]


# Printing


def show(arguments: argparse.Namespace, data: Callable[[Report], object], render: Callable[..., str]) -> None:
    """Plan the command's target and print a view of each plan, under why its graph was traced."""
    check(arguments)
    reports = reports_of(arguments)
    print_each(arguments, reports, data, render, [report.trigger for report in reports])
    write_page(arguments, reports)


def print_each(
    arguments: argparse.Namespace,
    found: Sequence[_Shown],
    data: Callable[[_Shown], object],
    render: Callable[..., str],
    triggers: Sequence[str] = (),
) -> None:
    """Print what was found of each plan: a text ``render(it, width=, color=)``, or the data.

    ``triggers`` say why each graph was traced, where a model is traced several times.
    """

    def text(on: Screen) -> str:
        texts = [render(each, width=on.width, color=on.color) for each in found]
        if len(texts) == 1:
            return texts[0]
        titles = (
            f"graph {number} of {len(texts)}{': ' if trigger else ''}{trigger}"
            for number, trigger in enumerate(triggers or [""] * len(texts), 1)
        )
        return "\n".join(f"{title}\n{text}" for title, text in zip(titles, texts))

    write(arguments, lambda: list(map(data, found)), text)


def write(arguments: argparse.Namespace, data: Callable[[], object], text: Callable[[Screen], str]) -> None:
    """Print the text, or the data with ``--json``, to where the command says."""
    to_file = arguments.output is not None
    shown = json.dumps(data()) + "\n" if arguments.json else text(screen(to_file=to_file))
    if to_file:
        write_text(arguments.output, shown, force=arguments.force)
    else:
        sys.stdout.write(shown)
        sys.stdout.flush()


def write_page(arguments: argparse.Namespace, reports: Sequence[Report]) -> None:
    """Write the page of all plans, if it is asked for."""
    if arguments.html is None:
        return
    from dtr_fx.inspect.html import render

    data_on_stdout = arguments.json and arguments.output is None
    with contextlib.redirect_stdout(sys.stderr if data_on_stdout else sys.stdout):
        write_text(arguments.html, render(reports), force=arguments.force)
