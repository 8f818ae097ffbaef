"""Hints, in the options or in the code, are obeyed by every plan, and the report says what they came to."""

import logging
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import dtr_fx
from dtr_fx.planning.options import Options
from dtr_fx.report import HintStats, Report

pytestmark = pytest.mark.little_effort


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.gelu(self.up(x)))


class Net(nn.Module):
    def __init__(self, checkpoints: bool = False, breaks: bool = False) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.checkpoints, self.breaks = checkpoints, breaks

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpoints else block(x)
            if self.breaks:
                torch._dynamo.graph_break()
        with dtr_fx.region("tail"):
            x = x.sin().exp()
        return x.square().sum()


def step(model: nn.Module, backend: str = "dtr", **options: Any) -> tuple[list[Tensor], list[Report]]:
    torch._dynamo.reset()
    model.zero_grad()
    reports: list[Report] = []
    told = {"on_report": reports.append, "plan_seconds": 0.05, "cache": False, **options}
    given = {"options": told} if backend == "dtr" else {}
    loss = torch.compile(model, backend=backend, **given)(torch.linspace(-1, 1, 64 * 16).view(64, 16))
    loss.backward()
    return [loss.detach(), *(parameter.grad for parameter in model.parameters())], reports


def again(report: Report) -> set[str]:
    """The modules of what the backward pass runs again."""
    return {event.module for event in report.events if event.kind == "recompute"}


def came_to(report: Report) -> dict[str, HintStats]:
    return {hint.pattern: hint for hint in report.hints}


@pytest.mark.parametrize("options", [{}, {"budget": "1GiB"}, {"budget": "100%", "planner": "online"}])
def test_what_is_to_be_recomputed_does_not_wait_and_the_rest_of_a_hint_is_kept(options: Any) -> None:
    torch.manual_seed(0)
    model = Net()
    policy = {"blocks.*": "recompute", "blocks.1-2.up": "keep", "blocks.0.up": "recompute", "tail": "keep"}
    found, [report] = step(model, policy=policy, **options)
    expected, _ = step(model, "aot_eager")
    assert all(map(torch.equal, found, expected))
    hints = came_to(report)
    assert again(report) >= {"blocks.0.up"}
    assert again(report).isdisjoint({"blocks.1.up", "blocks.2.up"})
    assert hints["blocks.0.up"].held == 0 < hints["blocks.0.up"].nbytes
    assert hints["blocks.0.up"].seconds > 0
    assert hints["blocks.1-2.up"].held == hints["blocks.1-2.up"].nbytes == 2 * 64 * 64 * 4
    assert hints["blocks.1-2.up"].seconds == hints["tail"].seconds == 0
    assert hints["tail"].operators == 2
    assert report.planned_peak <= report.budget


def test_each_recomputed_block_starts_from_what_the_one_before_gave() -> None:
    _, [whole] = step(Net(), budget="100%")
    _, [report] = step(Net(), policy={"blocks": "recompute"})
    assert came_to(report)["blocks"].held == 2 * 64 * 16 * 4  # of three blocks, the results of two
    assert report.planned_peak < whole.planned_peak


def test_a_preference_gives_way_to_the_budget_and_a_demand_does_not() -> None:
    _, [least] = step(Net(), budget="65%", policy={"blocks": "prefer keep"})
    assert least.planned_peak <= least.budget
    assert came_to(least)["blocks"].held < came_to(least)["blocks"].nbytes
    with pytest.raises(dtr_fx.InfeasibleBudgetError) as caught:
        step(Net(), budget="65%", policy={"blocks": "keep"})
    [line] = [line for line in str(caught.value).splitlines() if "kept by hints" in line]
    assert "blocks" in line
    _, [report] = step(Net(), budget=caught.value.smallest, policy={"blocks": "keep"})
    assert report.planned_peak <= caught.value.smallest


