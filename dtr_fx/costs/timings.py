"""Seconds of operators, kept on disk for the next process."""

from __future__ import annotations

import contextlib
import json
import math
import platform
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from dtr_fx.costs.files import cache_folder, locked, replace_file


class Timings:
    """Seconds by operator, in one JSON file for each device, torch version and setting that counts.

    It lies in the ``cache_folder``.  A file that is damaged or cannot be written is ignored with a warning.
    What several processes find at once is all there.
    """

    def __init__(self, device: torch.device, cache: str | bool | None = None) -> None:
        self._settings = _settings(device)
        words = [str(word) for pair in self._settings.items() for word in pair][1:]
        name = re.sub(r"[^\w.+]+", "-", "-".join(words))
        folder = cache_folder(cache)
        self.file = None if folder is None else folder / f"{name}.json"
        self.seconds = {} if self.file is None else self._read_if_sound(self.file)

    def add(self, found: Mapping[str, float]) -> None:
        """Write down what was found; what another process found first stays."""
        if not found:
            return
        self.seconds.update(found)
        if self.file is None:
            return
        try:
            with locked(self.file.parent):
                with contextlib.suppress(OSError, ValueError):
                    self.seconds.update(self._read(self.file))
                content = json.dumps({**self._settings, "seconds": self.seconds}, indent=0)
                replace_file(self.file, content.encode())
        except OSError as error:
            warnings.warn(
                f"the times of operators cannot be kept in {self.file}: {error.strerror}; "
                "set DTR_CACHE to a folder that can be written",
                stacklevel=2,
            )

    def _read_if_sound(self, file: Path) -> dict[str, float]:
        try:
            return self._read(file)
        except (FileNotFoundError, NotADirectoryError):
            return {}
        except (OSError, ValueError) as error:
            warnings.warn(f"{file} is ignored, operators are timed anew: {error}", stacklevel=2)
            return {}

    def _read(self, file: Path) -> dict[str, float]:
        content = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(content, dict) or not isinstance(content.get("seconds"), dict):
            raise ValueError("it holds no times of operators")
        seconds: dict[str, float] = content["seconds"]
        for value in seconds.values():
            if not (isinstance(value, float) and 0 < value < math.inf):
                raise ValueError(f"{value!r} is no time in seconds")
        return seconds


def _settings(device: torch.device) -> dict[str, Any]:
    """All else that the time of an operator depends on."""
    if device.type == "cuda":
        name, precision = torch.cuda.get_device_name(device), torch.backends.cuda.matmul.fp32_precision
        return {"device": name, "torch": torch.__version__, "float32": precision}
    precision = torch.backends.mkldnn.matmul.fp32_precision  # type: ignore[attr-defined]
    threads = torch.get_num_threads()
    return {"device": _cpu_name(), "torch": torch.__version__, "float32": precision, "threads": threads}


def _cpu_name() -> str:
    name = platform.processor() or platform.machine()
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as lines:
        name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), name)
    return f"{name} {torch.backends.cpu.get_cpu_capability()}"
