"""The folder of what is kept between processes, the times of operators and plans, and writing there."""

from __future__ import annotations

import contextlib
import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

if sys.platform != "win32":
    import fcntl

# What ``DTR_CACHE`` is where nothing is to be kept.
_OFF = ("off", "no", "false", "0")


def cache_folder(given: str | os.PathLike[str] | bool | None = None) -> Path | None:
    """The folder that is given, else ``$DTR_CACHE``, else ``~/.cache/dtr_fx``; None where it is switched off.

    Given True it is the last of these, given False none.
    """
    asked = os.environ.get("DTR_CACHE") if given is None else given
    if asked is False or (isinstance(asked, str) and asked.lower() in _OFF):
        return None
    if asked and asked is not True:
        return Path(asked).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "dtr_fx"


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep all others, threads and processes, that ask for the same folder waiting; not on Windows.

    The folder is made.  On a file system without locks none waits.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if sys.platform == "win32":
        yield
        return
    opened = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)  # which unlocks it, too


def replace_file(file: Path, content: bytes) -> None:
    """Write a file in one step, its folder too: a reader sees all of the old or all of the new."""
    file.parent.mkdir(parents=True, exist_ok=True)
    written = file.with_name(f"{file.stem}.{uuid.uuid4().hex}.tmp")
    try:
        written.write_bytes(content)
        written.replace(file)
    finally:
        written.unlink(missing_ok=True)
