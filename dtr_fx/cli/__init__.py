"""Train inside a byte budget: see what a plan does to a model, and run the paper's experiments."""

from __future__ import annotations

import argparse
import ast
import contextlib
import importlib.util
import io
import os
import signal
import sys
import textwrap
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from dtr_fx import lab
from dtr_fx.errors import DTRError, did_you_mean

__all__ = ["main", "make_parser"]

# Modules of this package. They import torch, which takes seconds, where a model is planned: --help, errors of
# usage and saved plans need not wait for it.
_TAKE_TARGETS = ("diff", "show", "timeline", "why", "smallest")
_COMMANDS = (*_TAKE_TARGETS, *"sweep estimate record simulate figures bench completion".split())


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line: 0, 2 after a user's error, which is written to stderr, or 130 after Ctrl-C."""
    # Where the locale has no block characters, question marks do.
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    given = sys.argv[1:] if argv is None else list(argv)
    arguments = make_parser(given[:2]).parse_args(given, argparse.Namespace(words=given))
    try:
        with _insistent_interrupt():
            arguments.run(arguments)
    except DTRError as error:
        print(f"dtr-fx: error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("dtr-fx: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader has seen enough, as `head` does
        # The interpreter flushes stdout once more on its way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


@contextlib.contextmanager
def _insistent_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt at Ctrl-C, and again each second until the command has ended.

    An interrupt within the guards that Dynamo builds is lost (torch 2.13).
    """
    is_possible = hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()
    if not is_possible or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return

    def interrupt(*_: Any) -> NoReturn:
        signal.setitimer(signal.ITIMER_REAL, 1)
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGALRM)}
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for number, handler in before.items():
            signal.signal(number, handler)


class Parser(argparse.ArgumentParser):
    """A parser of the ``wanted`` commands alone, of all if None; the others are named and not imported."""

    wanted: Sequence[str] | None = None

    def error(self, message: str) -> NoReturn:
        """One line, as for all other errors."""
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            is_command = isinstance(action, argparse._SubParsersAction)
            what = "unknown command" if is_command else "invalid choice:"
            guess = did_you_mean(value, map(str, action.choices))
            raise argparse.ArgumentError(action, f"{what} {value!r}{guess}")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As always, but an unknown option is an error of the command that it was given to."""
        found, rest = super().parse_known_args(args, namespace)
        for word in rest:
            if word.startswith("--"):
                known = [name for name in self._option_string_actions if name.startswith("--")]
                self.error(f"unknown option {word}{did_you_mean(word.partition('=')[0], known)}")
        return found, rest


class _Version(argparse.Action):
    def __init__(self, **settings: Any) -> None:
        super().__init__(nargs=0, **settings)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import version  # where it is asked for: it takes longer than the parser

        print(f"dtr_fx {version('dtr_fx')}, torch {version('torch')}")
        parser.exit()


def make_parser(wanted: Sequence[str] | None = None) -> Parser:
    """The parser of the command line, with the arguments of the commands that are wanted, or of all."""
    parser = Parser(prog="dtr-fx", description=__doc__)
    parser.wanted = wanted
    parser.add_argument("--version", action=_Version, help="show the versions of dtr_fx and torch")
    add_commands(parser, "COMMAND", __name__, _COMMANDS)
    return parser


def add_commands(parser: Parser, kind: str, package: str, names: Sequence[str]) -> None:
    """A command for each of a package's modules, which explains it, adds its arguments and runs it."""
    commands = parser.add_subparsers(metavar=kind, required=True)
    for name in names:
        if parser.wanted is not None and name not in parser.wanted:
            commands.add_parser(name, help=_first_line(f"{package}.{name}"))
            continue
        module = importlib.import_module(f"{package}.{name}")
        text = f"{module.__doc__}\n{_targets()}" if name in _TAKE_TARGETS else module.__doc__ or ""
        formatter = argparse.RawDescriptionHelpFormatter
        first, *_ = text.splitlines()
        command = commands.add_parser(name, help=first, description=text, formatter_class=formatter)
        command.wanted = parser.wanted
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

    zoo = textwrap.fill(", ".join(lab.MODELS), 72).replace("\n", f"\n{'':30}")
    return TARGETS.format(zoo=zoo)
