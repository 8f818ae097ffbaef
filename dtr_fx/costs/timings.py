"""The times of operators, on disk."""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import re
import uuid
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch


class Timings:
    """Seconds by operator, in one JSON file for each device, torch version and setting that counts.

    It lies in ``$DTR_FX_CACHE``, else in ``~/.cache/dtr_fx``.  A file that is damaged or cannot be written is
    ignored with a warning.  Processes that write at once replace the whole file, each with what it has just
    read and what it timed; what one of them loses that way is timed again some day.
    """

    def __init__(self, device: torch.device) -> None:
        self._settings = _settings(device)
        words = [str(word) for pair in self._settings.items() for word in pair][1:]
        name = re.sub(r"[^\w.+]+", "-", "-".join(words))
        folder = os.path.expanduser(os.environ.get("DTR_FX_CACHE") or "~/.cache/dtr_fx")
        self.file = Path(folder) / f"{name}.json"
        self.seconds = self._read_if_sound()

    def add(self, found: Mapping[str, float]) -> None:
        """Write down what was found; what another process found first stays."""
        if not found:
            return
        self.seconds.update(found)
        with contextlib.suppress(OSError, ValueError):
            self.seconds.update(self._read())
        try:
            self.file.parent.mkdir(parents=True, exist_ok=True)
            _replace(self.file, json.dumps({**self._settings, "seconds": self.seconds}, indent=0))
        except OSError as error:
            warnings.warn(
                f"the times of operators cannot be kept in {self.file}: {error.strerror}; "
                "set DTR_FX_CACHE to a folder that can be written",
                stacklevel=2,
            )

    def _read_if_sound(self) -> dict[str, float]:
        try:
            return self._read()
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except (OSError, ValueError) as error:
            warnings.warn(f"{self.file} is ignored, operators are timed anew: {error}", stacklevel=2)
            return {}

    def _read(self) -> dict[str, float]:
        content = json.loads(self.file.read_text(encoding="utf-8"))
        if not isinstance(content, dict) or not isinstance(content.get("seconds"), dict):
            raise ValueError("it holds no times of operators")
        seconds: dict[str, float] = content["seconds"]
        for value in seconds.values():
            if not (isinstance(value, float) and 0 < value < math.inf):
                raise ValueError(f"{value!r} is no time in seconds")
        return seconds


def _settings(device: torch.device) -> dict[str, Any]:
    """All else that the time of an operator depends on."""
    settings = {"torch": torch.__version__}
    if device.type == "cuda":
        precision = torch.backends.cuda.matmul.fp32_precision
        return {"device": torch.cuda.get_device_name(device), **settings, "float32": precision}
    precision = torch.backends.mkldnn.matmul.fp32_precision  # type: ignore[attr-defined]
    threads = torch.get_num_threads()
    return {"device": _cpu_name(), **settings, "float32": precision, "threads": threads}


def _cpu_name() -> str:
    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as lines:
        name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), name)
    return f"{name} {torch.backends.cpu.get_cpu_capability()}"


def _replace(file: Path, text: str) -> None:
    """Write the file in one step: a reader sees all of the old or all of the new."""
    written = file.with_name(f"{file.stem}.{uuid.uuid4().hex}.tmp")
    try:
        written.write_text(text, encoding="utf-8")
        written.replace(file)
    except BaseException:
        written.unlink(missing_ok=True)
        raise
