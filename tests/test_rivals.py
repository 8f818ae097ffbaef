"""The rivals: that each is what it claims to be, and what the benchmark says of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pairs
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from dtr_fx import GraphError, InfeasibleBudgetError
from dtr_fx.cli import main
from dtr_fx.cli.bench.rivals import Plan, Point, Result, compare, goals
from dtr_fx.lab import baselines as rivals
from dtr_fx.lab import zoo
from dtr_fx.planning.judge import Judgement, judge
from dtr_fx.planning.options import Options

aten = torch.ops.aten


@pytest.fixture
def fake() -> Iterator[None]:
    with FakeTensorMode(allow_non_fake_inputs=True):
        yield


class Blocks(nn.Module):
    """Blocks of two matrix products with all that they save in between."""

    def __init__(self, count: int, width: int = 64) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(count)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x).tanh()
        return x.square().mean()


def products(pair: rivals.Pair) -> int:
    """How many matrix products the step runs."""
    nodes = [node for gm in pair for node in gm.graph.nodes]
    return sum(node.target in (aten.mm.default, aten.addmm.default) for node in nodes)


# The same step in every form


def test_every_form_computes_the_same() -> None:
    model, inputs = zoo.mlp(layers=6, width=32, batch=512)
    joint = rivals.trace(model, inputs)
    eager = rivals.eager(joint)
    given = pairs.given(eager)
    expected = pairs.run(eager, given)
    planned, _ = rivals.planned(joint, Options(budget=0.8))
    for form in (planned, rivals.min_cut(joint, 0.5), rivals.min_cut(joint, 0.0)):
        assert all(map(torch.equal, pairs.run(form, given), expected))


def test_nothing_is_executed_and_nothing_allocated(fake: None) -> None:
    model, inputs = Blocks(2, width=2**15), (torch.empty(2**15, 2**15),)
    joint = rivals.trace(model, inputs)
    assert judge(*rivals.eager(joint), costs=lambda node: 1.0).peak > 2**36


def test_a_model_may_be_called_by_keyword() -> None:
    model = nn.Linear(4, 4)
    joint = rivals.trace(model, {"input": torch.ones(2, 4)})
    assert judge(*rivals.eager(joint)).cost > 0


def test_eager_runs_what_was_traced_once(fake: None) -> None:
    """Dropout, too: partitioners leave copies of it in the backward graph that nothing reads."""
    model, inputs = zoo.gpt(layers=2, width=64, batch=4, length=32, dropout=0.1)
    joint = rivals.trace(model, inputs)
    traced = [node.target for node in joint.graph.graph.nodes if node.op == "call_function"]
    for budget in (None, 0.6):
        pair = rivals.eager(joint) if budget is None else rivals.min_cut(joint, budget)
        nodes = [node for gm in pair for node in gm.graph.nodes]
        assert all(node.users for node in nodes if node.target is aten.native_dropout.default)
        if budget is None:
            draws = sum(node.target is aten.native_dropout.default for node in nodes)
            assert draws == traced.count(aten.native_dropout.default)


# PyTorch's partitioner


def test_the_partitioner_recomputes_more_at_a_smaller_budget(fake: None) -> None:
    joint = rivals.trace(Blocks(4), (torch.ones(256, 64),))
    eager = judge(*rivals.eager(joint))
    overheads = [judge(*rivals.min_cut(joint, budget)).overhead(eager) for budget in (1.0, 0.5, 0.0)]
    assert overheads == sorted(overheads)
    assert overheads[0] < overheads[-1]


def test_the_partitioners_setting_is_put_back(fake: None) -> None:
    joint = rivals.trace(Blocks(1), (torch.ones(256, 64),))
    before = torch._functorch.config.activation_memory_budget
    rivals.min_cut(joint, 0.3)
    assert torch._functorch.config.activation_memory_budget == before
    with pytest.raises(RuntimeError, match="memory budget"):
        rivals.min_cut(joint, 2.0)
    assert torch._functorch.config.activation_memory_budget == before


# Checkpointing


def test_checkpointing_runs_each_block_again(fake: None) -> None:
    model, inputs = Blocks(5), (torch.ones(1024, 64),)
    joint = rivals.trace(model, inputs)
    eager, checkpointed = rivals.eager(joint), rivals.checkpointed(model, inputs)
    # The first product of each block; nothing in the block needs the result of the second.
    assert products(checkpointed) == products(eager) + 5
    assert judge(*checkpointed).peak < judge(*eager).peak


def test_only_the_blocks_that_are_named_run_again(fake: None) -> None:
    model, inputs = Blocks(5), (torch.ones(1024, 64),)
    eager = products(rivals.eager(rivals.trace(model, inputs)))
    assert products(rivals.checkpointed(model, inputs, blocks=model.blocks[:2])) == eager + 2


def test_checkpointing_leaves_the_model_as_it_was(fake: None) -> None:
    model, inputs = Blocks(2), (torch.ones(8, 64),)
    before = products(rivals.eager(rivals.trace(model, inputs)))
    rivals.checkpointed(model, inputs)
    assert products(rivals.eager(rivals.trace(model, inputs))) == before
    assert not any("forward" in vars(module) for module in model.modules())


def test_recomputed_dropout_replays_its_mask() -> None:
    """Else its gradient, with a mask, would not be that mask's."""

    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Sequential(nn.Dropout(0.5), nn.Tanh(), nn.Tanh())])

        def forward(self, x: Tensor) -> Tensor:
            return self.layers[0](x * 1.0)

    pair = rivals.checkpointed(Dropped(), (torch.ones(64, 64, requires_grad=True),))
    given = pairs.given(pair)
    output, gradient = pairs.run(pair, given)
    assert 0 < output.count_nonzero() < output.numel()
    assert torch.equal(output != 0, gradient != 0)


