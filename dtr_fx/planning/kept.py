"""Plans kept on disk, to be found again by the next process."""

from __future__ import annotations

import functools
import gzip
import hashlib
import logging
import zlib
from collections.abc import Callable
from pathlib import Path

from dtr_fx import runtime, search
from dtr_fx.costs.files import replace_file
from dtr_fx.runtime import Plan

log = logging.getLogger(__name__)

# How many plans a folder holds, and how many of the least recently used go when there are more.
_MOST, _FEWER = 2000, 500
_NONE = "no plan"


class KeptPlans:
    """Plans by all that they follow from, in a folder; without one, each is made anew.

    ``made_by`` is who plans, a question what for: values whose ``repr`` tells them from all others.  A file
    that is damaged counts as none; one that cannot be written is a warning, the first in a process.  Several
    processes may use a folder at once.
    """

    def __init__(self, folder: Path | None, *made_by: object) -> None:
        self._folder = None if folder is None else folder / "plans"
        self._made_by = made_by

    def find(self, make: Callable[[], Plan | None], *question: object) -> Plan | None:
        """The plan that was made in answer to a question, or else is made now; None if there is none."""
        if self._folder is None:
            return make()
        asked = repr((_sources(), self._made_by, question))
        file = self._folder / f"{hashlib.sha256(asked.encode()).hexdigest()}.gz"
        try:
            return _read(file)
        except (OSError, EOFError, ValueError, zlib.error):  # there is none, or it is damaged
            plan = make()
        self._keep(file, plan)
        return plan

    def _keep(self, file: Path, plan: Plan | None) -> None:
        text = _NONE if plan is None else plan.to_json()
        try:
            replace_file(file, gzip.compress(text.encode(), compresslevel=1, mtime=0))
            _forget_some(file.parent)
        except OSError as error:
            _warn(f"plans cannot be kept in {file.parent}: {error.strerror}")


def _read(file: Path) -> Plan | None:
    text = gzip.decompress(file.read_bytes()).decode()
    file.touch()  # it was used now
    return None if text == _NONE else Plan.from_json(text)


def _forget_some(folder: Path) -> None:
    """Remove the plans that were used least recently, and what killed processes left, if there are many."""
    files = list(folder.iterdir())
    if len(files) > _MOST:
        used = {}
        for file in files:
            try:
                used[file] = file.stat().st_mtime
            except FileNotFoundError:  # another process removes some, too
                continue
        for file in sorted(used, key=used.__getitem__)[:_FEWER]:
            file.unlink(missing_ok=True)


@functools.cache
def _warn(warning: str) -> None:
    log.warning("%s; set DTR_CACHE to a folder that can be written, or to off", warning)


@functools.cache
def _sources() -> str:
    """The code that makes plans, as a number: another version of it may make others."""
    folders = [Path(str(package.__file__)).parent for package in (runtime, search)]
    files = [file for folder in folders for file in sorted(folder.glob("*.py"))]
    files += [Path(__file__).with_name(name) for name in ("planner.py", "marked.py", "parts.py")]
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
