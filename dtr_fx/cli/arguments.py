"""Arguments that several commands take: numbers, budgets, heuristics, files, operator logs."""

from __future__ import annotations

import argparse
import contextlib
import math
from ast import literal_eval
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from dtr_fx.errors import CommandError, OptionError
from dtr_fx.planning.options import parse_budget
from dtr_fx.runtime import HEURISTICS, Deallocation
from dtr_fx.units import parse_percent

if TYPE_CHECKING:
    from dtr_fx.runtime.program import Program


def add_jobs(parser: argparse.ArgumentParser) -> None:
    """``--jobs``, for commands that use all cores."""
    parser.add_argument("-j", "--jobs", type=positive, metavar="N", help="at a time (default: one per core)")


def add_heuristic(parser: argparse.ArgumentParser, usual: str, **more: Any) -> None:
    """``--heuristic``; ``usual`` is what the help says of the default, ``more`` are argparse's settings."""
    names = more.setdefault("choices", tuple(HEURISTICS))
    about = f"how values to drop are chosen: {', '.join(names)} (default: {usual})"
    parser.add_argument("--heuristic", metavar="NAME", help=about, **more)


def add_deallocation(parser: argparse.ArgumentParser, **more: Any) -> None:
    """``--deallocation``; ``more`` are argparse's settings."""
    about = "of what is released: eager (evict it), banish (free it for good), ignore (default: eager)"
    policies = get_args(Deallocation)
    parser.add_argument("--deallocation", choices=policies, metavar="POLICY", help=about, **more)


def add_outputs(parser: argparse.ArgumentParser, forms: str) -> None:
    """``--output`` and ``--force``; ``forms`` says which suffixes there are."""
    about = f"write the results to FILE, too: {forms}; may be repeated"
    parser.add_argument("-o", "--output", action="append", default=[], type=Path, metavar="FILE", help=about)
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


def positive(text: str) -> int:
    """A number of things, one at least."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return int(text)


def budget(text: str) -> float | int:
    """A share of a log's peak, or bytes."""
    if text.isdecimal() and int(text):  # a log may count in units, so that a few of them are many
        return int(text)
    try:
        spec = parse_budget(text)
    except OptionError:
        raise argparse.ArgumentTypeError(
            f"{text}: write a share of the log's peak, at most 100% (60% or 0.6), or bytes (8GiB or 1000)"
        ) from None
    if spec.kind == "auto":
        raise argparse.ArgumentTypeError("a log runs on no device: write a share or bytes, not auto")
    return float(spec.value) if spec.kind == "fraction" else int(spec.value)


def _number(
    holds: Callable[[float], bool], otherwise: str, parse: Callable[[str], float] = float
) -> Callable[[str], float]:
    """The type of an argument: a number for which something ``holds``; its error says ``otherwise``."""

    def read_number(text: str) -> float:
        with contextlib.suppress(ValueError):
            value = parse(text)
            if holds(value):
                return value
        raise argparse.ArgumentTypeError(f"{text}{otherwise}")

    return read_number


slowdown = _number(lambda x: 1 <= x < math.inf, ": a slowdown is at least 1, the program's own time")
seconds = _number(lambda x: 0 < x < math.inf, " is not a positive number of seconds")
share = _number(
    lambda x: 0 < x <= 1,
    ": a share of the peak is above 0 and at most 100%",
    lambda text: parse_percent(text) if "%" in text else float(text),
)


def read(path: Path, *, simrd: bool = False) -> Program:
    """An operator log."""
    from dtr_fx.lab.log import read_log

    try:
        return read_log(path, simrd=simrd)
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}") from None


def check_names_apart(programs: Iterable[Program]) -> None:
    """Refuse logs that a picture could not tell apart."""
    for name, count in Counter(program.name for program in programs).items():
        if count > 1:
            raise CommandError(
                f"several of the logs are named {name}: a picture's panels need different names"
            )
