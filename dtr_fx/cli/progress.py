"""How far a command has come, on stderr, for a person who waits at a terminal; nothing elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

_WIDTH = 30
_CLEAR = "\r\033[K"
_INTERVAL = 0.1  # seconds between two pictures of the bar

_Item = TypeVar("_Item")


@contextmanager
def progress(label: str, total: int) -> Iterator[Callable[[int], None]]:
    """Show how far a command has come, until the block ends.

    Yields ``advance(done)``, to be called with how many of the ``total`` steps are done.
    """
    if not sys.stderr.isatty():
        yield lambda done: None
        return
    start = time.monotonic()
    shown = -_INTERVAL

    def advance(done: int) -> None:
        nonlocal shown
        seconds = time.monotonic() - start
        if seconds - shown >= _INTERVAL:
            shown = seconds
            filled = _WIDTH * done // max(total, 1)
            bar = "█" * filled + "░" * (_WIDTH - filled)
            _print(f"{_CLEAR}{label} {bar} {done}/{total}  {_clock(seconds)}")

    advance(0)
    try:
        yield advance
    finally:
        _print(_CLEAR)


def tracked(label: str, items: Sequence[_Item]) -> Iterator[_Item]:
    """The items, while it shows how many a loop is done with."""
    with progress(label, len(items)) as advance:
        for done, item in enumerate(items, 1):
            yield item
            advance(done)


@contextmanager
def waiting(label: str) -> Iterator[None]:
    """Show the time that has gone by in something without steps, until the block ends."""
    if not sys.stderr.isatty():
        yield
        return
    start, ended = time.monotonic(), threading.Event()

    def show() -> None:
        while not ended.wait(_INTERVAL):
            _print(f"{_CLEAR}{label} … {_clock(time.monotonic() - start)}")

    clock = threading.Thread(target=show, daemon=True)
    clock.start()
    try:
        yield
    finally:
        ended.set()
        clock.join()
        _print(_CLEAR)


def _print(text: str) -> None:
    print(text, end="", file=sys.stderr, flush=True)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02d}"
