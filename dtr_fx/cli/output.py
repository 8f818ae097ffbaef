"""What a command shows, on the terminal and how far it has come, and the files that it writes."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from dtr_fx.errors import CommandError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_WIDTH = 30
_CLEAR = "\r\033[K"
_INTERVAL = 0.1  # seconds between two pictures of the bar
_LINES = 10.0  # seconds between two lines where stderr is no terminal

_Item = TypeVar("_Item")


class Screen(NamedTuple):
    """Columns, and whether there are colours."""

    width: int
    color: bool


def screen(*, to_file: bool = False, pipe_width: int = 120) -> Screen:
    """The terminal that stdout is, or what stands for it: ``COLUMNS`` or many, and no colours."""
    if to_file:
        return Screen(pipe_width, color=False)
    if not sys.stdout.isatty():
        columns = os.environ.get("COLUMNS", "")
        return Screen(int(columns) if columns.isdecimal() and int(columns) else pipe_width, color=False)
    return Screen(shutil.get_terminal_size((pipe_width, 0)).columns, color=not os.environ.get("NO_COLOR"))


def check_output(path: Path | None, *, force: bool) -> None:
    """Refuse, before anything runs, a file that is there without ``-f``, or that cannot be written."""
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


# How far a command has come, on stderr: a picture for a person who waits at a terminal, a line now and then
# elsewhere.


@contextmanager
def progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show how far a command has come, until the block ends.

    Yields ``advance(done)``, to be called with how many of the ``total`` steps are done.
    """
    at = 0

    def picture() -> str:
        filled = _WIDTH * at // max(total, 1)
        return f" {'█' * filled}{'░' * (_WIDTH - filled)} {at}/{total} "

    def advance(done: int) -> None:
        nonlocal at
        at = done

    with _shown(label, picture, lambda: f" {at}/{total}"):
        yield advance


def tracked(label: str, items: Sequence[_Item]) -> Iterator[_Item]:
    """The items, while it shows how many a loop is done with."""
    with progress(label, len(items)) as advance:
        for done, item in enumerate(items, 1):
            yield item
            advance(done)


@contextmanager
def waiting(label: str) -> Iterator[None]:
    """Show the time that has gone by in something without steps, until the block ends."""
    with _shown(label, lambda: " …", lambda: ""):
        yield


@contextmanager
def _shown(label: str, picture: Callable[[], str], words: Callable[[], str]) -> Iterator[None]:
    """Until the block ends a thread shows how far it has come: its work may take long between two steps."""
    start, ended = time.monotonic(), threading.Event()
    on_terminal = sys.stderr.isatty()

    def show() -> None:
        clock = _clock(time.monotonic() - start)
        _print(f"{_CLEAR}{label}{picture()} {clock}" if on_terminal else f"{label}{words()}, {clock}\n")

    def keep_showing() -> None:
        while not ended.wait(_INTERVAL if on_terminal else _LINES):
            show()

    thread = threading.Thread(target=keep_showing, daemon=True)
    if on_terminal:
        show()
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        if on_terminal:
            show()
            _print(_CLEAR)


def _print(text: str) -> None:
    print(text, end="", file=sys.stderr, flush=True)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02d}"