@pytest.mark.parametrize("options", [{}, {"budget": "95%"}, {"budget": "95%", "planner": "online"}])
def test_a_part_keeps_within_its_own_budget(options: Any) -> None:
    torch.manual_seed(0)
    model = Net()
    _, [whole] = step(model, policy={"blocks.0-1": {"budget": "100%"}}, budget="100%")
    taken = came_to(whole)["blocks.0-1"].most
    assert not whole.recomputes
    assert taken >= 2 * 2 * 64 * 64 * 4  # what two blocks widen, before and after their activation
    found, [report] = step(model, policy={"blocks.0-1": {"budget": taken // 2}}, **options)
    expected, _ = step(model, "aot_eager")
    assert all(map(torch.equal, found, expected))
    assert 0 < came_to(report)["blocks.0-1"].most <= taken // 2
    assert again(report) & {"blocks.0", "blocks.0.up", "blocks.1", "blocks.1.up"}
    assert report.planned_peak <= report.budget


def test_a_part_whose_budget_no_plan_keeps_names_the_smallest_that_works() -> None:
    with pytest.raises(dtr_fx.InfeasiblePartError, match=r"policy\['blocks'\]: no plan") as caught:
        step(Net(), policy={"blocks": {"budget": 4096}})
    assert caught.value.asked == 4096
    _, [report] = step(Net(), policy={"blocks": {"budget": f"{caught.value.smallest}B"}})
    assert came_to(report)["blocks"].most <= caught.value.smallest


def test_only_what_no_pattern_of_more_parts_covers_is_in_a_part() -> None:
    policy = {"blocks": {"budget": "60%"}, "blocks.*.up": "keep"}
    _, [report] = step(Net(), policy=policy)
    assert again(report)
    assert again(report).isdisjoint(f"blocks.{number}.up" for number in range(3))
    assert came_to(report)["blocks"].most < came_to(report)["blocks"].nbytes


def test_a_hint_goes_before_a_checkpoint() -> None:
    model = Net(checkpoints=True)
    found, [report] = step(model, policy={"blocks.*.up": "keep"})
    expected, _ = step(model, "aot_eager")
    assert all(map(torch.equal, found, expected))
    assert again(report)
    assert again(report).isdisjoint(f"blocks.{number}.up" for number in range(3))


def test_keeping_costs_no_more_than_pytorch_without_a_budget() -> None:
    _, [plain] = step(Net())
    _, [kept] = step(Net(), policy={"blocks.0.up": "keep"})
    assert kept.planned_peak <= plain.planned_peak


class Said(nn.Module):
    def __init__(self, hard: bool) -> None:
        super().__init__()
        self.weight, self.hard = nn.Parameter(torch.linspace(0, 1, 4096)), hard

    def forward(self, x: Tensor) -> Tensor:
        x = dtr_fx.keep((x * self.weight).sin(), hard=self.hard)
        x = dtr_fx.drop(x.exp().view(64, 64), hard=self.hard)
        return x.square().sum()


@pytest.mark.parametrize("hard", [True, False])
def test_tensors_are_kept_and_dropped_in_the_code(hard: bool) -> None:
    model, x = Said(hard), torch.randn(4096)
    [expected] = torch.autograd.grad(model(x), model.weight)
    torch._dynamo.reset()
    reports: list[Report] = []
    options = {"on_report": reports.append, "cache": False}
    torch.compile(model, backend="dtr", fullgraph=True, options=options)(x).backward()
    assert torch.equal(model.weight.grad, expected)
    ran_again = [event for event in reports[0].events if event.kind == "recompute"]
    assert [event.origin for event in ran_again if event.storages] == ["exp"]  # and views of it
    words = ["keep", "recompute"] if hard else ["prefer keep", "prefer recompute"]
    assert [hint.what for hint in reports[0].hints] == words
    assert [hint.held for hint in reports[0].hints] == [x.nbytes, 0]


def test_inductor_obeys() -> None:
    policy = {"blocks.*.up": "keep", "tail": "recompute"}
    _, [report] = step(Net(), executor="inductor", budget="85%", policy=policy)
    hints = came_to(report)
    assert hints["blocks.*.up"].held == 3 * 64 * 64 * 4
    assert hints["blocks.*.up"].seconds == 0 < report.recomputes
    assert hints["tail"].held == 0


def test_what_is_kept_makes_no_input_safe_to_recompute_from() -> None:
    def function(x: Tensor, weight: Tensor) -> Tensor:
        kept = dtr_fx.keep(x.sin())
        return (kept * weight).sum() + ((x * 2).exp() * weight).sum() + weight.cos().exp().sin().sum()

    torch._dynamo.reset()
    x, weight = torch.linspace(1, 2, 4096), torch.linspace(0, 1, 4096).requires_grad_()
    options = {"budget": "90%", "cache": False}  # for which the exponential must be computed again
    loss = torch.compile(function, backend="dtr", options=options)(x, weight)
    x.add_(1)
    with pytest.raises(dtr_fx.WrittenTensorError, match=r"L\['x'\] was written"):
        loss.backward()


def test_outside_of_compilation_nothing_is_done() -> None:
    x = torch.ones(3)
    with dtr_fx.region("here"):
        assert dtr_fx.keep(x) is x
        assert dtr_fx.drop(x) is x


def test_names_are_those_of_the_model_where_dynamo_compiles_parts_of_it() -> None:
    _, reports = step(Net(breaks=True), policy={"blocks.1": "keep"})
    assert sum(came_to(report)["blocks.1"].operators for report in reports) == 4  # two of them linear
    _, [whole] = step(Net(), policy={"blocks.1": "keep"})
    assert came_to(whole)["blocks.1"].operators == 4
    model, reports = Net(), []
    torch._dynamo.reset()
    model.blocks[1].compile(
        backend="dtr", options={"policy": {"blocks.*.up": "keep"}, "on_report": reports.append}
    )
    model(torch.randn(64, 16)).backward()
    assert came_to(reports[0])["blocks.*.up"].operators == 1


def test_a_pattern_that_covers_nothing_is_said_aloud(caplog: pytest.LogCaptureFixture) -> None:
    step(Net(), policy={"blocks.*.pu": "keep", "blocks.0.up": "keep"})
    [line] = [line.getMessage() for line in caplog.records if line.levelno >= logging.WARNING]
    assert "policy['blocks.*.pu'] covers nothing" in line
    assert "did you mean 'blocks.*.up'" in line
    with pytest.raises(dtr_fx.OptionError, match="covers nothing"):
        step(Net(), strict=True, policy={"blocks.*.pu": "keep"})
    caplog.clear()
    step(Net(breaks=True), policy={"tail": "keep"})  # which one of its graphs has
    assert not [line for line in caplog.records if line.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    ("policy", "what_to_do"),
    [
        ("recompute", "write a dictionary"),
        ({"blocks[0]": "keep"}, "'blocks.0.attn'"),
        ({3: "keep"}, "'blocks.0.attn'"),
        ({"blocks": "recomptue"}, "did you mean 'recompute'"),
        ({"blocks": True}, "choose one of 'keep'"),
        ({"blocks": {"budgt": "2GiB"}}, "did you mean"),
        ({"blocks": {"budget": "2Gb"}}, "did you mean '2GiB'"),
        ({"blocks": {"budget": "0%"}}, "or a share of what the part takes"),
        ({"blocks": {"budget": True}}, "not a number with a unit"),
    ],
)
def test_a_policy_that_cannot_be_understood_is_an_error(policy: object, what_to_do: str) -> None:
    with pytest.raises(dtr_fx.OptionError, match=what_to_do):
        Options.from_mapping({"policy": policy})


def test_a_report_is_read_as_it_was_written() -> None:
    _, [report] = step(Net(), policy={"blocks.0": "recompute"})
    assert type(report).from_json(report.to_json()) == report
    assert str(report.hints[0]).startswith("recompute blocks.0: 6 operators, ")
