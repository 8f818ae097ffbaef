"""The pictures of README, drawn with what the tests of the page need: ``python docs/pictures.py``."""

from __future__ import annotations

import re
import shutil
from html import escape
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from dtr_fx.cli.targets import load_target
from dtr_fx.compiler.backend import plan_step
from dtr_fx.inspect.diff import render_diff
from dtr_fx.inspect.html import render
from dtr_fx.inspect.views import Report
from dtr_fx.planning.options import Options

HERE = Path(__file__).parent
COMMAND = "dtr-fx diff zoo:gpt --budget 60%"
WIDTH = 120
FORWARD, BACKWARD = 24, 12  # lines that are shown of each
COLORS = {"1": "font-weight:bold", "2": "color:#98a2ad", "31": "color:#ff8070", "32": "color:#5fd38d"}
COLORS["33"] = "color:#e3c04c"
TERMINAL = """<meta charset="utf-8"><style>
body {{ margin: 0; background: #15191e; color: #e4e8ec }}
pre {{ font: 13px/15px "DejaVu Sans Mono", monospace; margin: 0; padding: 14px 18px; width: max-content }}
</style><pre>$ {command}\n{text}</pre>"""


def main() -> None:
    model, inputs = load_target("zoo:gpt")
    (report,) = plan_step(model, inputs, Options(budget="60%"))
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        terminal(browser, report)
        page(browser, report)
        browser.close()


def terminal(browser: Any, report: Report) -> None:
    """What the command prints, as a terminal shows it."""
    lines = render_diff(report, width=WIDTH, color=True).splitlines()
    backward = next(at for at, line in enumerate(lines) if "── backward" in line)
    shown_lines = [*lines[:FORWARD], "    […]", *lines[backward : backward + BACKWARD], "    […]"]
    text = "\n".join(map(_colored, shown_lines))
    shown = browser.new_page(viewport={"width": 1000, "height": 600})
    shown.set_content(TERMINAL.format(command=COMMAND, text=text))
    _save(shown.locator("pre"), "terminal.png")


def page(browser: Any, report: Report) -> None:
    """The top of the page, with the pointer at a drop."""
    shown = browser.new_page(viewport={"width": 1100, "height": 1010}, color_scheme="light")
    shown.set_content(render([report]))
    shown.locator("#diff .drop").first.hover()
    _save(shown, "report.png")


def _colored(line: str) -> str:
    """A line's escape sequences as spans."""
    spans = escape(line).replace("\033[0m", "</span>")
    return re.sub(
        "\033\\[([0-9;]+)m",
        lambda match: f'<span style="{";".join(COLORS[code] for code in match[1].split(";"))}">',
        spans,
    )


def _save(shown: Any, name: str) -> None:
    shown.screenshot(path=HERE / name)
    print(f"Wrote {HERE / name}")


if __name__ == "__main__":
    main()
