"""The commands that look at plans: their targets, what they print, and how they fail."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from operator_logs import write_chain
from torch import nn

from dtr_fx.cli import main
from dtr_fx.inspect.diff import render_diff
from dtr_fx.inspect.views import Report
from dtr_fx.report import KINDS, Event, Point, StorageStats
from dtr_fx.units import format_bytes, format_count, format_percent, format_seconds

SMALL = ["zoo:gpt", "--arg", "layers=1", "--arg", "width=32", "--arg", "batch=4", "--arg", "length=32"]
SEARCHED = [*SMALL, "--budget", "60%", "--plan-seconds", "0.1"]


@pytest.fixture(autouse=True)
def _compiled_afresh() -> None:
    torch.compiler.reset()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With two saved plans of one model: a search's at 60%, a heuristic's at 70%."""
    place = tmp_path_factory.mktemp("plans")
    torch.compiler.reset()
    assert main(["diff", *SEARCHED, "--json", "-o", str(place / "a.json")]) == 0
    torch.compiler.reset()
    online = ["--budget", "70%", "--planner", "online", "--heuristic", "dtr-eq"]
    assert main(["diff", *SMALL, *online, "--json", "-o", str(place / "b.json")]) == 0
    return place


@pytest.fixture(scope="module")
def saved(folder: Path) -> Report:
    (entry,) = json.loads((folder / "a.json").read_text())
    return Report.from_json(json.dumps(entry))


