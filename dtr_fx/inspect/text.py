"""What terminal pictures are made of: eighths of a block, colour, and text that fits."""

from __future__ import annotations

import re
from dataclasses import dataclass

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


def without_folder(source: str) -> str:
    """A source line whose file is named without its folder."""
    return re.sub(r"^\S*[/\\]", "", source)
