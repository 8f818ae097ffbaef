"""A training step of a model of the zoo on ``card:0``, under budgets, beside the same step on the CPU.

    python tests/card_steps.py gpt 100% 60% 40% allocated:60%

Budgets are of reserved bytes here, those behind ``allocated:`` of allocated ones.  Prints a row of JSON for
each budget.  A process of its own, since it registers a device that PyTorch then takes for the machine's
accelerator.
"""

from __future__ import annotations

import gc
import json
import sys
from functools import partial
from typing import Any

import card
import torch
from torch import Tensor, nn

import dtr_fx
from dtr_fx.lab import zoo
from dtr_fx.report import Report
from dtr_fx.torch_private import pytree

MODELS = {
    "gpt": partial(zoo.gpt, layers=2, width=32, heads=2, batch=8, length=32, dropout=0.1),
    # Large enough that a share of its segments is some of them.
    "wide_gpt": partial(zoo.gpt, layers=4, width=256, heads=4, batch=16, length=128, dropout=0.1),
    "wide_resnet50": partial(zoo.resnet50, width=16, batch=32),
    "resnet": partial(zoo.resnet32, blocks=2),
    "resnet50": zoo.resnet50,
    "lstm": partial(zoo.lstm, steps=8),
    "wide_lstm": partial(zoo.lstm, steps=48, inputs=64, hidden=256),
}


def build(name: str, device: str) -> tuple[nn.Module, Any]:
    """A model and its inputs on a device, drawn on the CPU."""
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    return model.to(device), pytree.tree_map_only(Tensor, lambda tensor: tensor.to(device), inputs)


def step(model: nn.Module, inputs: Any, budget: str) -> tuple[list[Tensor], Report]:
    """The loss, the gradients and the buffers after one step, and the report of its plan."""
    torch._dynamo.reset()
    reports: list[Report] = []
    count, _, share = budget.rpartition(":")
    counted = {"count": count} if count else {}
    options = {"budget": share, **counted, "on_report": reports.append, "slices": "off", "plan_seconds": 0.2}
    torch.manual_seed(5)
    loss = torch.compile(model, backend="dtr", options=options)(*inputs)
    loss.backward()
    [report] = reports
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return [loss.detach(), *gradients, *model.buffers()], report


def on_card(
    module: card.Module, name: str, budget: str, expected: list[Tensor], drawn: Tensor
) -> dict[str, Any]:
    """What a step under a budget came to, beside the CPU, whose generator was left ``drawn``."""
    gc.collect()
    allocator = module.start_anew()
    model, inputs = build(name, card.NAME)
    found, report = step(model, inputs, budget)
    peak, reserved = module.max_memory_allocated(), module.memory_reserved()
    assert peak == allocator.peak_allocated
    return {
        "device": report.device,
        "same": [mine.cpu().equal(other) for mine, other in zip(found, expected, strict=True)],
        "drawn_alike": module.get_rng_state().equal(drawn),
        "budget": report.budget,
        "counts_reserved": report.counts_reserved,
        "planned": [report.planned_peak, report.reserved_peak],
        "measured": [peak, reserved],
        "again": sorted({event.target for event in report.events if event.kind == "recompute"}),
    }


def main(name: str, *budgets: str) -> None:
    module = card.install()
    dtr_fx.config.count = "reserved"  # the card's allocator is the one that plans are held against
    expected, _ = step(*build(name, "cpu"), "100%")
    drawn = torch.get_rng_state()
    for budget in budgets:
        print(json.dumps(on_card(module, name, budget, expected, drawn)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
