"""Train inside a byte budget: see what a plan does to a model, and run the paper's experiments."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
import textwrap
from collections.abc import Sequence
from typing import NoReturn

from dtr_fx.errors import DTRError

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
    arguments = make_parser(given[:1]).parse_args(given)
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


def make_parser(wanted: Sequence[str] = ()) -> argparse.ArgumentParser:
    """The parser of the command line: of the command that is wanted, or of all."""
    parser = _Parser(prog="dtr-fx", description=__doc__)
    add_commands(parser, "COMMAND", __name__, [name for name in wanted if name in _COMMANDS] or _COMMANDS)
    return parser


def add_commands(parser: argparse.ArgumentParser, kind: str, package: str, names: Sequence[str]) -> None:
    """A command for each of a package's modules, which explains it, adds its arguments and runs it."""
    commands = parser.add_subparsers(metavar=kind, required=True)
    for name in names:
        module = importlib.import_module(f"{package}.{name}")
        text = f"{module.__doc__}\n{_targets()}" if name in _TAKE_TARGETS else module.__doc__ or ""
        formatter = argparse.RawDescriptionHelpFormatter
        first, *_ = text.splitlines()
        command = commands.add_parser(name, help=first, description=text, formatter_class=formatter)
        module.add_arguments(command)
        if hasattr(module, "run"):
            command.set_defaults(run=module.run)


def _targets() -> str:
    """The part of the commands' help on their targets."""
    from dtr_fx.cli.plans import TARGETS
    from dtr_fx.lab.zoo import MODELS

    zoo = textwrap.fill(", ".join(MODELS), 72).replace("\n", f"\n{'':30}")
    return TARGETS.format(zoo=zoo)
