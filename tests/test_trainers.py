"""Trainers that people use, with the real libraries: the losses of ``aot_eager``, inside the budget.

``python tests/stacks.py`` prints the whole table.
"""

from __future__ import annotations

import pytest
import stacks
import torch
from stacks import STACKS, rows, run
from torch import nn

import dtr_fx

TRAINED = [
    "a loop, accumulation, bf16",
    "each block by itself (torchtitan)",
    "Trainer, accumulation, bf16, evaluation",
    "Trainer, gradient checkpointing",
    "Trainer, LoRA, in place",
    "accelerate, by regions",
    "Lightning, bf16, the module",
    "Fabric, bf16",
]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "LAYERS", 1)
    monkeypatch.setattr(stacks, "STEPS", 3)


@pytest.mark.parametrize("name", TRAINED)
def test_a_trainer_holds_the_budget_and_has_the_losses_that_it_had(name: str) -> None:
    stack = STACKS[name]
    for needed in stack.needs:
        pytest.importorskip(needed)
    plain, reference = run(stack), run(stack, "aot_eager")
    ours = run(stack, "dtr", budget="65%", planner="online")
    assert len(ours.losses) >= stacks.STEPS
    assert ours.losses == reference.losses
    assert ours.peak <= 0.65 * plain.peak


@pytest.mark.slow
def test_the_table_has_a_row_for_each_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dtr_fx.config, "planner", "online")
    table = list(rows(STACKS["each block by itself (torchtitan)"]))
    assert [budget for budget, *_ in table[:2]] == ["none", "60%"]
    assert [equal for *_, equal in table] == ["plain, `aot_eager`"] * 3


def test_a_name_that_accelerate_does_not_know_stays_unknown() -> None:
    utils = pytest.importorskip("accelerate.utils")
    for _ in range(2):
        dtr_fx.register_with_accelerate()
    plugin = utils.TorchDynamoPlugin(backend="dtr", options={"budget": "60%"})
    assert plugin.to_kwargs() == {"backend": "dtr", "options": {"budget": "60%"}}
    with pytest.raises(ValueError, match="not a valid DynamoBackend"):
        utils.TorchDynamoPlugin(backend="drt")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.GELU())))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.layers(x)
        return y


class Wrapper(nn.Module):
    """What a trainer puts around a model."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.inner(x)
        return y


@pytest.mark.parametrize("in_place", [True, False])
def test_a_wrapped_model_exceeds_its_share_at_most_once(
    in_place: bool, caplog: pytest.LogCaptureFixture
) -> None:
    torch._dynamo.reset()
    model, options = Net(), {"budget": "20%", "planner": "online"}
    if in_place:
        model.compile(backend="dtr", options=options)
    wrapper = Wrapper(model if in_place else torch.compile(model, backend="dtr", options=options))
    x = torch.randn(256, 64)
    wrapper(x).sum().backward()
    assert "the first step may be above the budget" in caplog.text
    for _ in range(2):
        with pytest.raises(dtr_fx.InfeasibleBudgetError):
            wrapper(x)