def test_blocks_are_the_children_of_the_outermost_containers() -> None:
    model = Blocks(3)
    assert rivals.blocks_of(model) == list(model.blocks)
    assert rivals.blocks_of(nn.Sequential(model)) == [model]


def test_a_model_may_name_its_blocks() -> None:
    class Named(Blocks):
        def blocks_to_checkpoint(self) -> list[nn.Module]:
            return [self.first]

    model = Named(3)
    assert rivals.blocks_of(model) == [model.first]


# What cannot be compared


def test_a_model_of_several_graphs_is_refused() -> None:
    class Broken(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            torch._dynamo.graph_break()
            return y.sin()

    with pytest.raises(GraphError, match="one graph"):
        rivals.trace(Broken(4, 4), (torch.ones(2, 4),))


def test_a_model_without_gradients_is_refused() -> None:
    with pytest.raises(GraphError, match="requires a gradient"):
        rivals.trace(nn.Tanh(), (torch.ones(2, 4),))


def test_a_budget_that_is_too_small_is_an_error(fake: None) -> None:
    joint = rivals.trace(Blocks(2), (torch.ones(8, 64),))
    with pytest.raises(InfeasibleBudgetError):
        rivals.planned(joint, Options(budget=1))


# The benchmark


EAGER = Judgement(peak=1100, constants=100, cost=1.0, operator="")
OURS = Plan(peak=600, overhead=0.05, seconds=0.5)
MET = Result(
    target="zoo.py:model",
    nodes=2000,
    eager=EAGER,
    partitioner=(Point("1.0", 1100, 0.0, Plan(1100, 0.0, 0.1)), Point("0.5", 600, 0.1, OURS)),
    checkpoint=Point("checkpoint", 600, 0.3, OURS),
    lowest=Plan(peak=400, overhead=0.29, seconds=0.5),
    smallest=300,
    bound=290,
    smallest_seconds=0.5,
)


def test_goals_that_are_met() -> None:
    assert all(goal.met for goal in goals([MET]))


@pytest.mark.parametrize(
    ("missed", "fields"),
    [
        (0, {"partitioner": (Point("0.9", 1000, 0.01, OURS), Point("0.0", 1000, 0.3, OURS))}),
        (1, {"partitioner": (Point("0.5", 600, 0.06, OURS),)}),
        (2, {"checkpoint": Point("checkpoint", 600, 0.06, OURS)}),
        (3, {"lowest": Plan(peak=600, overhead=0.29, seconds=0.5)}),
        (3, {"lowest": None}),
        (4, {"smallest": 310}),
        (5, {"nodes": 20_000, "checkpoint": Point("checkpoint", 600, 0.3, replace(OURS, seconds=8.1))}),
    ],
)
def test_goals_that_are_missed(missed: int, fields: dict[str, Any]) -> None:
    found = goals([MET, replace(MET, **fields)])
    assert not found[missed].met
    assert all(goal.met for number, goal in enumerate(found) if number not in (missed, 1))


def test_a_point_without_a_plan_misses_its_goals() -> None:
    found = goals([replace(MET, partitioner=(Point("0.1", 150, 0.2, None),))])
    assert [goal.met for goal in found][:2] == [False, False]


MODEL = """
import torch
from torch import nn

def factory():
    layers = [layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.GELU())]
    return nn.Sequential(*layers), torch.randn(512, 64)

def function():
    return torch.relu, torch.ones(2)
"""


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text(MODEL)
    return path


def test_a_comparison_is_consistent(model_file: Path) -> None:
    result = compare(f"{model_file}:factory", Options(), budgets=(1.0, 0.5))
    assert [point.rival for point in result.partitioner] == ["1.0", "0.5"]
    assert result.bound <= result.smallest <= result.eager.peak
    for point in (*result.partitioner, result.checkpoint):
        assert point.ours is None or point.ours.peak <= point.peak
    assert result.lowest is None or result.lowest.overhead <= result.checkpoint.overhead + 1e-9


def test_the_command_prints_every_table(model_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = f"{model_file}:factory"
    assert main(["bench", "rivals", target]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith(("1.0 ", "0.0 ", "sum ")) for line in lines) == 3
    for head in ("factory: ", "checkpoint ", "smallest budget ", "goal "):
        assert any(line.startswith(head) for line in lines)


def test_the_command_prints_json(model_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "rivals", f"{model_file}:factory", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    (result,) = found["results"]
    assert len(result["partitioner"]) == 11
    assert {goal["met"] for goal in found["goals"]} <= {True, False}


def test_a_function_has_no_blocks(model_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "rivals", f"{model_file}:function"]) == 2
    assert "give a module" in capsys.readouterr().err


@pytest.mark.parametrize("factory", [zoo.gpt_full, zoo.vit, zoo.resnet50_full, zoo.unet_full])
def test_the_benchmarks_models_have_blocks(factory: Callable[[], Any], fake: None) -> None:
    model, _ = factory()
    held = sum(parameter.numel() for block in rivals.blocks_of(model) for parameter in block.parameters())
    assert held > 0.8 * sum(parameter.numel() for parameter in model.parameters())


def test_segments_of_a_chain_save_memory(fake: None) -> None:
    """Each layer on its own would not: it saves no more than what enters it."""
    for model, inputs in (zoo.mlp_full(layers=20), zoo.lstm_full(steps=20)):
        eager = judge(*rivals.eager(rivals.trace(model, inputs)))
        assert judge(*rivals.checkpointed(model, inputs)).above_constants < 0.7 * eager.above_constants


def test_one_tensor_is_an_argument() -> None:
    joint = rivals.trace(nn.Linear(4, 4), torch.ones(2, 4))
    assert sum(node.op == "call_function" for node in joint.graph.graph.nodes) > 0
