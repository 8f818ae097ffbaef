"""The commands that look at plans: their target, their options, and how they print; without torch."""

from __future__ import annotations

import argparse
import contextlib
import json
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from dtr_fx.cli.arguments import add_heuristic, seconds, setting
from dtr_fx.cli.output import Screen, check_output, screen, write_text
from dtr_fx.cli.targets import LOGS, PROGRAM, SAVED, find_factory
from dtr_fx.errors import CommandError, did_you_mean
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
its floating-point outputs. Each graph that is traced on the way has a plan of its own. A model on the meta
device can have any size: it is planned as on a CPU, and nothing of it is run. With --optimizer the
whole training step is one graph, traced and not run, and a budget counts gradients and the optimizer's state.
"""

_Shown = TypeVar("_Shown")

_PLAN_OPTIONS = ("budget", "heuristic", "planner", "plan_seconds", "costs", "slices", "offload", "count")


def add_arguments(parser: argparse.ArgumentParser, *, html: bool = True) -> None:
    """TARGET, how to plan, where to print: for the commands that look at its plans."""
    add = parser.add_argument
    add_target(parser)
    add("--budget", help='a share of each graph\'s own peak ("60%%", 0.6), bytes ("8GiB", 100000), or "auto"')
    add_heuristic(parser, Options.heuristic)
    add("--planner", choices=("search", "online"), help="many passes, or the paper's one (default: search)")
    add("--plan-seconds", type=seconds, metavar="S", help="effort of a search")
    add("--costs", choices=("auto", "roofline", "profile"), help="operators' times: estimated, or measured")
    add_slices(parser)
    about = "what a budget is of: allocated bytes, or those that PyTorch's CUDA allocator reserves for them"
    add("--count", choices=("allocated", "reserved"), help=f"{about} (default: allocated)")
    add_printing(parser)
    if html:
        add_page(parser)


def add_target(parser: argparse.ArgumentParser, help: str = "a model, a log or saved reports") -> None:
    """TARGET, and the arguments of its factory."""
    parser.add_argument("target", metavar="TARGET", help=help)
    about = 'plan whole steps of this optimizer, with its settings: adamw, "sgd lr=0.1 momentum=0.9"'
    parser.add_argument("--optimizer", metavar="NAME", help=about)
    about = "plan for a device that need not be here: h100, a100-80, rtx4090, ..., or FILE.toml"
    parser.add_argument("--device", metavar="NAME", help=about)
    add_settings(parser)


def add_slices(parser: argparse.ArgumentParser, usual: str | None = None) -> None:
    """``--slices`` and ``--offload``: what else a plan may do than recompute."""
    about = "operators that may run slice by slice (default: exact, those whose results stay the same)"
    parser.add_argument("--slices", choices=("exact", "summed", "off"), default=usual, help=about)
    about = "where values may be moved: host, disk, a folder, 16GiB of host memory, disk:16GiB"
    parser.add_argument("--offload", metavar="PLACE", help=about)


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


def add_page(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--html", type=Path, metavar="FILE", help="write the report as a page to FILE")


# Plans


def check(arguments: argparse.Namespace) -> None:
    """Refuse what is wrong on the command line before a model is built."""
    for path in (arguments.output, getattr(arguments, "html", None)):
        check_output(path, force=arguments.force)
    if not arguments.target.endswith(SAVED):
        options_of(arguments)
        check_target(arguments.target)


def check_target(target: str) -> None:
    """Refuse a target that is seen to be wrong before anything is imported."""
    if not target.endswith((PROGRAM, *LOGS)):
        find_factory(target)
    elif not Path(target).is_file():
        raise CommandError(f"there is no file {target}")


def reports_of(arguments: argparse.Namespace, **more: Any) -> list[Report]:
    """The plans of the command's target; ``more`` are options."""
    if arguments.target.endswith(SAVED):
        return saved_reports(arguments.target, arguments)
    from dtr_fx.cli.planned import planner

    found = planner(arguments)(options_of(arguments, **more))
    return [replace(report, model=arguments.target) for report in found]


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
    for name in (*_PLAN_OPTIONS, "arg", "device"):
        if arguments is not None and getattr(arguments, name):
            raise CommandError(f"{path} holds plans that are made: leave --{name.replace('_', '-')} out")
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"cannot read {path}: {getattr(error, 'strerror', None) or 'no text'}") from None
    try:
        found = json.loads(text)
        entries = found if isinstance(found, list) else [found]
        reports = [Report.from_data(entry) for entry in entries]
    except ValueError as error:
        raise CommandError(f"{path} holds no reports: {' '.join(str(error).split())}") from None
    if not reports:
        raise CommandError(f"{path} holds no reports: its list is empty")
    return reports


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


def command_of(arguments: argparse.Namespace, page: Path) -> str:
    """The command line that was typed, the page without its folder."""
    return shlex.join(["dtr-fx", *(page.name if word == str(page) else word for word in arguments.words)])


def write_page(arguments: argparse.Namespace, reports: Sequence[Report], above: str = "") -> None:
    """Write the page of all plans, below some HTML, if it is asked for."""
    if arguments.html is None:
        return
    from dtr_fx.inspect.html import render

    data_on_stdout = arguments.json and arguments.output is None
    with contextlib.redirect_stdout(sys.stderr if data_on_stdout else sys.stdout):
        page = render(reports, command=command_of(arguments, arguments.html), above=above)
        write_text(arguments.html, page, force=arguments.force)
