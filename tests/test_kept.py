"""Plans that are kept on disk: found again by any process, or made anew."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from chains import chain
from torch.fx import GraphModule, symbolic_trace

import dtr_fx
from dtr_fx import InfeasibleBudgetError, OptionError, Report, search
from dtr_fx.runtime import Plan

pytestmark = pytest.mark.little_effort


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("DTR_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "plans"


@pytest.fixture
def searches(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The budgets that were searched for."""
    budgets: list[int] = []
    original = search.find_plan

    def counted(program: Any, budget: int, *arguments: Any) -> Plan:
        budgets.append(budget)
        return original(program, budget, *arguments)

    monkeypatch.setattr(search, "find_plan", counted)
    return budgets


def planned(
    budget: float | int | str = "60%", size: int = 1024, **options: Any
) -> tuple[GraphModule, Report]:
    return dtr_fx.transform(symbolic_trace(chain), budget, example_inputs=[torch.ones(size)], **options)


def steps(report: Report) -> list[tuple[str, str]]:
    return [(event.kind, event.name) for event in report.events]


def test_a_plan_is_searched_for_once(searches: list[int], folder: Path) -> None:
    graph, first = planned()
    again, second = planned()
    assert len(searches) == len(list(folder.iterdir())) == 1
    assert steps(first) == steps(second)
    assert first.planned_peak == second.planned_peak
    x = torch.rand(1024)
    assert graph(x).equal(again(x))


@pytest.mark.parametrize(
    "other",
    [
        {"budget": "70%"},
        {"size": 2048},
        {"heuristic": "lru"},
        {"plan_seconds": 0.3},
        {"costs": lambda node: 1.0},
    ],
)
def test_another_question_has_another_answer(other: dict[str, Any], searches: list[int]) -> None:
    planned()
    planned(**other)
    assert len(searches) == 2


def test_that_no_plan_fits_is_known_too(searches: list[int]) -> None:
    errors = []
    for _ in range(2):
        with pytest.raises(InfeasibleBudgetError) as caught:
            planned("20%")
        errors.append(str(caught.value))
    assert errors[0] == errors[1]
    assert len(searches) <= 1


@pytest.mark.parametrize(
    "damage", [lambda content: content[:-9], lambda content: b"", lambda content: b"\0" * 99]
)
def test_a_damaged_file_counts_as_none(
    damage: Callable[[bytes], bytes], folder: Path, searches: list[int]
) -> None:
    _, report = planned()
    [file] = folder.iterdir()
    sound = file.read_bytes()
    file.write_bytes(damage(sound))
    assert steps(planned()[1]) == steps(report)
    assert len(searches) == 2
    assert file.read_bytes() == sound  # mended


def test_a_folder_that_cannot_be_written_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("DTR_CACHE", str(tmp_path / "file" / "folder"))
    with caplog.at_level(logging.WARNING):
        for budget in ("60%", "70%"):
            planned(budget)
    [told] = [record.getMessage() for record in caplog.records if "DTR_CACHE" in record.getMessage()]
    assert str(tmp_path / "file" / "folder") in told


@pytest.mark.parametrize("setting", ["off", "0"])
def test_nothing_is_kept_where_that_is_asked_for(
    setting: str, monkeypatch: pytest.MonkeyPatch, folder: Path, searches: list[int]
) -> None:
    monkeypatch.setenv("DTR_CACHE", setting)
    planned()
    planned()
    assert len(searches) == 2
    assert not folder.exists()


def test_what_a_function_decides_is_not_kept(folder: Path) -> None:
    planned(heuristic=lambda s, m, c: c / m)
    assert not folder.exists()


def test_the_option_goes_before_the_environment(tmp_path: Path, folder: Path, searches: list[int]) -> None:
    def step(backend_cache: object) -> None:
        torch._dynamo.reset()
        compiled = torch.compile(chain, backend="dtr", options={"budget": "60%", "cache": backend_cache})
        compiled(torch.ones(1024, requires_grad=True)).backward()

    step(tmp_path / "mine")
    step(str(tmp_path / "mine"))
    assert len(searches) == 1
    assert any((tmp_path / "mine" / "plans").iterdir())
    step(False)
    assert len(searches) == 2
    assert not folder.exists()
    with pytest.raises(OptionError, match="cache=3"):
        step(3)


_PROCESS = """
import os, sys
from dtr_fx.planning.kept import KeptPlans
from dtr_fx.runtime import Plan
from dtr_fx.runtime.steps import Step
from pathlib import Path

def plan(number):
    return Plan(tuple(Step("compute", number, -1, at) for at in range(300)), 1.0, number, 0.0)

print("ready", flush=True)
sys.stdin.readline()
for _ in range(RUNS):
    if os.fork() == 0:
        kept = KeptPlans(Path(sys.argv[1]))
        for number in range(20):
            found = kept.find(lambda: plan(number), number)
            if found != plan(number):
                os._exit(1)
        os._exit(0)
wrong = sum(os.wait()[1] != 0 for _ in range(RUNS))
sys.exit(wrong)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
def test_many_processes_write_at_once_and_some_are_killed(folder: Path) -> None:
    """Two families of fifty processes; one more family is killed while it writes."""

    def family(runs: int) -> subprocess.Popen[str]:
        code = _PROCESS.replace("RUNS", str(runs))
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "start_new_session": True}
        return subprocess.Popen([sys.executable, "-c", code, str(folder)], text=True, **pipes)

    families = [family(50), family(50), family(20)]
    for each in families:
        assert each.stdout is not None
        assert each.stdout.readline() == "ready\n"
    for each in families:
        assert each.stdin is not None
        each.stdin.write("go\n")
        each.stdin.flush()
    while not (folder.is_dir() and any(folder.iterdir())):
        time.sleep(0.001)
    os.killpg(families[-1].pid, signal.SIGKILL)
    assert [each.wait(timeout=120) for each in families[:2]] == [0, 0]
    families[-1].wait()
    for each in families:
        for pipe in (each.stdin, each.stdout):
            assert pipe is not None
            pipe.close()
