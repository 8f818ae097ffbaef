"""Every page of documentation, as a reader would use it.

```python      runs; the blocks of a page share their names
               one that starts with "# name.py" is that file, in the page's folder
```console     each "$ dtr-fx" and "$ python" line runs in the page's folder
               the lines below it are what it prints; "[…]" stands for what is left out
```text        what something printed

What is named in passing is there, too: links, files, commands and their options, the options of the backend.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import doctest
import importlib
import importlib.util
import io
import os
import re
import shlex
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from test_architecture import FILES

import dtr_fx
from dtr_fx.cli import main, make_parser
from dtr_fx.planning.options import Options
from dtr_fx.runtime import HEURISTICS

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
README = ROOT / "README.md"
PAGES = [README, *sorted(DOCS.glob("*.md"))]
ALL = [*PAGES, ROOT / "RESULTS.md"]
# Pages with commands that take minutes, or name a reader's own files: these are only parsed.
# A test of the pictures below runs the commands of the gallery.
PARSED = {"README.md", "budget.md", "options.md", "paper.md", "gallery.md"}
# Pages with lines of a plan, which takes the whole effort of a search; elsewhere any plan will do.
PLANS = {"tutorial.md"}
# Pages that take long to run.
LONG = {"tutorial.md", "diff.md", "trainers.md", "faq.md"}
# What the extra "stacks" brings: blocks that import what is not installed are left out, and the page is
# "skipped" once the others ran.
STACKS = {"accelerate", "lightning", "peft", "transformers"}

# The modules whose docstrings have examples.
EXAMPLES = [module for module, file in FILES.items() if ">>> " in file.read_text(encoding="utf-8")]

every_text = pytest.mark.parametrize("page", ALL, ids=lambda page: page.name)


@pytest.mark.parametrize("module", EXAMPLES)
def test_the_examples_in_docstrings(module: str) -> None:
    lines = map(str.strip, read(FILES[module]).splitlines())
    found = doctest.testmod(importlib.import_module(module))
    assert found.attempted == sum(line.startswith(">>> ") for line in lines) > 0
    assert found.failed == 0


def read(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", read(page), re.DOTALL | re.MULTILINE)


def commands(page: Path) -> Iterator[tuple[list[str], list[str]]]:
    """Each command line, and the lines that it is said to print."""
    for block in blocks(page, "console"):
        for part in re.split(r"^\$ ", block.replace("\\\n", ""), flags=re.MULTILINE)[1:]:
            line, *printed = part.splitlines()
            yield shlex.split(line, comments=True), printed


def prose(page: Path) -> str:
    """The page without its blocks."""
    return re.sub(r"^```.*?^```", "", read(page), flags=re.DOTALL | re.MULTILINE)


def inline_code(page: Path) -> list[str]:
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose(page))]


# --- Code and commands -------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a reader works: the examples are there, and the page's own files come first."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.fixture(scope="module")
def pictures() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pictures", DOCS / "pictures.py")
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    assert spec.loader is not None
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page,
            marks=[
                *[pytest.mark.little_effort] * (page.name not in PLANS),
                *[pytest.mark.slow] * (page.name in LONG),
            ],
        )
        for page in PAGES
    ],
    ids=lambda page: page.name,
)
def test_code_runs(page: Path, folder: Path, pictures: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("page")
    monkeypatch.setitem(sys.modules, "page", module)  # Dynamo imports it by its name
    names = vars(module)
    for option in dataclasses.fields(dtr_fx.config):
        monkeypatch.setattr(dtr_fx.config, option.name, None)  # as it is put back
    absent = {name for name in STACKS if importlib.util.find_spec(name) is None}
    left_out = 0
    for block in blocks(page, "python"):
        file = re.match(r"# (\w+\.py)\n", block)
        if absent and imported(block) & STACKS:  # of which one may need another
            left_out += 1
            continue
        if file:
            (folder / file[1]).write_text(block, encoding="utf-8")
        else:
            exec(compile(block, page.name, "exec"), names)
    if page.name not in PARSED:
        for command, printed in commands(page):
            if command[0] != "pip" and shlex.join(command) != pictures.COMMAND:  # which has a test below
                run(command, printed)
    if left_out:
        pytest.skip(
            f"{left_out} blocks need {', '.join(sorted(absent))}: pip install '.[stacks]'; the others ran"
        )


def imported(block: str) -> set[str]:
    """The packages that a block imports."""
    found: list[str] = []
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found.append(node.module or "")
    return {name.partition(".")[0] for name in found}


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


@every_text
def test_commands_are_understood(page: Path) -> None:
    for command, _ in commands(page):
        if command[0] == "dtr-fx":
            make_parser().parse_args(command[1:])


@every_text
def test_commands_in_passing_exist(page: Path) -> None:
    """As far as they are written: ``dtr-fx bench`` has an option that one of its benchmarks has."""
    parser = make_parser()
    for code in inline_code(page):
        command = re.match(r"(?:[A-Z_]+=\S+ )*dtr-fx (.*)", code)
        if command:
            _check(parser, command[1].split(), code)


def _check(parser: argparse.ArgumentParser, words: list[str], code: str) -> None:
    """The names of commands, then the options."""
    inner = _subcommands(parser)
    if inner and words and not words[0].startswith("-"):
        assert words[0] in inner, code
        _check(inner[words[0]], words[1:], code)
    else:
        known = _options(parser)
        for word in words:
            assert not word.startswith("--") or word.partition("=")[0] in known, f"{word} in {code}"


@every_text
def test_options_in_passing_exist(page: Path) -> None:
    """Of ``dtr-fx``, or of an example."""
    known = _options(make_parser()) | {"--help"}
    for example in (ROOT / "examples").glob("*.py"):
        known |= set(re.findall(r'"(--[\w-]+)"', read(example)))
    for code in inline_code(page):
        if code.startswith("--"):
            assert code.partition(" ")[0].partition("=")[0] in known, code


def _subcommands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    found: dict[str, argparse.ArgumentParser] = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            found |= action.choices
    return found


def _options(parser: argparse.ArgumentParser) -> set[str]:
    """Those of a command and of all within it."""
    known = set(parser._option_string_actions)
    return known.union(*map(_options, _subcommands(parser).values()))


# --- What is named is there --------------------------------------------------------------------------------


@every_text
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if "://" not in target:
            name, _, anchor = target.partition("#")
            linked = page.parent / name if name else page
            assert linked.exists(), target
            if anchor:
                heads = re.findall(r"^#+ (.*)$", prose(linked), re.MULTILINE)
                assert anchor in [re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads]


PLACES = re.compile(r"(?:docs|tests|examples|passes|dtr_fx)/[\w./-]*")


@every_text
def test_files_in_passing_exist(page: Path) -> None:
    for code in inline_code(page):
        for place in re.findall(r"(?<![\w/~.])" + PLACES.pattern, code):
            assert (ROOT / place).exists(), code


@every_text
def test_names_in_passing_exist(page: Path) -> None:
    for code in inline_code(page):
        for dotted in re.findall(r"(?<![\w./])dtr_fx((?:\.[A-Za-z_]\w*)+)", code):
            found: object = dtr_fx
            for at, name in enumerate(dotted[1:].split("."), 1):
                if not hasattr(found, name):
                    importlib.import_module("dtr_fx" + ".".join(dotted.split(".")[: at + 1]))
                found = getattr(found, name)


def test_the_readme_is_short() -> None:
    assert len(read(README).splitlines()) <= 120


def test_nothing_is_said_twice() -> None:
    """No paragraph, item or row of two lines' length stands on two pages, or twice on one."""
    parts = [
        " ".join(part.split())
        for page in PAGES
        for part in re.split(r"\n\n|\n(?=- |\| )", prose(page))
        if len(part.split()) >= 25
    ]
    assert [part for part, count in Counter(parts).items() if count > 1] == []


