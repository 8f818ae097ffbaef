"""What terminal pictures are made of: eighths of a block, and colour."""

from __future__ import annotations

from dataclasses import dataclass

BLOCKS = " ▁▂▃▄▅▆▇█"
BOLD, DIM, RED, GREEN, YELLOW = "1", "2", "31", "32", "33"


@dataclass(frozen=True)
class Ink:
    """Colours text, or leaves it alone."""

    color: bool

    def __call__(self, code: str, text: str) -> str:
        return f"\033[{code}m{text}\033[0m" if self.color and code and text else text
