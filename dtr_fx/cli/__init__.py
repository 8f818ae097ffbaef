"""Train inside a byte budget: see what a plan does to a model, and run the paper's experiments."""

from __future__ import annotations

import argparse
import ast
import importlib.util
import io
import os
import shlex
import sys
import textwrap
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn

from dtr_fx.errors import DTRError, did_you_mean

__all__ = ["main", "make_parser"]

# Modules of this package. They import compilation machinery, which takes seconds, where it is used: --help
# need not wait for it.
_TAKE_TARGETS = ("diff", "show", "timeline", "why", "smallest")
_COMMANDS = (*_TAKE_TARGETS, *"sweep record simulate figures bench completion".split())


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line: 0, 2 after a user's error, which is written to stderr, or 130 after Ctrl-C."""
    # Where the locale has no block characters, question marks do.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    given = sys.argv[1:] if argv is None else list(argv)
    parser = make_parser([name for name in given[:1] if name in _COMMANDS])
    if given and not given[0].startswith("-") and given[0] not in _COMMANDS:
        parser.error(f"unknown command {given[0]!r}{did_you_mean(given[0], _COMMANDS)}")
    arguments = parser.parse_args(given, argparse.Namespace(typed=shlex.join(["dtr-fx", *given])))
    try:
        arguments.run(arguments)
    except DTRError as error:
        print(f"{getattr(error, 'traceback', '')}dtr-fx: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader has seen enough, as `head` does
        # The interpreter flushes stdout once more on its way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One line, as for all other errors."""
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def make_parser(wanted: Sequence[str] = _COMMANDS) -> argparse.ArgumentParser:
    """The parser of the command line, with the arguments of the commands that are wanted."""
    parser = _Parser(prog="dtr-fx", description=__doc__)
    versions = f"dtr_fx {version('dtr_fx')}, torch {version('torch')}"
    parser.add_argument("--version", action="version", version=versions)
    add_commands(parser, "COMMAND", __name__, _COMMANDS, wanted)
    return parser


def add_commands(
    parser: argparse.ArgumentParser,
    kind: str,
    package: str,
    names: Sequence[str],
    wanted: Sequence[str] | None = None,
) -> None:
    """A command for each of a package's modules, which explains it, adds its arguments and runs it.

    Those that are not ``wanted`` are named only, and not imported.
    """
    commands = parser.add_subparsers(metavar=kind, required=True)
    for name in names:
        if wanted is not None and name not in wanted:
            commands.add_parser(name, help=_first_line(f"{package}.{name}"))
            continue
        module = importlib.import_module(f"{package}.{name}")
        text = f"{module.__doc__}\n{_targets()}" if name in _TAKE_TARGETS else module.__doc__ or ""
        formatter = argparse.RawDescriptionHelpFormatter
        first, *_ = text.splitlines()
        command = commands.add_parser(name, help=first, description=text, formatter_class=formatter)
        module.add_arguments(command)
        if hasattr(module, "run"):
            command.set_defaults(run=module.run)


def _first_line(module: str) -> str:
    """Of the docstring of a module that is not imported."""
    found = importlib.util.find_spec(module)
    assert found is not None
    text = ast.get_docstring(ast.parse(Path(str(found.origin)).read_text(encoding="utf-8")))
    return (text or "").partition("\n")[0]


def _targets() -> str:
    """The part of the commands' help on their targets."""
    from dtr_fx.cli.plans import TARGETS
    from dtr_fx.lab.zoo import MODELS

    zoo = textwrap.fill(", ".join(MODELS), 72).replace("\n", f"\n{'':30}")
    return TARGETS.format(zoo=zoo)
