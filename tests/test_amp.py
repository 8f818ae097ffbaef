"""Mixed precision, a gradient scaler and gradients that accumulate: as without dtr."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from dtr_fx import Report

pytestmark = pytest.mark.little_effort


def trained(
    backend: str, dtype: torch.dtype, options: dict[str, object] | None = None
) -> tuple[list[float], list[Tensor]]:
    """Losses and parameters of two optimizer steps, each over two batches."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    layers = (layer for _ in range(3) for layer in (nn.Linear(64, 64), nn.GELU(), nn.Dropout(0.1)))
    model = nn.Sequential(*layers)
    forward = torch.compile(model, backend=backend, options=options)
    optimizer, scaler = torch.optim.SGD(model.parameters(), 0.1), torch.amp.GradScaler("cpu")
    losses = []
    for _ in range(2):
        for _ in range(2):
            with torch.autocast("cpu", dtype):
                loss = forward(torch.randn(512, 64)).float().square().mean()
            scaler.scale(loss).backward()
            losses.append(loss.item())
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return losses, [parameter.detach() for parameter in model.parameters()]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_training_is_that_without_dtr(dtype):
    reports: list[Report] = []
    options = {"budget": "70%", "executor": "eager", "on_report": reports.append}
    losses, parameters = trained("dtr", dtype, options)
    expected_losses, expected = trained("aot_eager", dtype)
    assert reports[0].recomputes
    assert losses == expected_losses
    assert all(map(torch.equal, parameters, expected))
