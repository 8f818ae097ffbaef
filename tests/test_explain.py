"""What a running program can see: explain, report files, logs, artifacts, and other tools' forms."""

from __future__ import annotations

import io
import json
import logging
import pickle
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import networkx as nx
import pytest
import torch
from torch import nn
from torch.cuda import _memory_viz

import dtr_fx
from dtr_fx import Report
from dtr_fx.inspect.html import render

pytestmark = pytest.mark.little_effort


class Net(nn.Module):
    """Layers with state of their own: batch norm has statistics, dropout draws numbers."""

    def __init__(self) -> None:
        super().__init__()
        parts = (nn.Linear(64, 64), nn.BatchNorm1d(64), nn.GELU(), nn.Dropout(0.2))
        self.layers = nn.Sequential(*(part for _ in range(4) for part in parts))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


@pytest.fixture(autouse=True)
def _compiled_afresh() -> None:
    torch.compiler.reset()


@pytest.fixture(scope="module")
def report() -> Report:
    torch.manual_seed(0)
    (report,) = dtr_fx.explain(Net(), torch.randn(256, 64), "60%")
    assert report.drops
    return report


# explain


def test_explain_plans_and_leaves_everything_as_it_was() -> None:
    model, x = Net(), torch.randn(256, 64)
    model(x).sum().backward()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    gradients = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
    generator = torch.get_rng_state()
    reports = dtr_fx.explain(model, x, budget="80%", planner="online")
    assert [report.planned_peak <= report.budget for report in reports] == [True]
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert all(torch.equal(p.grad, grad) for p, grad in zip(model.parameters(), gradients))
    assert torch.equal(torch.get_rng_state(), generator)


def test_one_model_can_be_explained_as_often_as_one_likes() -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.GELU()), torch.randn(4, 8)
    assert [len(dtr_fx.explain(model, x)) for _ in range(10)] == [1] * 10
    reports: list[Report] = []
    options = {"budget": "100%", "strict": True, "on_report": reports.append}
    torch.compile(model, backend="dtr", options=options)(x)  # as Dynamo compiles it, which counts
    assert len(reports) == 1


@pytest.mark.parametrize("inputs", [torch.ones(4, 8), (torch.ones(4, 8),), {"input": torch.ones(4, 8)}])
def test_forms_of_inputs(inputs: object) -> None:
    assert len(dtr_fx.explain(nn.Linear(8, 8), inputs)) == 1


def test_several_graphs_are_one_page_in_a_notebook() -> None:
    def broken(x: torch.Tensor) -> torch.Tensor:
        y = x.sin()
        torch._dynamo.graph_break()
        return y.cos()

    reports = dtr_fx.explain(broken, torch.ones(8, requires_grad=True))
    assert len(reports) == 2
    assert str(reports).count("\n") == 1
    page = reports._repr_html_()
    assert page.startswith("<iframe srcdoc=")
    assert "<script" not in page  # quoted: the notebook's page runs none of it


def test_a_wrong_option_is_told_before_anything_is_compiled() -> None:
    with pytest.raises(dtr_fx.OptionError, match="did you mean 'planner'"):
        dtr_fx.explain(print, (), plannr="online")


# Report files


@pytest.mark.parametrize("suffix", [".html", ".json"])
def test_the_option_report_writes_every_graph_as_it_is_planned(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"run{suffix}"
    seen: list[Report] = []
    options = {"budget": "80%", "planner": "online", "report": path, "on_report": seen.append}
    model = torch.compile(Net(), backend="dtr", options=options, dynamic=False)
    for number, size in enumerate((256, 128), 1):
        model(torch.randn(size, 64)).sum().backward()
        assert len(seen) == number
        text = path.read_text(encoding="utf-8")
        if suffix == ".html":
            assert text == render(seen)
        else:
            assert [Report.from_json(json.dumps(entry)) for entry in json.loads(text)] == seen


def test_dtr_report_names_a_folder_for_the_whole_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "made" / "when needed"
    monkeypatch.setenv("DTR_REPORT", str(folder))
    torch.compile(Net(), backend="dtr", options={"planner": "online"})(torch.randn(64, 64))
    assert sorted(path.suffix for path in folder.iterdir()) == [".html", ".json"]


def test_a_report_that_cannot_be_written_does_not_end_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    occupied = tmp_path / "file"
    occupied.write_text("")
    monkeypatch.setenv("DTR_REPORT", str(occupied))
    torch.compile(Net(), backend="dtr", options={"planner": "online"})(torch.randn(64, 64))
    assert "cannot write the report" in caplog.text


@pytest.mark.parametrize("wrong", ["run.txt", 3, "absent/run.html", "."])
def test_a_wrong_report_file_is_told_before_anything_is_compiled(wrong: object) -> None:
    with pytest.raises(dtr_fx.OptionError, match="report="):
        dtr_fx.explain(print, (), report=wrong)


# Logs and artifacts


def test_the_diff_is_logged_where_details_are_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.GELU()), torch.randn(4, 8)
    dtr_fx.explain(model, x)
    assert "before  peak" not in caplog.text
    with caplog.at_level(logging.DEBUG, "dtr_fx"):
        dtr_fx.explain(model, x)
    assert "before  peak" in caplog.text


