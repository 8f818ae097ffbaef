"""A planned training step on ``card:0`` that moves values to the host, beside one on the CPU; prints it."""

from __future__ import annotations

import gc
import json
from typing import Any

import card
import torch
from card_transfers import Unpinned
from torch import Tensor, nn

from dtr_fx.report import Report
from dtr_fx.tiers import operators

ROWS, WIDTH, BUFFERS = 512, 64, 16


class Loss(nn.Module):
    """The loss is a part of the graph, so that all that is allocated is in the budget."""

    def __init__(self) -> None:
        super().__init__()
        layers = [each for _ in range(8) for each in (nn.Linear(WIDTH, WIDTH), nn.GELU())]
        self.body = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        loss: Tensor = self.body(x).square().mean()
        return loss


def step(device: str, **options: Any) -> tuple[list[Tensor], Report]:
    """The gradients of a step, on the CPU, and the report of its plan."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = Loss().to(device)
    x = torch.randn(ROWS, WIDTH).to(device)
    reports: list[Report] = []
    usual = {"slices": "off", "plan_seconds": 0.1, "cache": False, "on_report": reports.append}
    compiled = torch.compile(model, backend="dtr", options={**usual, **options})
    compiled(x).backward()
    gradients = [each.grad.cpu() for each in model.parameters() if each.grad is not None]
    return gradients, reports[0]


def fill_pool() -> None:
    """Memory of the host cannot be pinned to a card in software: buffers are there before the step."""
    store = operators._store("host")
    with Unpinned():
        slots = [store.offload(torch.zeros(ROWS, WIDTH, device=card.NAME)) for _ in range(BUFFERS)]
    for slot in slots:
        store.wait_offload(slot)


def main() -> None:
    module = card.install()
    expected, _ = step("cpu", budget="100%")
    fill_pool()
    gc.collect()
    module.start_anew()
    found, report = step(card.NAME, budget="55%", offload={"to": "host", "out": "20GB", "back": "20GB"})
    peak = module.max_memory_allocated()
    gc.collect()
    same = all(map(torch.equal, found, expected))
    outside = operators.usage("host").now
    row = {
        "same": same,
        "moved": report.outside_peak,
        "budget": report.budget,
        "peak": peak,
        "outside": outside,
    }
    print(json.dumps(row))


if __name__ == "__main__":
    main()