def printed(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(list(map(str, arguments))) == 0
    return capsys.readouterr().out


def data(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    return json.loads(printed(capsys, *arguments, "--json"))


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    """The one line that says what is wrong."""
    assert main(list(map(str, arguments))) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("dtr-fx: error: ")
    assert captured.err.count("\n") == 1
    return captured.err


# The text and the data


def test_a_plan_that_is_saved_is_printed_as_when_it_was_made(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = printed(capsys, "diff", *SEARCHED)
    assert printed(capsys, "diff", folder / "a.json") == made


def test_every_figure_of_the_diff_is_the_reports(
    folder: Path, saved: Report, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(capsys, "diff", folder / "a.json")
    verdict, *lines = text.splitlines()
    circumstances = " ".join(lines[: lines.index("")])
    assert verdict == (
        f"fits: peak {format_bytes(saved.baseline_peak)} → {format_bytes(saved.planned_peak)}, "
        f"budget {saved.budget_text}, {format_count(saved.drops, 'drop')}, "
        f"{format_count(saved.recomputes, 'recompute')}, overhead {format_percent(saved.overhead)}"
    )
    for figure in (saved.base_cost, saved.total_cost):
        assert format_seconds(figure) in circumstances
    assert f"lower bound of any plan {format_bytes(saved.lower_bound)}" in circumstances
    assert saved.above_least is not None
    assert f"within {format_percent(saved.above_least)} of the least possible" in circumstances
    shown = iter(saved.events)
    head = next(number for number, line in enumerate(lines) if "why (score)" in line)
    for row in lines[head + 1 :]:
        fold = re.match(r" +… (\d+) operators? +≤ (.+)", row)
        if fold:
            folded = [next(shown) for _ in range(int(fold[1]))]
            assert {event.kind for event in folded} == {"compute"}
            assert format_bytes(max(event.live for event in folded)) == fold[2]
        elif row.startswith("──"):
            phase = re.match(r"── (\w+): (\d+) operators?, (\d+) drops?, (\d+) recomputes?", row)
            assert phase is not None
            kinds = [event.kind for event in saved.events if event.phase == phase[1]]
            assert [int(n) for n in phase.groups()[1:]] == [
                kinds.count(kind) for kind in ("compute", "drop", "recompute")
            ]
        else:
            event = next(shown)
            assert row[2:11].strip() == (event.kind if event.kind != "compute" else "")
            assert event.origin in row
            assert f" {format_bytes(event.nbytes)} " in row
            assert row.endswith(format_bytes(event.live))
    assert next(shown, None) is None


def test_another_process_prints_the_same(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-m", "dtr_fx", "diff", *SEARCHED]
    environment = os.environ | {"PYTHONHASHSEED": "7", "PYTHONIOENCODING": "utf-8"}
    other = subprocess.run(command, env=environment, capture_output=True, check=True, encoding="utf-8")
    assert other.stdout == printed(capsys, "diff", folder / "a.json")


def event(kind: str, origin: str, phase: str, live: int, **more: Any) -> Event:
    name = {"drop": f"drop_{origin}", "recompute": f"{origin}_recompute"}.get(kind, origin)
    return Event(kind, name, origin, phase, 2**20, 0.0 if kind == "drop" else 1e-3, live * 2**20, **more)


# What the diff of this plan looks like was read line by line before it was put here.
PLAN = Report(
    budget=3 * 2**20,
    baseline_peak=4 * 2**20,
    planned_peak=3 * 2**20,
    lower_bound=2 * 2**20,
    constants=2**20,
    base_cost=6e-3,
    total_cost=7e-3,
    heuristic="dtr-eq",
    device="cpu",
    events=(
        event("compute", "mm", "forward", 2, source="net.py:3 in forward: x @ w"),
        event("compute", "relu", "forward", 3, source="net.py:4 in forward: y.relu()"),
        event("drop", "mm", "forward", 2, reason="budget", score=0.25),
        event("compute", "mm_1", "forward", 3),
        event("compute", "sum_1", "forward", 3),
        event("compute", "expand", "backward", 3),
        event("recompute", "mm", "backward", 3, reason="for mm_2"),
        event("compute", "mm_2", "backward", 3),
    ),
    before=tuple(Point(live * 2**20, f"op_{live}") for live in (2, 3, 4, 4, 3, 2)),
    after=tuple(Point(live * 2**20, f"op_{live}") for live in (2, 3, 3, 3, 3, 3, 3)),
    storages=(StorageStats("mm", "activation", 2**20, 1, 1, 1e-3),),
    seconds={},
)
SNAPSHOT = """\
fits: peak 4.00 MiB → 3.00 MiB, budget 3.00 MiB, 1 drop, 1 recompute,
overhead 16.7%
dtr-eq on cpu; compute 6.00 ms → 7.00 ms; lower bound of any plan 2.00 MiB

before  peak 4.00 MiB at op_4
                    ████████████████████
▔▔▔▔▔▔▔▔▔▔████████████████████████████████████████▔▔▔▔▔▔▔▔▔▔ budget 3.00 MiB
████████████████████████████████████████████████████████████
████████████████████████████████████████████████████████████

after  peak 3.00 MiB at op_3
▔▔▔▔▔▔▔▔████████████████████████████████████████████████████ budget 3.00 MiB
████████████████████████████████████████████████████████████
████████████████████████████████████████████████████████████

             ope…or      bytes  why (score)    source                   live
── forward: 4 operators, 1 drop, 0 recomputes ──────────────────────────────
             mm       1.00 MiB                 net.py:3 in forwa…   2.00 MiB
             relu     1.00 MiB                 net.py:4 in forwa…   3.00 MiB
- drop       mm       1.00 MiB  budget (0.25)                       2.00 MiB
             mm_1     1.00 MiB                                      3.00 MiB
             sum_1    1.00 MiB                                      3.00 MiB
── backward: 2 operators, 0 drops, 1 recompute ─────────────────────────────
             expand   1.00 MiB                                      3.00 MiB
+ recompute  mm       1.00 MiB  for mm_2                            3.00 MiB
             mm_2     1.00 MiB                                      3.00 MiB
"""


def test_the_text_is_stable() -> None:
    assert render_diff(PLAN, width=76) == SNAPSHOT


# Each verb


def test_every_row_has_a_source_and_a_drop_names_its_operator(
    saved: Report, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [event.name for event in saved.events if not event.source] == []
    text = printed(capsys, "diff", folder / "a.json")
    assert "getitem" not in text
    names = re.findall(r"^- drop +(\w+):(\d) ", text, re.MULTILINE)
    assert ("native_layer_norm", "0") in names
    made = {event.name for event in saved.events if event.kind == "compute"}
    assert {name for name, _ in names} <= made
    name, number = names[0]
    assert printed(capsys, "why", folder / "a.json", f"{name}:{number}").startswith(
        f"{name}:{number}: activation"
    )


def test_timeline_draws_both_and_tells_the_peaks_by_kind(
    folder: Path, saved: Report, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(capsys, "timeline", folder / "a.json")
    peak = max(saved.after, key=lambda point: point.live)
    cells = [re.split(r"\s{2,}", line.strip()) for line in text.splitlines()]
    after = {row[0]: row[-1] for row in cells if len(row) == 3}
    assert (after["operator"], after["live"]) == (peak.name, format_bytes(peak.live))
    for kind, part in zip(KINDS, peak.parts):
        assert after.get(kind, "0 B") == format_bytes(part)
    (found,) = data(capsys, "timeline", folder / "a.json")
    assert [point["live"] for point in found["after"]] == [point.live for point in saved.after]
    assert found["kinds"] == list(KINDS)


def test_show_prints_what_its_data_say(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = printed(capsys, "show", folder / "a.json", "--top", 3)
    (found,) = data(capsys, "show", folder / "a.json", "--top", 3)
    assert len(found["by_bytes"]) == 3
    for key in ("by_bytes", "by_cost", "by_drops"):
        for storage in found[key]:
            assert re.search(
                rf"^{re.escape(storage['name'])} .*{format_bytes(storage['nbytes'])}", text, re.M
            )
    first = found["operators"][0]
    assert re.search(
        rf"^{re.escape(first['name'])} .* {format_seconds(first['recompute_cost'])} ", text, re.M
    )


def test_why_tells_a_life(folder: Path, saved: Report, capsys: pytest.CaptureFixture[str]) -> None:
    name = next(event.origin for event in saved.events if event.kind == "drop")
    text = printed(capsys, "why", folder / "a.json", name)
    (life,) = data(capsys, "why", folder / "a.json", name)
    assert text.startswith(f"{name}: activation of {format_bytes(life['storage']['nbytes'])}")
    for moment in life["moments"]:
        if moment["kind"] != "read":
            assert re.search(rf"^ +{moment['at']}  \w+ +{moment['kind']} ", text, re.M)
    assert "gone for" in text


def test_why_of_a_heuristics_plan_has_scores(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    (entry,) = json.loads((folder / "b.json").read_text())
    name = next(event["origin"] for event in entry["events"] if event["reason"] == "budget")
    online = ["--budget", "70%", "--planner", "online", "--heuristic", "dtr-eq"]
    assert "it went" in printed(capsys, "why", *SMALL[:1], name, *SMALL[1:], *online)


def test_smallest_is_a_budget_that_works(capsys: pytest.CaptureFixture[str]) -> None:
    effort = ["--plan-seconds", "0.03"]
    found = data(capsys, "smallest", *SMALL, *effort)
    assert found["lower_bound"] <= found["planned_peak"] <= found["budget"] < found["baseline_peak"]
    torch.compiler.reset()
    budget = ["--budget", found["budget"]]
    assert printed(capsys, "diff", *SMALL, *budget, *effort).startswith("fits")


def test_saved_plans_are_compared(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    same = data(capsys, "diff", folder / "a.json", folder / "a.json")
    assert [each["changes"] for each in same] == [[]]
    (found,) = data(capsys, "diff", folder / "a.json", folder / "b.json")
    drops, recomputes = ([plan[kind] for plan in found["plans"]] for kind in ("drops", "recomputes"))
    for kind, counts in (("drop", drops), ("recompute", recomputes)):
        sides = [change["only_in"] for change in found["changes"] if change["event"]["kind"] == kind]
        assert counts[1] - counts[0] == sides.count(1) - sides.count(0)


def test_several_graphs_say_why_they_were_traced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "traces.json"
    plans = [PLAN, replace(PLAN, trigger="size of x: 8 → 16")]
    path.write_text(json.dumps(list(map(asdict, plans))))
    for verb in ("diff", "show", "timeline"):
        lines = printed(capsys, verb, path).splitlines()
        assert lines[0] == "graph 1 of 2"
        assert "graph 2 of 2: size of x: 8 → 16" in lines


def test_two_sets_of_options_are_compared(capsys: pytest.CaptureFixture[str], folder: Path) -> None:
    online = "budget=70% planner=online,heuristic=dtr-eq"
    (found,) = data(capsys, "diff", *SEARCHED, "--vs", online)
    assert found == data(capsys, "diff", folder / "a.json", folder / "b.json")[0]


def test_html_beside_text_and_beside_data(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.html"
    assert f"Wrote {page}" in printed(capsys, "timeline", folder / "a.json", "--html", page)
    first = page.read_text(encoding="utf-8")
    assert first.startswith("<!DOCTYPE html>")
    assert "dtr-fx timeline" in first
    data(capsys, "show", folder / "a.json", "--html", page, "-f")  # stdout is JSON and nothing else
    second = page.read_text(encoding="utf-8")
    assert "dtr-fx show" in second
    own = re.compile(r'<div class="command">.*')  # what a page was asked for with
    assert own.sub("", second) == own.sub("", first)


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_completion_knows_verbs_options_and_heuristics(
    shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    script = printed(capsys, "completion", shell)
    for word in ("timeline", "--heuristic", "next-use-root", "smallest"):
        assert word in script
    if shell == "bash":
        subprocess.run(["bash", "-n"], input=script, check=True, text=True)


@pytest.mark.parametrize("verb", ["diff", "show", "timeline", "why", "smallest"])
def test_help_names_the_targets_and_shows_output(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main([verb, "--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    for fact in ("zoo:gpt", "FILE.pt2", "resnet50", "unrolled_gan", "MiB", "--json"):
        assert fact in out


# One path

MODELS = """
import dtr_fx
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

class Tagger(nn.Module):
    def __init__(self, recurrent):
        super().__init__()
        self.lstm = nn.LSTM(16, 16, dropout=0.2, num_layers=2) if recurrent else nn.Identity()
        self.head = nn.ModuleList(nn.Linear(16, 16) for _ in range(3))

    def forward(self, x):
        x = self.lstm(x)
        x = x[0] if isinstance(x, tuple) else x
        for number, layer in enumerate(self.head):
            if number == 1:
                x = dtr_fx.keep(layer(x).relu())
            else:
                x = checkpoint(self.again, layer, x, use_reentrant=False)
        return {"scores": x, "loss": x.square().mean()}

    def again(self, layer, x):
        return layer(x).relu().sin()

def make(recurrent=True):
    return Tagger(recurrent), {"x": torch.randn(1, 64, 16)}
"""


@pytest.mark.parametrize(
    "given",
    [
        pytest.param(["--arg", "recurrent=False"], id="marks"),
        pytest.param([], id="recurrent", marks=pytest.mark.slow),
        pytest.param(["--optimizer", "sgd"], id="whole step", marks=pytest.mark.slow),
    ],
)
def test_every_verb_has_the_same_plan_for_the_same_bytes(
    given: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a model whose plan depends on how it is traced: steps of an LSTM, dropout, the user's marks."""
    path = tmp_path / "model.py"
    path.write_text(MODELS)
    model = [f"{path}:make", "--plan-seconds", "0.03", *given]
    found = data(capsys, "smallest", *model)
    budget = ["--budget", found["budget"]]
    (plan,) = data(capsys, "diff", *model, *budget)
    made = Report.from_json(json.dumps(plan))
    for figure in ("budget", "planned_peak", "lower_bound", "baseline_peak", "overhead"):
        assert getattr(made, figure) == found[figure], figure
    curve = data(capsys, "sweep", *model, "--no-rivals", "--budgets", found["budget"])["curve"]
    assert (curve["lower_bound"], curve["base_cost"]) == (made.lower_bound, made.base_cost)
    last = {"budget": made.budget, "peak": made.planned_peak, "overhead": made.overhead}
    last["least_overhead"] = made.least_overhead
    assert curve["points"][-1] == last
    (timeline,) = data(capsys, "timeline", *model, *budget)
    assert timeline["after"] == plan["after"]
    (shown,) = data(capsys, "show", *model, *budget)
    assert sum(group["recomputes"] for group in shown["operators"]) == made.recomputes
    dropped = next(event for event in made.events if event.kind == "drop")
    (life,) = data(capsys, "why", *model, dropped.origin, *budget)
    assert dropped.again in [moment["again"] for moment in life["moments"]]


# Targets


@pytest.mark.slow
def test_an_operator_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write_chain(tmp_path / "chain.log")
    text = printed(capsys, "diff", path, "--budget", "70%", "--heuristic", "lru")
    assert text.startswith("fits: ")
    assert "+ recompute  f" in text
    found = data(capsys, "smallest", path, "--plan-seconds", 0.03)
    assert found["lower_bound"] <= found["budget"] < found["baseline_peak"]
    assert "recomputed" in printed(capsys, "why", path, "f_2", "--budget", found["budget"])


def test_an_exported_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    class Wide(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            a, b, c = x.sin(), x.cos(), x.exp()
            d = (a * b * c).sum()
            return d + a.sum() + b.sum() + c.sum()

    path = tmp_path / "wide.pt2"
    torch.export.save(torch.export.export(Wide(), (torch.ones(64, 64),)), path)
    text = printed(capsys, "diff", path, "--budget", "85%")
    assert text.startswith("fits: ")
    assert data(capsys, "smallest", path, "--plan-seconds", 0.03)["budget"] > 0


def test_arguments_of_a_factory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "made.py"
    path.write_text(
        "import torch\n"
        "def factory(size, *, name):\n"
        "    assert (size, name) == (8, 'x=y'), (size, name)\n"
        "    return torch.nn.Linear(size, size), torch.ones(2, size)\n"
    )
    made = ["diff", f"{path}:factory", "--budget", "100%", "--arg", "size=8", "--arg", "name=x=y"]
    assert printed(capsys, *made).startswith("fits")


# What is refused


def test_files_that_hold_no_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plan.json"
    assert "No such file" in refused(capsys, "diff", path)
    for text in ("", "{}", "[]", "[3]", '{"budget": 3}', "[[]]", '"text"', json.dumps([asdict(PLAN)])[:-9]):
        path.write_text(text)
        assert "holds no reports" in refused(capsys, "show", path)
    path.write_bytes(b"\xff\xfe\x00")
    assert "cannot read" in refused(capsys, "diff", path)
    program = tmp_path / "plan.pt2"
    assert "there is no file" in refused(capsys, "diff", program, "--budget", "60%")
    program.write_text("text")
    assert "holds no exported program" in refused(capsys, "diff", program, "--budget", "60%")
    (tmp_path / "folder.json").mkdir()
    assert "cannot read" in refused(capsys, "timeline", tmp_path / "folder.json")


def test_options_that_do_not_go_together(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = folder / "a.json"
    assert "a budget is missing" in refused(capsys, "show", "zoo:gpt")
    assert "leave --budget out" in refused(capsys, "show", plan, "--budget", "60%")
    assert "leave --arg out" in refused(capsys, "show", plan, "--arg", "x=1")
    assert "not --vs" in refused(capsys, "diff", plan, "--vs", "heuristic=lru")
    step = ["diff", "zoo:gpt", "--budget", "60%", "--optimizer"]
    assert "torch.optim has no 'adamx'; did you mean 'adam" in refused(capsys, *step, "adamx")
    assert "'momentum' is not NAME=VALUE" in refused(capsys, *step, "sgd momentum")
    vs = ["diff", "zoo:gpt", "--budget", "60%", "--vs"]
    assert "did you mean 'heuristic'" in refused(capsys, *vs, "heurstic=lru")
    assert "unknown heuristic" in refused(capsys, *vs, "heuristic=best")
    assert "NAME=VALUE" in refused(capsys, *vs, "lru")
    assert "plan_seconds" in refused(capsys, *vs, "plan_seconds=soon")
    assert "overwrite it with -f" in refused(capsys, "show", plan, "-o", plan)
    assert "overwrite it with -f" in refused(capsys, "show", plan, "--html", plan)
    assert "there is no folder" in refused(capsys, "show", plan, "-o", tmp_path / "no" / "file")
    assert "name what they were made of" in refused(capsys, "smallest", plan)
    assert "no value" in refused(capsys, "why", plan, "nothing")


def test_plans_of_different_graphs_are_not_compared(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.json"
    other.write_text(json.dumps(asdict(PLAN)))
    assert "different graphs" in refused(capsys, "diff", folder / "a.json", other)


# Where it prints


def command(*arguments: object, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "dtr_fx", *map(str, arguments)],
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        encoding=environment.get("PYTHONIOENCODING", "utf-8"),
    )


def test_a_reader_that_has_seen_enough(folder: Path) -> None:
    with command("diff", folder / "a.json", PYTHONIOENCODING="utf-8") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait() == 0


def test_a_locale_without_block_characters(folder: Path) -> None:
    with command("timeline", folder / "a.json", PYTHONIOENCODING="ascii") as process:
        out, err = process.communicate()
    assert err == ""
    assert process.returncode == 0
    assert "budget" in out


def test_a_narrow_terminal(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    for verb in ("diff", "show", "timeline"):
        lines = printed(capsys, verb, folder / "a.json").splitlines()
        assert max(map(len, lines[2:])) <= 72
        assert lines[0].startswith("fits")


def test_a_model_that_fails_on_its_inputs(tmp_path, capsys):
    path = tmp_path / "model.py"
    path.write_text("import torch\n\n\ndef make():\n    return torch.nn.Linear(4, 4), torch.randn(3, 5)\n")
    assert main(["diff", f"{path}:make", "--budget", "60%"]) == 2
    assert "the model fails on its example inputs" in capsys.readouterr().err
