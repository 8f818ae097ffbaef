"""Measure: training steps of models under budgets, and the runtime on the paper's networks and logs.

Each benchmark prints a table; dtr-fx bench NAME --help says what is in it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias, TypeVar

from dtr_fx.cli import Parser, add_commands
from dtr_fx.cli.plans import add_settings

Rows: TypeAlias = "list[dict[str, Any]]"

_Row = TypeVar("_Row")


def add_arguments(parser: Parser) -> None:
    add_commands(parser, "BENCHMARK", __name__, ("steps", "plans", "costs", "device", "paper"))


def add_targets(parser: argparse.ArgumentParser, nargs: str = "+", default: str = "") -> None:
    """The models that are measured, the arguments of their factories, and ``--json``."""
    what = f"zoo:NAME, package.module:factory or path/to/file.py:factory{default}"
    parser.add_argument("targets", nargs=nargs, metavar="TARGET", help=what)
    add_settings(parser)
    parser.add_argument("--json", action="store_true", help="print data, not text")


def each_target(
    arguments: argparse.Namespace,
    measure: Callable[[str, argparse.Namespace], Rows],
    text: Callable[[str, Rows], str],
) -> None:
    """Print a text for each target, as soon as it is measured, or at the end a JSON list of them all."""
    measured = ((target, measure(target, arguments)) for target in arguments.targets)
    found = collect(measured, lambda pair: text(*pair), quiet=arguments.json)
    if arguments.json:
        print(json.dumps([{"target": target, "rows": rows} for target, rows in found], indent=1))


def collect(results: Iterable[_Row], text: Callable[[_Row], str] | None, *, quiet: bool) -> list[_Row]:
    """The results; unless ``quiet``, a text for each, if there is one, is printed as soon as it is there."""
    found = []
    for result in results:
        found.append(result)
        if text is not None and not quiet:
            print(text(result), end="\n\n", flush=True)
    return found