def test_the_architecture_has_every_room() -> None:
    floors = re.findall(r"^\| `(?:dtr_fx/)?(\w+)` \|", read(DOCS / "architecture.md"), re.MULTILINE)
    rooms = [file.parent.name for file in (ROOT / "dtr_fx").glob("*/__init__.py")]
    assert sorted(floors) == sorted({*rooms, "passes"})


# --- Tables ------------------------------------------------------------------------------------------------


OPTION_ROW = re.compile(r"^\| `(\w+)` \| (.*?) \| `([^`]*)` \|", re.MULTILINE)


def test_every_option_is_listed_with_its_default() -> None:
    rows = OPTION_ROW.findall(read(DOCS / "options.md"))
    assert [name for name, _, _ in rows] == [field.name for field in dataclasses.fields(Options)]
    assert Options(**{name: ast.literal_eval(default) for name, _, default in rows}) == Options()


def test_every_value_of_an_option_is_understood() -> None:
    for name, values, _ in OPTION_ROW.findall(read(DOCS / "options.md")):
        for value in re.findall(r'`(".*?"|[\d.]+)`', values):
            Options(**{name: ast.literal_eval(value)})


def test_every_form_of_a_budget_is_understood() -> None:
    rows = re.findall(r"^\| (`.*?) \|", read(README), re.MULTILINE)
    forms = [form for row in rows for form in re.findall(r"`([^`]*)`", row)]
    assert len(forms) >= 6
    for form in forms:
        name, equals, value = form.rpartition("=")
        Options(**{name if equals else "budget": eval(value)})