@pytest.fixture
def torch_trace() -> Iterator[io.StringIO]:
    """What ``TORCH_TRACE`` would write."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(torch._logging._internal.TorchLogsFormatter(trace=True))
    trace = logging.getLogger("torch.__trace")
    trace.addHandler(handler)
    level = trace.level
    trace.setLevel(logging.DEBUG)
    yield stream
    trace.removeHandler(handler)
    trace.setLevel(level)


def test_artifacts_for_torch_trace(torch_trace: io.StringIO) -> None:
    (report,) = dtr_fx.explain(nn.Sequential(nn.Linear(8, 8), nn.GELU()), torch.randn(4, 8))
    written = torch_trace.getvalue()
    assert '"name": "dtr_plan"' in written
    assert '"name": "dtr_diff"' in written
    plans = [line for line in written.splitlines() if '"dtr_plan"' in line]
    assert plans
    assert all('"frame_compile_id"' in line for line in plans)  # tlparse lists them under the compilation
    assert replace(report, model="").to_json() in written  # only explain knows the model


# Other tools' forms


def test_the_networkx_graph_counts_what_the_report_counts(report: Report, tmp_path: Path) -> None:
    graph = report.to_networkx()
    assert nx.is_directed_acyclic_graph(graph)
    operators = {name: facts for name, facts in graph.nodes(data=True) if facts["kind"] == "operator"}
    assert sorted(operators) == sorted(point.name for point in report.before)
    assert sum(facts["drops"] for facts in operators.values()) == report.drops
    assert sum(facts["recomputes"] for facts in operators.values()) == report.recomputes
    extra = sum(facts["recompute_cost"] for facts in operators.values())
    assert extra == pytest.approx(sum(e.cost for e in report.events if e.kind == "recompute"))
    nx.write_graphml(graph, tmp_path / "graph.graphml")
    assert nx.is_isomorphic(nx.read_graphml(tmp_path / "graph.graphml"), graph)


def test_the_chrome_trace_adds_up(report: Report) -> None:
    events = json.loads(report.to_chrome_trace())["traceEvents"]
    operators = [event for event in events if event["ph"] == "X"]
    assert sum(event["dur"] for event in operators) == pytest.approx(1e6 * report.total_cost)
    assert sum(event["cat"] == "recompute" for event in operators) == report.recomputes
    assert sum(event["ph"] == "i" for event in events) == report.drops
    live = [sum(event["args"].values()) for event in events if event["ph"] == "C"]
    assert live == [point.live for point in report.after]
    starts, ends = ({event["id"] for event in events if event["ph"] == phase} for phase in "sf")
    assert starts == ends  # an arrow from every drop to its recompute
    assert [event["ts"] for event in operators] == sorted(event["ts"] for event in operators)


def test_the_memory_snapshot_reaches_the_planned_peak(report: Report) -> None:
    snapshot = pickle.loads(pickle.dumps(report.to_memory_snapshot()))
    live = peak = 0
    held = {}
    for entry in snapshot["device_traces"][0]:
        if entry["action"] == "alloc":
            assert entry["addr"] not in held
            held[entry["addr"]] = entry["size"]
            live += entry["size"]
        elif entry["action"] == "free_completed":
            live -= held.pop(entry["addr"])
        peak = max(peak, live)
    assert peak == report.planned_peak
    segments = snapshot["segments"]
    assert sum(segment["total_size"] for segment in segments) == report.reserved_peak
    stays = [each for one in segments for each in one["blocks"] if each["state"] == "active_allocated"]
    assert {each["address"]: each["requested_size"] for each in stays} == held
    for segment in segments:
        ends = [segment["address"], *(each["address"] + each["size"] for each in segment["blocks"])]
        assert [each["address"] for each in segment["blocks"]] == ends[:-1]  # side by side
        assert ends[-1] == segment["address"] + segment["total_size"]
        assert segment["allocated_size"] <= segment["total_size"]
    reserved = [each["size"] for each in snapshot["device_traces"][0] if each["action"] == "segment_alloc"]
    assert sum(reserved) == report.reserved_peak


def test_pytorchs_own_viewer_reads_the_snapshot(report: Report) -> None:
    snapshot = report.to_memory_snapshot()
    assert "test_explain.py" in str(snapshot["device_traces"])  # the user's lines
    assert "free completed" in _memory_viz.trace(snapshot)
    assert "snapshot.pickle" in _memory_viz.trace_plot(snapshot)


def test_a_plan_out_of_all_proportion_says_from_where_it_is_not(caplog: pytest.LogCaptureFixture) -> None:
    layers = [layer for _ in range(24) for layer in (nn.Linear(32, 32), nn.Tanh())]
    model, x = nn.Sequential(*layers), torch.randn(2048, 32)
    effort = {"plan_seconds": 0.7}
    with pytest.raises(dtr_fx.InfeasibleBudgetError, match="at most 5 forward passes") as caught:
        dtr_fx.explain(model, x, "5%", **effort)
    assert caught.value.sane is not None
    with caplog.at_level(logging.WARNING, logger="dtr_fx"):
        [dear] = dtr_fx.explain(model, x, caught.value.smallest, **effort)
    assert any("at most 5" in record.getMessage() for record in caplog.records)
    assert dear.sane_from is not None
    [sane] = dtr_fx.explain(model, x, dear.sane_from, **effort)
    assert sane.sane_from is None
    assert not sane.caution
    assert dear.budget < sane.budget < sane.baseline_peak
    assert sane.overhead < dear.overhead
