"""What the benchmarks of models share: their TARGETs, and a row or more for each."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import Any, TypeAlias

from dtr_fx.cli.plans import add_settings

Rows: TypeAlias = "list[dict[str, Any]]"


def add_targets(parser: argparse.ArgumentParser, nargs: str = "+", default: str = "") -> None:
    """The models that are measured, the arguments of their factories, and ``--json``."""
    what = "zoo:NAME, package.module:factory or path/to/file.py:factory"
    parser.add_argument(
        "targets", nargs=nargs, metavar="TARGET", help=f"{what} (default: {default})" if default else what
    )
    add_settings(parser)
    parser.add_argument("--json", action="store_true", help="print data, not text")


def each_target(
    arguments: argparse.Namespace, measure: Callable[[str], Rows], text: Callable[[str, Rows], str]
) -> None:
    """Print a text for each target, as soon as it is measured, or at the end a JSON list of them all."""
    found = []
    for target in arguments.targets:
        rows = measure(target)
        found.append({"target": target, "rows": rows})
        if not arguments.json:
            print(text(target, rows), end="\n\n", flush=True)
    if arguments.json:
        print(json.dumps(found, indent=1))


def name_of(target: str) -> str:
    """The factory's name alone."""
    return target.rpartition(":")[2]
