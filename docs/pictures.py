"""The pictures, made by the commands that they show: ``python docs/pictures.py``.

terminal.png   what the command prints on a terminal, without colours in diff.md
report.png     the page that it writes with ``--html``, the pointer at a drop
decision.png   the page on which to choose a budget, in budget.md
gallery-*.png  the pages of the commands of gallery.md, which have their verdicts below them

``pictures.sha256`` holds a digest of what each was drawn from. The tests of the documentation run the
commands and compare; times, which depend on the machine, and on the page all numbers do not count.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import redirect_stdout
from html import escape
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
COMMAND = "dtr-fx diff zoo:gpt --budget 60%"
DECISION = "dtr-fx sweep zoo:gpt --arg layers=3 --plan-seconds 0.2 --html gpt.html"
# By picture; each writes the page that is drawn.
GALLERY = {
    f"gallery-{name}.png": f"dtr-fx diff zoo:{target} --plan-seconds 0.2 --html {name}.html"
    for name, target in {
        "transformer": "transformer --budget 60%",
        "unet": "unet_bn --budget 60%",
        "tree": "treelstm --arg leaves=16 --budget 50%",
    }.items()
}
DIGESTS = HERE / "pictures.sha256"
# The temporary memory of operators depends on the number of threads.
# Without a cache costs are estimated, the same on every machine.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "COLUMNS": "120", "NO_COLOR": "", "DTR_CACHE": "off"}
SHOWN_VALUE = "_safe_softmax"
LEFT_OUT = "    […]"

ESCAPES = re.compile("\033\\[([0-9;]+)m")
TIMES = re.compile(r"\d+(\.\d+)? (ns|µs|ms|s)\b")
NUMBERS = re.compile(r"-?\d+(\.\d+)?(e-?\d+)?")
COLORS = {"1": "font-weight:bold", "2": "color:#98a2ad", "31": "color:#ff8070", "32": "color:#5fd38d"}
COLORS["33"] = "color:#e3c04c"
TERMINAL = """<meta charset="utf-8"><style>
body {{ margin: 0; background: #15191e; color: #e4e8ec }}
pre {{ font: 13px/15px "DejaVu Sans Mono", monospace; margin: 0; padding: 14px 18px; width: max-content }}
</style><pre>$ {command}\n{text}</pre>"""


def main() -> None:
    from playwright.sync_api import sync_playwright

    os.environ.update(ENVIRONMENT)
    lines, page = run()
    gallery = run_gallery()
    _, decision = run_page(DECISION)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        draw_terminal(browser, lines)
        draw_page(browser, page, "report.png")
        for name, (_, drawn) in gallery.items():
            draw_page(browser, drawn, name)
        draw_page(browser, decision, "decision.png", height=720)
        browser.close()
    _write_block(HERE / "diff.md", COMMAND, plain(lines))
    for name, (verdict, _) in gallery.items():
        _write_block(HERE / "gallery.md", GALLERY[name], [verdict, LEFT_OUT])
    pages = {"report.png": page, "decision.png": decision}
    found = digests(lines, pages | {name: drawn for name, (_, drawn) in gallery.items()})
    _write(DIGESTS, "".join(f"{digest}  {name}\n" for name, digest in found.items()))


# --- What is drawn -----------------------------------------------------------------------------------------


def run() -> tuple[list[str], str]:
    """The lines of the terminal's picture, in colours, and the page; run it in ``ENVIRONMENT``.

    Raises
    ------
    SystemExit
        The command fails, or does not drop and recompute ``SHOWN_VALUE``.
    """
    lines, page = run_page(f"{COMMAND} --html report.html")
    return list(_excerpt(lines)), page


def run_gallery() -> dict[str, tuple[str, str]]:
    """By picture of the gallery, the verdict and the page; run it in ``ENVIRONMENT``."""
    ran = {name: run_page(command) for name, command in GALLERY.items()}
    return {name: (plain(lines)[0], page) for name, (lines, page) in ran.items()}


def run_page(command: str) -> tuple[list[str], str]:
    """The lines that a command prints on a terminal, and the page that it writes."""
    import torch

    from dtr_fx.cli import main as dtr_fx

    words = shlex.split(command)[1:]
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(_Terminal()) as printed:
        words[-1] = str(Path(folder) / words[-1])
        status = dtr_fx(words)
        if status:
            raise SystemExit(status)
        return printed.getvalue().splitlines(), Path(words[-1]).read_text(encoding="utf-8")


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def _excerpt(lines: list[str]) -> Iterator[str]:
    """The head, and of the forward and the backward pass what happens to one value."""
    bare = plain(lines)
    titles = [at for at, line in enumerate(bare) if line.startswith("── ")]
    forward, backward = titles[-2:]
    dropped, recomputed = _find(bare, "- drop"), _find(bare, "+ recompute")
    yield from lines[: forward + 1]
    yield LEFT_OUT
    yield from lines[dropped - 6 : dropped + 3]
    yield LEFT_OUT
    yield from lines[backward : backward + 7]
    yield LEFT_OUT
    yield from lines[recomputed - 3 : recomputed + 6]
    yield LEFT_OUT


def _find(lines: list[str], kind: str) -> int:
    start = re.compile(rf"{re.escape(kind)}\s+{SHOWN_VALUE}\s")
    for at, line in enumerate(lines):
        if start.match(line):
            return at
    raise SystemExit(f"pictures.py: no line '{kind} {SHOWN_VALUE}': let the pictures show another value")


def plain(lines: list[str]) -> list[str]:
    """The lines without colours."""
    return [ESCAPES.sub("", line).rstrip() for line in lines]


def digests(lines: list[str], pages: dict[str, str]) -> dict[str, str]:
    """By picture, a digest of what it is drawn from."""
    words = TIMES.sub("time", "\n".join(plain(lines))).split()
    texts = {"terminal.png": " ".join(words)}
    texts |= {name: NUMBERS.sub("number", page) for name, page in pages.items()}
    return {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}


# --- Drawing -----------------------------------------------------------------------------------------------


def draw_terminal(browser: Any, lines: list[str]) -> None:
    """What the command prints, as a terminal shows it."""
    shown = browser.new_page(viewport={"width": 1000, "height": 600})
    shown.set_content(TERMINAL.format(command=COMMAND, text="\n".join(map(_colored, lines))))
    _save(shown.locator("pre"), "terminal.png")


def draw_page(browser: Any, page: str, name: str, height: int = 0) -> None:
    """The top of the page, of a height in pixels, or else with the pointer at a drop."""
    shown = browser.new_page(viewport={"width": 1100, "height": height or 1010}, color_scheme="light")
    shown.set_content(page)
    shown.locator("#status:not(:empty)").wait_for()
    if not height:
        shown.locator("#diff .drop").first.hover()
    _save(shown, name)


def _colored(line: str) -> str:
    """A line's escape sequences as spans."""
    spans = escape(line).replace("\033[0m", "</span>")
    return ESCAPES.sub(
        lambda match: f'<span style="{";".join(COLORS[code] for code in match[1].split(";"))}">', spans
    )


def _write_block(page: Path, command: str, lines: list[str]) -> None:
    """Put what a command prints below the line that shows it."""
    text = page.read_text(encoding="utf-8")
    before, command, rest = text.partition(f"$ {command}\n")
    _write(page, before + command + "\n".join([*lines, rest[rest.index("```") :]]))


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    print(f"Wrote {path}")


def _save(shown: Any, name: str) -> None:
    shown.screenshot(path=HERE / name)
    print(f"Wrote {HERE / name}")


if __name__ == "__main__":
    main()
