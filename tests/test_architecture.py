"""The rooms of the package are floors: an import, a lazy one too, only goes down.

``pyproject.toml`` says the same to import-linter. These tests need nothing but the sources.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import networkx as nx

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # comes with pytest

_ROOT = Path(__file__).parent.parent
_SETTINGS = tomllib.loads((_ROOT / "pyproject.toml").read_text(encoding="utf-8"))
_LAYERS = _SETTINGS["tool"]["importlinter"]["contracts"][0]["layers"]
_FLOORS = [layer.strip("()") for layer in reversed(_LAYERS)]
_OUTSIDE = ("", "__main__")  # the package itself, which imports lazily, and the command that starts it


def _files() -> dict[str, Path]:
    """The modules of the package by name."""
    folders = {
        name: _ROOT / folder for name, folder in _SETTINGS["tool"]["setuptools"]["package-dir"].items()
    }
    return {
        ".".join((name, *path.relative_to(folder).with_suffix("").parts)).removesuffix(".__init__"): path
        for name, folder in folders.items()
        for path in folder.rglob("*.py")
    }


FILES = _files()


def _imports(module: str) -> Iterator[str]:
    """The modules of the package that a module imports anywhere in its text."""
    path = FILES[module]
    folders = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in FILES)
        elif isinstance(node, ast.ImportFrom):
            above = folders[: len(folders) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            names = {f"{source}.{alias.name}" for alias in node.names}
            yield from names & FILES.keys()
            if source in FILES and names - FILES.keys():
                yield source


def _graph() -> nx.DiGraph:
    return nx.DiGraph((module, imported) for module in FILES for imported in _imports(module))


def _room(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def test_every_room_has_a_floor() -> None:
    assert {_room(module) for module in FILES} - {*_OUTSIDE} <= {*_FLOORS}


def test_imports_only_go_down() -> None:
    upwards = [
        f"{module} → {imported}"
        for module, imported in _graph().edges
        if _room(module) not in _OUTSIDE and _floor(imported) > _floor(module)
    ]
    assert upwards == []


def _floor(module: str) -> int:
    """The package itself lies above all floors."""
    return _FLOORS.index(_room(module)) if _room(module) else len(_FLOORS)


def test_no_file_imports_itself_over_others() -> None:
    assert [sorted(circle) for circle in nx.strongly_connected_components(_graph()) if len(circle) > 1] == []


def test_the_root_of_the_package_has_at_most_fourteen_rooms() -> None:
    assert len({_room(module) for module in FILES} - {*_OUTSIDE}) <= 14


def test_the_product_does_without_the_laboratory() -> None:
    product = "dtr_fx.compiler.backend, dtr_fx.planning.transform, dtr_fx.inspect.html"
    assert [module for module in _loaded_by(f"import {product}") if module.startswith("dtr_fx.lab")] == []


def test_a_compile_loads_little_of_the_package(tmp_path: Path) -> None:
    """What is for slices, transfers, symbols or views is imported where it is needed.

    The first process times the operators and searches for a plan; the second finds times and plan on disk.
    """
    first, second = (_lines(_loaded_by(_COMPILE, DTR_CACHE=str(tmp_path))) for _ in range(2))
    assert first <= 14_000
    assert second <= 10_100


def _lines(modules: Iterable[str]) -> int:
    return sum(len(FILES[module].read_text(encoding="utf-8").splitlines()) for module in modules)


def _loaded_by(code: str, **environment: str) -> list[str]:
    """The modules of the package that are there after a program has run."""
    code += "\nimport sys; print(*(name for name in sys.modules if name.split('.')[0] == 'dtr_fx'))"
    given = {**os.environ, **environment}
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, env=given)
    return done.stdout.split()


_COMPILE = """
import dtr_fx.compiler.backend, torch
from torch import nn

layers = [layer for _ in range(8) for layer in (nn.Linear(64, 64), nn.GELU())]
model = torch.compile(nn.Sequential(*layers), backend="dtr", options={"budget": "60%"})
model(torch.randn(1024, 64)).sum().backward()
"""