HEURISTIC_ROW = re.compile(r"^\| `([\w-]+)` \| ([^|]*) \|", re.MULTILINE)


def test_every_heuristic_is_listed_with_its_formula() -> None:
    rows = HEURISTIC_ROW.findall(read(DOCS / "algorithm.md"))
    assert sorted(name for name, _ in rows) == sorted(dtr_fx.HEURISTICS)
    s, m, c = np.random.default_rng(0).uniform(0.5, 2.0, (3, 20))
    for name, formula in rows:
        if name != "rand":
            python = formula.replace("·", "*").replace("√s", "s ** 0.5")
            said = eval(python, {"s": s, "m": m, "c": c})
            np.testing.assert_allclose(HEURISTICS[name].make_score()(s, m, c), said)


# --- Pictures ----------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_the_pictures_are_of_what_the_command_prints(
    pictures: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in pictures.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    lines, page = pictures.run()
    gallery = pictures.run_gallery()
    printed = {pictures.COMMAND: lines}
    printed |= {
        pictures.GALLERY[name]: [verdict, pictures.LEFT_OUT] for name, (verdict, _) in gallery.items()
    }
    shown = {shlex.join(command): said for page in PAGES[1:] for command, said in commands(page)}
    for command, said in printed.items():
        told = without_times(pictures, shown[command])
        assert told == without_times(pictures, said), "run python docs/pictures.py"
    drawn = {name: digest for digest, name in map(str.split, read(pictures.DIGESTS).splitlines())}
    pages = {"report.png": page, "decision.png": pictures.run_page(pictures.DECISION)[1]}
    pages |= {name: found for name, (_, found) in gallery.items()}
    assert drawn == pictures.digests(lines, pages), "run python docs/pictures.py"


def without_times(pictures: ModuleType, lines: list[str]) -> list[str]:
    return [" ".join(pictures.TIMES.sub("time", line).split()) for line in pictures.plain(lines)]


def test_the_gallery_has_each_command_and_its_picture(pictures: ModuleType) -> None:
    said = {shlex.join(command) for command, _ in commands(DOCS / "gallery.md")}
    assert said >= set(pictures.GALLERY.values())
    assert set(re.findall(r"\]\((gallery-[\w]+\.png)\)", read(DOCS / "gallery.md"))) == set(pictures.GALLERY)


def test_the_readme_has_the_command_above_its_picture(pictures: ModuleType) -> None:
    block = re.escape(f"```console\n$ {pictures.COMMAND}\n```\n\n")
    assert re.search(block + r"!\[[^]]*\]\(docs/terminal\.png\)", read(README))
