"""The option ``offload``, as a user writes it.  No torch."""

from __future__ import annotations

import math
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from dtr_fx.errors import OptionError, did_you_mean
from dtr_fx.tiers.tier import Bandwidth, Tier
from dtr_fx.units import format_bytes, parse_bytes

_FORMS = (
    "write 'host' or 'disk', a folder, bytes of host memory ('16GiB'), or a place with its limit "
    "('disk:16GiB', '/a/folder:16GiB')"
)


def parse_tier(given: object) -> Tier:
    """The tier that a user writes.  OptionError if it cannot be used.

    A folder has to be there, writable, and hold the limit; for ``"disk"`` it is one of temporary files.

    >>> str(parse_tier("host:1.5KiB"))
    'host:1536B'
    >>> parse_tier("dsk")
    Traceback (most recent call last):
    ...
    dtr_fx.errors.OptionError: offload='dsk': unknown; did you mean 'disk'?
    """
    if isinstance(given, Tier):
        return given
    speed = None
    if isinstance(given, Mapping):
        speed, given = _speed(given), given.get("to")
    tier = replace(tier_of(given), speed=speed)
    if tier.limit is not None and tier.limit < 1:
        raise OptionError(f"offload={given!r}: a limit is at least one byte; {_FORMS}")
    if tier.kind == "disk":
        if str(given).startswith("disk") and _is_in_memory(tier.folder):
            raise OptionError(
                f"offload={given!r}: {tier.folder} is kept in memory, so moving tensors there frees "
                "nothing; name a folder on a disk"
            )
        _check_folder(given, Path(tier.folder), tier.limit or 1)
    return tier


def tier_of(given: object) -> Tier:
    """The tier of a text or path, without a look at the disk; OptionError if it names none."""
    if isinstance(given, int) and not isinstance(given, bool):
        return Tier("host", limit=given)
    if isinstance(given, os.PathLike):
        return Tier("disk", _absolute(os.fspath(given)))
    if not isinstance(given, str):
        raise OptionError(f"offload={given!r}: {type(given).__name__} is no tier; {_FORMS}")
    place, _, size = given.rpartition(":")
    limit = _bytes(size)
    if limit is None:
        place = given
    if place in ("", "host") and (place or limit is not None):
        return Tier("host", limit=limit)
    if place == "disk":
        return Tier("disk", _folder_on_disk(), limit)
    if os.sep in place or place.startswith((".", "~")):
        return Tier("disk", _absolute(place), limit)
    if place[:1].isdigit():
        raise OptionError(f"offload={given!r}: no bytes; {_FORMS}")
    raise OptionError(f"offload={given!r}: unknown{did_you_mean(place, ('host', 'disk'))}")


def _speed(given: Mapping[str, object]) -> Bandwidth:
    try:
        figures = {name: _per_second(value) for name, value in given.items() if name != "to"}
        found = Bandwidth(**figures, source="given")
    except (TypeError, ValueError):
        found = Bandwidth(0, 0)
    if not (0 < found.out < math.inf and 0 < found.back < math.inf and 0 <= found.latency < math.inf):
        raise OptionError(
            f"offload={dict(given)!r}: write where to, and bytes per second out and back, as in "
            "{'to': 'disk', 'out': '2GB', 'back': '3GB', 'latency': 1e-5}"
        )
    return found


def _per_second(value: object) -> float:
    return float(parse_bytes(value) if isinstance(value, str) else value)  # type: ignore[arg-type]


def _bytes(text: str) -> int | None:
    try:
        return int(text) if text.isdigit() else parse_bytes(text)
    except ValueError:
        return None


def _folder_on_disk() -> str:
    """The folder of temporary files, or another of that kind where it is kept in memory."""
    usual = tempfile.gettempdir()
    others = (folder for folder in (usual, "/var/tmp") if os.path.isdir(folder) and not _is_in_memory(folder))
    return next(others, usual)


def _is_in_memory(folder: str) -> bool:
    try:
        mounts = [line.split() for line in Path("/proc/mounts").read_text().splitlines()]
    except OSError:
        return False
    above = [(place, kind) for _, place, kind, *_ in mounts if Path(folder).is_relative_to(place)]
    return max(above, key=lambda mount: len(mount[0]), default=("", ""))[1] in ("tmpfs", "ramfs")


def _absolute(folder: str) -> str:
    return os.path.abspath(os.path.expanduser(folder))


def _check_folder(given: object, folder: Path, needed: int) -> None:
    if not folder.is_dir():
        raise OptionError(f"offload={given!r}: there is no folder {folder}; make it, or name another")
    try:
        tempfile.TemporaryFile(dir=folder).close()
    except OSError as error:
        raise OptionError(
            f"offload={given!r}: no file can be made in {folder}: {error.strerror}; name another folder"
        ) from None
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise OptionError(
            f"offload={given!r}: {folder} has {format_bytes(free)} free, and {format_bytes(needed)} are "
            "asked; free some, ask for less, or name another folder"
        )
