"""Train inside a byte budget: see what a plan does to a model, and run the paper's experiments."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from dtr_fx.cli import bench, diff, figures, record, simulate, sweep
from dtr_fx.errors import DTRError

__all__ = ["main"]

_COMMANDS = {
    "diff": diff,
    "sweep": sweep,
    "record": record,
    "simulate": simulate,
    "figures": figures,
    "bench": bench,
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a ``dtr-fx`` command line.

    Returns
    -------
    int
        0, or 2 after a user's error, which is written to stderr.

    Raises
    ------
    SystemExit
        After ``--help``, and on arguments that cannot be parsed.
    """
    arguments = _parser().parse_args(argv)
    try:
        arguments.run(arguments)
    except DTRError as error:
        print(f"dtr-fx: error: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader has seen enough, as `head` does
        # The interpreter flushes stdout once more on its way out.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="dtr-fx", description=__doc__)
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, module in _COMMANDS.items():
        text = module.__doc__ or ""
        command = commands.add_parser(
            name,
            help=text.splitlines()[0],
            description=text,
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser
