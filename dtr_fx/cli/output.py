"""What a command prints on, and files that it writes: never over one that is there, unless told to."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dtr_fx.errors import CommandError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_PIPE_WIDTH = 120


@dataclass(frozen=True)
class Screen:
    """Columns, and whether there are colours."""

    width: int
    color: bool


def screen(*, to_file: bool = False, pipe_width: int = _PIPE_WIDTH) -> Screen:
    """The terminal that stdout is, or what stands for it in a pipe or a file: wide, and without colours."""
    if to_file or not sys.stdout.isatty():
        return Screen(pipe_width, color=False)
    return Screen(shutil.get_terminal_size((pipe_width, 0)).columns, color=not os.environ.get("NO_COLOR"))


def check_output(path: Path | None, *, force: bool) -> None:
    """Refuse, before anything runs, a file that is there already, is a folder, or has none to lie in.

    Raises
    ------
    CommandError
        See above.
    """
    if path is None:
        return
    if path.is_dir():
        raise CommandError(f"cannot write {path}: it is a folder")
    if path.exists() and not force:
        raise CommandError(f"{path} exists: overwrite it with -f, or name another file")
    if not path.parent.is_dir():
        raise CommandError(f"cannot write {path}: there is no folder {path.parent}")


def write_text(path: Path, text: str, *, force: bool) -> None:
    """Write the file and say so.

    Raises
    ------
    CommandError
        It cannot be written, or has appeared in the meantime.
    """
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}") from None
    print(f"Wrote {path}")


def write_picture(path: Path, picture: Figure) -> None:
    """Draw the file, over one that is there, and say so.

    Raises
    ------
    CommandError
        It cannot be written.
    """
    try:
        picture.savefig(path)
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}") from None
    print(f"Wrote {path}")
