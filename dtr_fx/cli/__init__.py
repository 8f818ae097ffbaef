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

# Modules of this package; each imports what it needs, which takes seconds for some.
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
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name in [name for name in wanted if name in _COMMANDS] or _COMMANDS:
        module = importlib.import_module(f"{__name__}.{name}")
        text = module.__doc__ or ""
        command = commands.add_parser(
            name,
            help=text.splitlines()[0],
            description=f"{text}\n{_targets()}" if name in _TAKE_TARGETS else text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def _targets() -> str:
    """The part of the commands' help on their targets."""
    from dtr_fx.cli.plans import TARGETS
    from dtr_fx.lab.zoo import MODELS

    zoo = textwrap.fill(", ".join(MODELS), 72).replace("\n", f"\n{'':30}")
    return TARGETS.format(zoo=zoo)
