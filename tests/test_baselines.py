"""Other ways to run a step: that each is what it claims to be."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from typing import Any

import pairs
import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from dtr_fx import GraphError, InfeasibleBudgetError
from dtr_fx.lab import baselines, zoo
from dtr_fx.planning.judge import judge
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


def products(pair: baselines.Pair) -> int:
    """How many matrix products the step runs."""
    nodes = [node for gm in pair for node in gm.graph.nodes]
    return sum(node.target in (aten.mm.default, aten.addmm.default) for node in nodes)


# The same step in every form


def test_every_form_computes_the_same() -> None:
    model, inputs = zoo.mlp(layers=6, width=32, batch=512)
    joint = baselines.trace(model, inputs)
    eager = baselines.eager(joint)
    given = pairs.given(eager)
    expected = pairs.run(eager, given)
    planned, _ = baselines.planned(joint, Options(budget=0.8))
    for form in (planned, baselines.min_cut(joint, 0.5), baselines.min_cut(joint, 0.0)):
        assert all(map(torch.equal, pairs.run(form, given), expected))


def test_nothing_is_executed_and_nothing_allocated(fake: None) -> None:
    model, inputs = Blocks(2, width=2**15), (torch.empty(2**15, 2**15),)
    joint = baselines.trace(model, inputs)
    assert judge(*baselines.eager(joint), costs=lambda node: 1.0).peak > 2**36


def test_a_model_may_be_called_by_keyword() -> None:
    model = nn.Linear(4, 4)
    joint = baselines.trace(model, {"input": torch.ones(2, 4)})
    assert judge(*baselines.eager(joint)).cost > 0


def test_eager_runs_what_was_traced_once(fake: None) -> None:
    """Dropout, too: partitioners leave copies of it in the backward graph that nothing reads."""
    model, inputs = zoo.gpt(layers=2, width=64, batch=4, length=32, dropout=0.1)
    joint = baselines.trace(model, inputs)
    traced = [node.target for node in joint.graph.graph.nodes if node.op == "call_function"]
    for budget in (None, 0.6):
        pair = baselines.eager(joint) if budget is None else baselines.min_cut(joint, budget)
        nodes = [node for gm in pair for node in gm.graph.nodes]
        assert all(node.users for node in nodes if node.target is aten.native_dropout.default)
        if budget is None:
            draws = sum(node.target is aten.native_dropout.default for node in nodes)
            assert draws == traced.count(aten.native_dropout.default)


# PyTorch's partitioner


def test_the_partitioner_recomputes_more_at_a_smaller_budget(fake: None) -> None:
    joint = baselines.trace(Blocks(4), (torch.ones(256, 64),))
    eager = judge(*baselines.eager(joint))
    overheads = [judge(*baselines.min_cut(joint, budget)).overhead(eager) for budget in (1.0, 0.5, 0.0)]
    assert overheads == sorted(overheads)
    assert overheads[0] < overheads[-1]


def test_the_partitioners_setting_is_put_back(fake: None) -> None:
    joint = baselines.trace(Blocks(1), (torch.ones(256, 64),))
    before = torch._functorch.config.activation_memory_budget
    baselines.min_cut(joint, 0.3)
    assert torch._functorch.config.activation_memory_budget == before
    with pytest.raises(RuntimeError, match="memory budget"):
        baselines.min_cut(joint, 2.0)
    assert torch._functorch.config.activation_memory_budget == before


# Checkpointing


def test_checkpointing_runs_each_block_again(fake: None) -> None:
    model, inputs = Blocks(5), (torch.ones(1024, 64),)
    joint = baselines.trace(model, inputs)
    eager, checkpointed = baselines.eager(joint), baselines.checkpointed(model, inputs)
    # The first product of each block; nothing in the block needs the result of the second.
    assert products(checkpointed) == products(eager) + 5
    assert judge(*checkpointed).peak < judge(*eager).peak


def test_only_the_blocks_that_are_named_run_again(fake: None) -> None:
    model, inputs = Blocks(5), (torch.ones(1024, 64),)
    eager = products(baselines.eager(baselines.trace(model, inputs)))
    assert products(baselines.checkpointed(model, inputs, blocks=model.blocks[:2])) == eager + 2


def test_checkpointing_leaves_the_model_as_it_was(fake: None) -> None:
    model, inputs = Blocks(2), (torch.ones(8, 64),)
    before = products(baselines.eager(baselines.trace(model, inputs)))
    baselines.checkpointed(model, inputs)
    assert products(baselines.eager(baselines.trace(model, inputs))) == before
    assert not any("forward" in vars(module) for module in model.modules())


def test_recomputed_dropout_replays_its_mask() -> None:
    """Else its gradient, with a mask, would not be that mask's."""

    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Sequential(nn.Dropout(0.5), nn.Tanh(), nn.Tanh())])

        def forward(self, x: Tensor) -> Tensor:
            return self.layers[0](x * 1.0)

    pair = baselines.checkpointed(Dropped(), (torch.ones(64, 64, requires_grad=True),))
    given = pairs.given(pair)
    output, gradient = pairs.run(pair, given)
    assert 0 < output.count_nonzero() < output.numel()
    assert torch.equal(output != 0, gradient != 0)


