"""A small operator log."""

from __future__ import annotations

from pathlib import Path

from dtr_fx.lab.log import AliasLine, CallLine, ConstantLine, Line, MemoryLine, ReleaseLine, write_log


def write_chain(path: Path, n: int = 12) -> Path:
    """n operators of 50 ns forward and n backward, tensors of 100 bytes, beside one constant of as many."""
    lines: list[Line] = [ConstantLine("t0"), MemoryLine(100, "t0")]

    def call(name: str, args: tuple[str, ...], result: str) -> None:
        lines.extend([CallLine(args, name, (result,), 50), MemoryLine(100, result), AliasLine(-1, result)])

    for number in range(1, n + 1):
        call("f", (f"t{number - 1}",), f"t{number}")
    gradient = f"t{n}"
    for number in range(n - 1, -1, -1):
        call("f_backward", (f"t{number}", gradient), f"g{number}")
        lines += [ReleaseLine(gradient), *([ReleaseLine(f"t{number}")] if number else [])]
        gradient = f"g{number}"
    write_log(path, lines)
    return path
