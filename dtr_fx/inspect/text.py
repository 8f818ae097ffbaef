"""The parts of terminal views: eighths of a block, colour, and text that fits."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass

from dtr_fx.units import format_seconds

BLOCKS = " ▁▂▃▄▅▆▇█"
BOLD, DIM, RED, GREEN, YELLOW = "1", "2", "31", "32", "33"


@dataclass(frozen=True)
class Ink:
    """Colours text, or leaves it alone."""

    color: bool

    def __call__(self, code: str, text: str) -> str:
        return f"\033[{code}m{text}\033[0m" if self.color and code and text else text


def clip(text: str, width: int) -> str:
    """The text in at most ``width`` columns."""
    return text if len(text) <= width else text[: max(width - 1, 0)] + "…"


def wrap(text: str, width: int) -> str:
    """The text in lines of at most ``width`` columns, whole words each."""
    return textwrap.fill(text, width, break_long_words=False, break_on_hyphens=False)


def price_of(again: float | None, away: float | None) -> str:
    """A drop in numbers: ``1.20 ms again, away 58.2 ms``."""
    again_text = "" if again is None else f"{format_seconds(again)} again"
    away_text = "" if away is None else f"away {format_seconds(away)}"
    return ", ".join(filter(None, (again_text, away_text)))


def without_folder(source: str) -> str:
    """A source line whose file is named without its folder."""
    return re.sub(r"^\S*[/\\]", "", source)
