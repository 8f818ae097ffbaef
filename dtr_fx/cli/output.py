"""The terminal of a command, and the files that it writes: never over one that is there, without ``-f``."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dtr_fx.errors import CommandError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class Screen(NamedTuple):
    """Columns, and whether there are colours."""

    width: int
    color: bool


def screen(*, to_file: bool = False, pipe_width: int = 120) -> Screen:
    """The terminal that stdout is, or what stands for it in a pipe or a file: wide, and without colours."""
    if to_file or not sys.stdout.isatty():
        return Screen(pipe_width, color=False)
    return Screen(shutil.get_terminal_size((pipe_width, 0)).columns, color=not os.environ.get("NO_COLOR"))


def check_output(path: Path | None, *, force: bool) -> None:
    """Refuse, before anything runs, a file that is there already, is a folder, or has none to lie in."""
    if path is None:
        return
    if path.is_dir():
        raise CommandError(f"cannot write {path}: it is a folder")
    if path.exists() and not force:
        raise CommandError(f"{path} exists: overwrite it with -f, or name another file")
    if not path.parent.is_dir():
        raise CommandError(f"cannot write {path}: there is no folder {path.parent}")


def check_outputs(arguments: argparse.Namespace, suffixes: Collection[str]) -> None:
    """Refuse ``-o`` files of other kinds or that cannot be written, and any of them beside ``--json``."""
    if arguments.json and arguments.output:
        raise CommandError("give --json, which prints, or -o FILE.json, which writes, not both")
    for path in arguments.output:
        if path.suffix not in suffixes:
            raise CommandError(f"{path}: name the file by what it is to be: {', '.join(suffixes)}")
        check_output(path, force=arguments.force)


def write_text(path: Path, text: str, *, force: bool) -> None:
    """Write the file and say so."""
    with _written(path), path.open("w" if force else "x", encoding="utf-8") as file:
        file.write(text)


def write_picture(path: Path, picture: Figure) -> None:
    """Draw the file, over one that is there, and say so."""
    with _written(path):
        picture.savefig(path)


@contextmanager
def _written(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}") from None
    print(f"Wrote {path}")
