"""What a report says of live bytes by kind, and of what each step makes or frees."""

import json
from collections import Counter
from dataclasses import fields
from html import escape
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from chains import chain
from torch import Tensor, nn

import dtr_fx
from dtr_fx.cli import main
from dtr_fx.compiler.explain import plan_step
from dtr_fx.inspect.html import render
from dtr_fx.inspect.views import Report
from dtr_fx.planning.options import Options
from dtr_fx.report import KINDS, SCHEMA, Choice, Event, HintStats, Point, Relied, StorageStats

pytestmark = pytest.mark.little_effort

MiB = 2**20


class Net(nn.Module):
    """Of one 1 MiB parameter; all that its step computes on takes 1 MiB, too."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(512, 512))

    def forward(self, x: Tensor) -> Tensor:
        hidden = x
        for _ in range(4):
            hidden = torch.relu(nn.functional.layer_norm(hidden @ self.weight, (512,)))
        return hidden


@pytest.fixture(scope="module")
def step() -> Report:
    (report,) = plan_step(Net(), (torch.randn(512, 512),), Options(budget="70%"))
    assert report.recomputes
    return report


def parts(point: Point) -> dict[str, int]:
    return dict(zip(KINDS, point.parts))


def operators(report: Report) -> list[Event]:
    return [event for event in report.events if event.kind != "drop"]


def test_live_bytes_are_the_sum_of_their_kinds(step: Report) -> None:
    for point in (*step.before, *step.after):
        assert len(point.parts) == len(KINDS)
        assert sum(point.parts) == point.live
        assert min(point.parts) >= 0


def test_kinds_of_a_training_step(step: Report) -> None:
    first, last = parts(step.after[0]), parts(step.after[-1])
    assert first["parameter"] == last["parameter"] == MiB
    assert (first["input"], last["input"]) == (MiB, 2 * MiB)  # the tangent comes with the backward pass
    assert (first["output"], last["output"]) == (0, MiB)
    # All that the step saved is gone at its end, and the gradient of the weight is there.
    assert last["activation"] <= MiB
    assert last["gradient"] >= MiB


def test_gradients_are_made_by_the_backward_pass_and_nothing_is_recomputed_before_the_plan(
    step: Report,
) -> None:
    phases = {event.name: event.phase for event in step.events}
    assert not any(parts(point)["gradient"] for point in step.after if phases[point.name] == "forward")
    assert not any(parts(point)["recomputed"] for point in step.before)
    assert any(parts(point)["recomputed"] for point in step.after)


def test_what_a_graph_without_phases_returns_is_output() -> None:
    gm = torch.fx.symbolic_trace(lambda x: x.sin().cos())
    _, report = dtr_fx.transform(gm, example_inputs=[torch.ones(MiB // 4)])
    assert [parts(point) for point in report.before] == [
        dict.fromkeys(KINDS, 0) | {"input": MiB, "activation": MiB},
        dict.fromkeys(KINDS, 0) | {"input": MiB, "activation": MiB, "output": MiB},
    ]


def test_each_step_names_the_storages_that_it_makes_or_frees(step: Report) -> None:
    resident: set[int] = set()
    for event in step.events:
        assert sum(step.storages[at].nbytes for at in event.storages) == event.nbytes
        if event.kind == "drop":
            (at,) = event.storages
            assert step.storages[at].name == event.origin
            assert at in resident
            resident.remove(at)
        else:
            resident.update(event.storages)


def test_what_is_said_of_a_storage_is_what_its_events_say(step: Report) -> None:
    for kind, count in (("drop", lambda s: s.drops), ("recompute", lambda s: s.recomputes)):
        seen = Counter(at for event in step.events if event.kind == kind for at in event.storages)
        assert [count(storage) for storage in step.storages] == [seen[at] for at in range(len(step.storages))]
    assert sum(storage.drops for storage in step.storages) == step.drops


def test_storages_of_one_operator_have_names_of_their_own(step: Report) -> None:
    names = [storage.name for storage in step.storages if storage.drops]
    assert len(names) == len(set(names)) > 1


def test_kinds_of_storages_are_those_of_the_picture(step: Report) -> None:
    kinds = {kind: [one for one in step.storages if one.kind == kind] for kind in KINDS}
    assert kinds["gradient"]
    assert kinds["activation"]
    last = parts(step.before[-1])
    assert sum(one.nbytes for one in kinds["parameter"]) == last["parameter"]
    assert sum(one.nbytes for one in kinds["output"]) == last["output"]
    assert 0 < sum(one.nbytes for one in kinds["gradient"] if one.stays) <= last["gradient"]
    made = {event.name: event for event in step.events if event.kind == "compute"}
    for before, point in pairwise(step.before):
        fresh = [step.storages[at] for at in made[point.name].storages]
        for kind in ("gradient", "output"):
            grown = parts(point)[kind] - parts(before)[kind]
            assert grown <= sum(one.nbytes for one in fresh if one.kind == kind)


def test_an_optimizers_storages_are_the_optimizers() -> None:
    model = nn.Linear(8, 8)
    step = dtr_fx.train_step(model, lambda model, x: model(x).sum(), torch.optim.AdamW(model.parameters()))
    _, report = dtr_fx.transform(step.graph(torch.randn(4, 8)))
    kinds = {one.kind for one in report.storages if not one.drops}
    assert {"parameter", "optimizer", "gradient", "input"} <= kinds


def test_json_names_its_schema_and_the_kinds_of_bytes(step: Report) -> None:
    data = json.loads(step.to_json())
    assert data["schema"] == SCHEMA
    assert len(data["after"][0]["parts"]) == len(data["kinds"])
    assert data["torch"] == torch.__version__


def test_every_field_of_the_json_is_explained() -> None:
    page = (Path(__file__).parents[1] / "docs" / "json.md").read_text(encoding="utf-8")
    for part in (Report, Event, Point, StorageStats, Choice, Relied, HintStats):
        for name in (field.name for field in fields(part)):
            assert f"`{name}`" in page, f"docs/json.md has no {part.__name__}.{name}"
    assert f"schema {SCHEMA}" in page
    assert all(kind in page for kind in KINDS)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"schema": SCHEMA + 1}, f"schema {SCHEMA + 1} is from a newer dtr_fx"),
        ({"schema": 0, "events": [{}]}, "schema 0 is from an older dtr_fx: make it anew"),
        ({"budget_bytes": 1}, "is damaged"),
    ],
)
def test_json_of_another_schema_is_named_in_one_line(
    step: Report, change: dict[str, object], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "plan.json"
    path.write_text(json.dumps([json.loads(step.to_json()) | change]))
    assert main(["diff", str(path)]) == 2
    told = capsys.readouterr().err
    assert says in told
    assert told.count("\n") == 1


def test_a_report_survives_json(step: Report) -> None:
    assert Report.from_json(step.to_json()) == step


def test_a_report_of_an_earlier_version_can_be_read(step: Report) -> None:
    data = json.loads(step.to_json())
    for name in ("trigger", "schema", "kinds", "model"):
        del data[name]
    for key, name in (("events", "storages"), ("before", "parts"), ("after", "parts"), ("storages", "stays")):
        for entry in data[key]:
            del entry[name]
    read = Report.from_json(json.dumps(data))
    assert read.summary() == step.summary()
    assert f'<h1 id="verdict">{escape(step.summary())}</h1>' in render([read])


def test_budgets_without_phases_have_storages_too() -> None:
    gm = torch.fx.symbolic_trace(chain)
    _, report = dtr_fx.transform(gm, "70%", example_inputs=[torch.ones(1024)])
    dropped = {report.storages[at].name for e in report.events if e.kind == "drop" for at in e.storages}
    assert dropped == {event.origin for event in report.events if event.kind == "drop"}
    assert {event.name for event in operators(report)} == {point.name for point in report.after}