def test_blocks_are_the_children_of_the_outermost_containers() -> None:
    model = Blocks(3)
    assert baselines.blocks_of(model) == list(model.blocks)
    assert baselines.blocks_of(nn.Sequential(model)) == [model]


def test_a_model_may_name_its_blocks() -> None:
    class Named(Blocks):
        def blocks_to_checkpoint(self) -> list[nn.Module]:
            return [self.first]

    model = Named(3)
    assert baselines.blocks_of(model) == [model.first]


# What cannot be compared


def test_a_model_of_several_graphs_is_refused() -> None:
    class Broken(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            y = super().forward(x)
            torch._dynamo.graph_break()
            return y.sin()

    with pytest.raises(GraphError, match="one graph"):
        baselines.trace(Broken(4, 4), (torch.ones(2, 4),))


log = logging.getLogger(__name__)


def test_a_line_of_a_log_ends_no_graph_and_that_is_said(caplog: pytest.LogCaptureFixture) -> None:
    class Telling(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            log.warning("of some shape")
            return super().forward(x).sin()

    assert baselines.trace(Telling(4, 4), (torch.ones(2, 4),)).graph is not None
    assert re.search(r"in training .*\(.*test_baselines.py:\d+\)", caplog.text)


def test_a_model_without_gradients_is_refused() -> None:
    with pytest.raises(GraphError, match="requires a gradient"):
        baselines.trace(nn.Tanh(), (torch.ones(2, 4),))


def test_a_budget_that_is_too_small_is_an_error(fake: None) -> None:
    joint = baselines.trace(Blocks(2), (torch.ones(8, 64),))
    with pytest.raises(InfeasibleBudgetError):
        baselines.planned(joint, Options(budget=1))


# Models at full size


@pytest.mark.parametrize("factory", [zoo.gpt_full, zoo.vit, zoo.resnet50_full, zoo.unet_full])
def test_the_benchmarks_models_have_blocks(factory: Callable[[], Any], fake: None) -> None:
    model, _ = factory()
    held = sum(parameter.numel() for block in baselines.blocks_of(model) for parameter in block.parameters())
    assert held > 0.8 * sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.slow
def test_segments_of_a_chain_save_memory(fake: None) -> None:
    """Each layer on its own would not: it saves no more than what enters it."""
    for model, inputs in (zoo.mlp_full(layers=20), zoo.lstm_full(steps=20)):
        eager = judge(*baselines.eager(baselines.trace(model, inputs)))
        assert judge(*baselines.checkpointed(model, inputs)).above_constants < 0.7 * eager.above_constants


def test_one_tensor_is_an_argument() -> None:
    joint = baselines.trace(nn.Linear(4, 4), torch.ones(2, 4))
    assert sum(node.op == "call_function" for node in joint.graph.graph.nodes) > 0
