"""Plans that move values out and back: what they promise, and what they do when they run."""

from __future__ import annotations

import logging
import os
import resource
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dtr_fx
from dtr_fx import InfeasibleBudgetError, OptionError, Report, measure_peak
from dtr_fx.cli import main
from dtr_fx.errors import OffloadError
from dtr_fx.passes import transfers
from dtr_fx.passes.modes import fake_mode_of
from dtr_fx.passes.verify import VerificationError, verify
from dtr_fx.runtime import Plan, Program
from dtr_fx.runtime.program import Call, Constant, Keep, Output
from dtr_fx.search import execute_order, with_moves
from dtr_fx.tiers.tier import Bandwidth, Tier

pytestmark = pytest.mark.little_effort

# Of a disk that is fast enough for the operators below: bytes per second by the roofline's times.
FAST = {"to": "disk", "out": "20GB", "back": "20GB"}


def mlp(layers: int = 8, width: int = 128) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(*[each for _ in range(layers) for each in (nn.Linear(width, width), nn.GELU())])


def convolutions() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()) for _ in range(4)]
    return nn.Sequential(*layers)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.cell, self.drop = nn.GRUCell(64, 64), nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        h = x
        for _ in range(6):
            h = self.cell(self.drop(x), h)
        return h


class Residual(nn.Module):
    """Wide blocks; the gradient that goes by each of them, a sum in place, idles in its backward pass."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        blocks = [nn.Sequential(nn.Linear(32, 256), nn.GELU(), nn.Linear(256, 32)) for _ in range(2)]
        self.first, self.blocks = nn.Linear(32, 32), nn.ModuleList(blocks)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return x


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (mlp, (512, 128)),
    "convolutions": (convolutions, (4, 4, 16, 16)),
    "recurrent": (Recurrent, (128, 64)),
    "residual": (Residual, (512, 32)),
}


class Trained:
    """Two steps of a model, under a backend and options."""

    def __init__(self, name: str, backend: str = "dtr", *, run: bool = True, **options: Any) -> None:
        torch._dynamo.reset()
        make, shape = MODELS[name]
        self.reports: list[Report] = []
        if backend == "dtr":
            usual = {"cache": False, "slices": "off", "plan_seconds": 0.1, "on_report": self.reports.append}
            options = {"options": {**usual, **options}}
        self.model = make()
        self._compiled = torch.compile(self.model, backend=backend, **options)
        self._x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
        if run:
            self.step()

    def loss(self) -> Tensor:
        torch.manual_seed(2)
        self.model.zero_grad(set_to_none=True)
        loss: Tensor = self._compiled(self._x).square().mean()
        return loss

    def step(self) -> None:
        self.loss().backward()

    @property
    def gradients(self) -> list[Tensor]:
        self.step()
        return [parameter.grad.clone() for parameter in self.model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize(
    ("name", "budget"),
    [
        ("mlp", "70%"),
        ("mlp", "50%"),
        ("convolutions", "85%"),
        ("recurrent", "75%"),
        ("recurrent", "60%"),
        ("residual", "66%"),
    ],
)
def test_gradients_are_those_of_the_step_as_it_was_and_the_peak_is_within_the_budget(
    name: str, budget: str
) -> None:
    expected = Trained(name, "aot_eager").gradients
    moving = Trained(name, budget=budget, offload=FAST)
    [report] = moving.reports
    assert report.outside_peak
    assert report.planned_peak <= report.budget
    assert all(map(torch.equal, moving.gradients, expected))
    moving.model.zero_grad(set_to_none=True)
    assert measure_peak(moving.step) <= report.budget


def test_a_plan_with_transfers_costs_no_more_than_one_without() -> None:
    for budget in ("80%", "60%", "50%"):
        [alone] = Trained("mlp", budget=budget).reports
        [both] = Trained("mlp", budget=budget, offload=FAST).reports
        assert both.overhead <= alone.overhead


@pytest.mark.parametrize(("name", "budget"), [("mlp", "60%"), ("recurrent", "75%")])
def test_the_online_planner_moves_what_is_cheaper_to_move(name: str, budget: str) -> None:
    expected = Trained(name, "aot_eager").gradients
    online = {"budget": budget, "planner": "online", "heuristic": "dtr-eq"}
    [alone] = Trained(name, **online).reports
    moving = Trained(name, **online, offload=FAST)
    [report] = moving.reports
    assert report.outside_peak
    assert report.overhead < alone.overhead
    assert all(map(torch.equal, moving.gradients, expected))
    moving.model.zero_grad(set_to_none=True)
    assert measure_peak(moving.step) <= report.budget


def test_a_gradient_that_waits_is_moved_where_it_sets_the_smallest_budget() -> None:
    smallest = []
    for offload in (None, FAST):
        with pytest.raises(InfeasibleBudgetError) as refused:
            Trained("residual", budget=1, offload=offload)
        smallest.append(refused.value.smallest)
    assert smallest[0] - smallest[1] == torch.empty(MODELS["residual"][1]).nbytes
    expected = Trained("residual", "aot_eager").gradients
    moving = Trained("residual", budget=smallest[1], offload=FAST)
    assert moving.reports[0].planned_peak == smallest[1]
    assert all(map(torch.equal, moving.gradients, expected))
    moving.model.zero_grad(set_to_none=True)
    assert measure_peak(moving.step) <= smallest[1]


def test_where_moving_never_pays_the_plan_is_the_one_without() -> None:
    slow = {"to": "disk", "out": 1e5, "back": 1e5}
    [alone] = Trained("mlp", budget="60%").reports
    [both] = Trained("mlp", budget="60%", offload=slow).reports
    assert [(event.kind, event.name) for event in both.events] == [
        (event.kind, event.name) for event in alone.events
    ]
    assert not both.outside_peak


def test_every_copy_of_the_report_has_its_place_in_the_step() -> None:
    [report] = Trained("mlp", budget="50%", offload=FAST).reports
    kinds: dict[str, list[str]] = {}
    for event in report.events:
        if event.kind in ("offload", "reload", "drop"):
            kinds.setdefault(event.origin, []).append(event.kind)
    moved = [each for each in kinds.values() if "offload" in each]
    assert moved
    assert all(each[:3] == ["offload", "drop", "reload"] for each in moved)


def test_what_has_no_second_run_can_be_moved() -> None:
    """Draws that a step cannot repeat set the smallest budget, but not if they are moved."""

    def make(tier: Tier | None) -> Program:
        forward = [
            Call(f"f{n}", (n,), (Output(n + 1, 8),), 10.0, recomputable=False, movable=True) for n in range(6)
        ]
        backward = [
            Call(f"b{n}", (n + 1, *((20 - n - 1,) if n < 5 else ())), (Output(20 - n, 8),), 10.0)
            for n in reversed(range(6))
        ]
        return Program("draws", (Constant(0, 8), *forward, *backward, Keep(20)), 6, tier=tier)

    program = make(Tier("disk", "/tmp", speed=Bandwidth(8.0, 8.0)))
    as_it_is = execute_order(make(None), range(12))
    plan = with_moves(program, 40, lambda budget: None, 0.2)
    assert as_it_is.peak > 40
    assert plan is not None
    assert plan.peak <= 40
    assert plan.moved
    assert Plan.from_json(plan.to_json()) == plan


def test_the_limit_of_a_place_is_never_exceeded() -> None:
    [free] = Trained("mlp", budget="50%", offload=FAST).reports
    limit = free.outside_peak // 2
    [limited] = Trained("mlp", budget="50%", offload={**FAST, "to": f"disk:{limit}"}).reports
    assert 0 < limited.outside_peak <= limit
    assert limited.planned_peak <= limited.budget


@pytest.mark.slow
def test_an_infeasible_budget_names_the_offload_that_it_needs() -> None:
    make, shape = MODELS["recurrent"]
    options = {"budget": "38%", "cache": False, "slices": "off", "plan_seconds": 0.5}
    options["offload"] = {**FAST, "to": "disk:4KiB"}
    compiled = torch.compile(make(), backend="dtr", options=options)
    with pytest.raises(InfeasibleBudgetError, match="but with offload of at least"):
        compiled(torch.randn(shape)).sum().backward()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"offload": "host"}, "write 'disk'"),
        ({"offload": "dsk"}, "did you mean 'disk'"),
        ({"offload": "disk", "executor": "inductor"}, "leave executor out"),
        ({"offload": {"to": "disk", "out": -1, "back": 1}}, "bytes per second"),
    ],
)
def test_what_cannot_be_is_told(options: dict[str, Any], message: str) -> None:
    torch._dynamo.reset()
    with pytest.raises(OptionError, match=message):
        torch.compile(mlp(), backend="dtr", options={"budget": "60%", **options})(torch.ones(512, 128))


def test_no_file_stays_in_the_folder(tmp_path: Path) -> None:
    moving = Trained("mlp", budget="50%", offload={**FAST, "to": str(tmp_path)})
    moving.step()
    assert moving.reports[0].outside_peak
    assert list(tmp_path.iterdir()) == []


def rewritten() -> torch.fx.GraphModule:
    """A graph with transfers."""
    x = torch.randn(2048, 256)
    weights = [torch.randn(256, 256, requires_grad=True) for _ in range(4)]

    def step(x: Tensor, *weights: Tensor) -> Any:
        for weight in weights:
            x = torch.tanh(x @ weight).sin()
        return torch.autograd.grad(x.sum(), weights)

    graph = torch.fx.experimental.proxy_tensor.make_fx(step, tracing_mode="fake")(x, *weights)
    assert fake_mode_of(graph) is not None
    graph, report = dtr_fx.transform(graph, "75%", offload=FAST)
    assert report.outside_peak
    return graph


def nodes(graph: torch.fx.GraphModule, target: object) -> list[torch.fx.Node]:
    return list(graph.graph.find_nodes(op="call_function", target=target))


def read_too_early(graph: torch.fx.GraphModule) -> None:
    wait = nodes(graph, transfers.wait_reload)[0]
    wait.replace_all_uses_with(wait.all_input_nodes[0])
    graph.graph.erase_node(wait)


def reload_unwaited(graph: torch.fx.GraphModule) -> None:
    back = nodes(graph, transfers.reload)[0]
    back.replace_input_with(back.all_input_nodes[0], back.all_input_nodes[0].all_input_nodes[0])


def reload_another(graph: torch.fx.GraphModule) -> None:
    first, second, *_ = nodes(graph, transfers.reload)
    second.replace_input_with(second.all_input_nodes[0], first.all_input_nodes[0])


def write_what_is_out(graph: torch.fx.GraphModule) -> None:
    moved = nodes(graph, transfers.offload)[0]
    value = moved.all_input_nodes[0]
    with graph.graph.inserting_after(moved):
        written = graph.graph.call_function(torch.ops.aten.add_.Tensor, (value, value))
    written.meta["val"] = value.meta["val"]


@pytest.mark.parametrize("spoil", [read_too_early, reload_unwaited, reload_another, write_what_is_out])
def test_a_graph_that_moves_wrongly_is_told(spoil: Callable[[torch.fx.GraphModule], None]) -> None:
    graph = rewritten()
    verify(graph)
    spoil(graph)
    with pytest.raises(VerificationError, match="'moved'"):
        verify(graph)


def test_commands_show_what_is_moved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    source = tmp_path / "net.py"
    source.write_text(
        "import torch\nfrom torch import nn\n\ndef make():\n"
        "    layers = [each for _ in range(8) for each in (nn.Linear(128, 128), nn.GELU())]\n"
        "    return nn.Sequential(*layers), (torch.randn(512, 128),)\n"
    )
    caplog.set_level(logging.ERROR)
    page = tmp_path / "page.html"
    arguments = [f"{source}:make", "--budget", "55%", "--offload", "disk", "--slices", "off"]
    assert main(["diff", *arguments, "--html", str(page)]) == 0
    assert "overhead" in capsys.readouterr().out
    assert page.stat().st_size
    assert main(["smallest", f"{source}:make", "--offload", "disk", "--slices", "off"]) == 0
    assert "smallest budget" in capsys.readouterr().out


def test_a_plan_is_the_same_in_another_process_and_found_again(tmp_path: Path) -> None:
    first, second = (
        Trained("mlp", budget="55%", offload=FAST, cache=str(tmp_path)).reports[0] for _ in range(2)
    )
    assert replace(first, seconds={}) == replace(second, seconds={})


# Faults in the middle of a step


def in_folder(folder: Path) -> dict[str, Any]:
    return {"budget": "85%", "offload": {**FAST, "to": str(folder)}}


def buffers(trained: Trained) -> list[Tensor]:
    return [buffer.clone() for buffer in trained.model.buffers()]


def test_a_disk_that_is_full_in_a_step_is_an_error_and_the_next_step_is_right(tmp_path: Path) -> None:
    expected, moving = Trained("convolutions", "aot_eager"), Trained("convolutions", **in_folder(tmp_path))
    assert moving.reports[0].outside_peak
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        with pytest.raises(OffloadError, match="cannot write"):
            moving.step()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert all(map(torch.equal, moving.gradients, expected.gradients))
    assert all(map(torch.equal, buffers(moving), buffers(expected)))


def test_a_folder_that_is_gone_when_a_step_begins(tmp_path: Path) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    expected = Trained("convolutions", "aot_eager").gradients
    moving = Trained("convolutions", run=False, on_report=lambda _: folder.rmdir(), **in_folder(folder))
    with pytest.raises(OffloadError, match="No such file or directory; make the folder"):
        moving.step()
    folder.mkdir()
    assert all(map(torch.equal, moving.gradients, expected))


def test_a_file_that_cannot_be_read_in_the_backward_pass(tmp_path: Path) -> None:
    expected, moving = Trained("convolutions", "aot_eager"), Trained("convolutions", **in_folder(tmp_path))
    loss = moving.loss()
    for link in list(Path("/proc/self/fd").iterdir()):
        if link.is_symlink() and os.readlink(link).startswith(str(tmp_path)):
            os.truncate(link, 0)
    with pytest.raises(OffloadError, match="cannot read"):
        loss.backward()
    del loss
    expected.step()  # the forward pass that has written its buffers
    assert all(map(torch.equal, moving.gradients, expected.gradients))
    assert all(map(torch.equal, buffers(moving), buffers(expected)))


KILLED = """
    import os, signal, sys, torch
    from dtr_fx.tiers.operators import usage
    sys.path.insert(0, sys.argv[1])
    from test_moves import Trained, in_folder

    moving = Trained("convolutions", **in_folder(sys.argv[2]))
    loss = moving.loss()
    assert usage(sys.argv[2]).now
    print("between the passes", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_nothing_stays_of_a_process_that_is_killed_in_the_middle_of_a_step(tmp_path: Path) -> None:
    command = [sys.executable, "-c", textwrap.dedent(KILLED), str(Path(__file__).parent), str(tmp_path)]
    killed = subprocess.run(command, check=False, capture_output=True, text=True, timeout=100)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert killed.stdout == "between the passes\n"
    assert list(tmp_path.iterdir()) == []
