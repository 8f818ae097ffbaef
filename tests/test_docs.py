"""Every code block of README and of docs/, as a reader would run it.

```python      runs; the blocks of a page share their names
               one that starts with "# name.py" is that file, in the page's folder
```console     each "$ dtr-fx" and "$ python" line runs in the page's folder
               the lines below it are what it prints; "[…]" stands for what is left out
```text        what something printed
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import dtr_fx
from dtr_fx.cli import main, make_parser
from dtr_fx.runtime import HEURISTICS

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# Pages with commands that take minutes, or install something: these are only parsed.
PARSED = {"README.md", "budget.md", "paper.md"}


def blocks(page: Path, language: str) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def commands(page: Path) -> Iterator[tuple[list[str], list[str]]]:
    """Each command line, and the lines that it is said to print."""
    for block in blocks(page, "console"):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            line, *printed = part.splitlines()
            yield shlex.split(line, comments=True), printed


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a reader works: the examples are there, and the page's own files come first."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_runs(page: Path, folder: Path) -> None:
    names = {"__name__": "page"}
    for block in blocks(page, "python"):
        file = re.match(r"# (\w+\.py)\n", block)
        if file:
            (folder / file[1]).write_text(block, encoding="utf-8")
        else:
            exec(compile(block, page.name, "exec"), names)
    if page.name not in PARSED:
        for command, printed in commands(page):
            run(command, printed)


def run(command: list[str], printed: list[str]) -> None:
    """What the page says is printed, is."""
    status, said = _run_here(command) if command[0] == "dtr-fx" else _run_python(command)
    assert (status != 0) == any("Error" in line for line in printed), said
    for line in printed:
        if "[…]" in line:
            assert all(part.strip() in said for part in line.split("[…]")), line
        else:
            assert line in said.splitlines()


def _run_here(command: list[str]) -> tuple[int, str]:
    """In this process, which has imported torch."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        return main(command[1:]), printed.getvalue()


def _run_python(command: list[str]) -> tuple[int, str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, *command[1:]], capture_output=True, text=True, check=False, env=environment
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_are_understood(page: Path) -> None:
    for command, _ in commands(page):
        if command[0] == "dtr-fx":
            make_parser().parse_args(command[1:])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" not in target:
            name, _, anchor = target.partition("#")
            linked = page.parent / name if name else page
            assert linked.exists(), target
            if anchor:
                heads = re.findall(r"^#+ (.*)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
                assert anchor in [re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads]


HEURISTIC_ROW = re.compile(r"^\| `([\w-]+)` \| ([^|]*) \|", re.MULTILINE)


def test_every_heuristic_is_listed_with_its_formula() -> None:
    rows = HEURISTIC_ROW.findall((ROOT / "docs" / "algorithm.md").read_text(encoding="utf-8"))
    assert sorted(name for name, _ in rows) == sorted(dtr_fx.HEURISTICS)
    s, m, c = np.random.default_rng(0).uniform(0.5, 2.0, (3, 20))
    for name, formula in rows:
        if name != "rand":
            python = formula.replace("·", "*").replace("√s", "s ** 0.5")
            said = eval(python, {"s": s, "m": m, "c": c})
            np.testing.assert_allclose(HEURISTICS[name].make_score()(s, m, c), said)
