"""Print a script that completes dtr-fx on the command line of a shell.

  dtr-fx completion bash > ~/.local/share/bash-completion/completions/dtr-fx
  dtr-fx completion zsh > "${fpath[1]}/_dtr-fx"      # a folder of $fpath, before compinit

Commands, options, names of heuristics and files are completed. The script is complete in itself: completing
starts no Python.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Iterator

from dtr_fx.errors import CommandError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=("bash", "zsh", "tcsh"))


def run(arguments: argparse.Namespace) -> None:
    if importlib.util.find_spec("shtab") is None:
        raise CommandError("this needs shtab: pip install 'dtr_fx[completion]'")
    import shtab

    from dtr_fx.cli import make_parser

    parser = make_parser()
    for action in _actions(parser):
        if action.metavar in ("TARGET", "FILE", "FILE.json", "LOG"):
            action.complete = shtab.FILE  # type: ignore[attr-defined]
    sys.stdout.write(shtab.complete(parser, arguments.shell) + "\n")


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)
