"""What moving adds to recomputing: overheads of plans with both, of recomputing alone, and of moving alone.

The costs are those of a named device, and the bandwidth is given; nothing runs.  Moving alone is greedy: the
largest idle values go first, and come back ahead.

    python tests/moves.py                        # the models, costs of an H200, 50 GB/s each way
    python tests/moves.py --logs FOLDER          # operator logs of the DTR paper
    python tests/moves.py --steps                # steps for real, on the CPU, with a file
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch
from tabulate import tabulate
from torch import nn

import dtr_fx
from dtr_fx.compiler.joint import trace
from dtr_fx.costs.devices import named_device
from dtr_fx.costs.roofline import roofline
from dtr_fx.lab import zoo
from dtr_fx.lab.log import read_log, with_offload
from dtr_fx.passes.modes import WithoutMemory
from dtr_fx.passes.sizes import put_on
from dtr_fx.planning.options import Options
from dtr_fx.planning.planner import Planner
from dtr_fx.planning.planning import Planning
from dtr_fx.runtime import Plan, Program
from dtr_fx.search import Operators, execute_order
from dtr_fx.search.moves import moving_alone as greedy
from dtr_fx.search.timeline import Timeline
from dtr_fx.tiers.tier import Bandwidth, Tier
from dtr_fx.torch_private import FakeTensorMode
from dtr_fx.units import format_bytes

SPEED = Bandwidth(out=50e9, back=50e9, latency=1e-5, source="given")
SHARES = (0.6, 0.4, 0.2)


class Labelled(nn.Module):
    """GPT-2 of transformers, called with labels."""

    def __init__(self) -> None:
        super().__init__()
        import transformers

        plain = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        config = transformers.GPT2Config(n_layer=12, n_embd=768, vocab_size=8192, use_cache=False, **plain)
        self.body = transformers.GPT2Model(config)
        self.head = nn.Linear(768, 8192, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.body(tokens).last_hidden_state)
        return nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())


def gpt2_transformers() -> tuple[nn.Module, tuple[torch.Tensor]]:
    return Labelled(), (torch.randint(0, 8192, (8, 1024)),)


MODELS: dict[str, Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]]] = {
    "gpt_full": zoo.gpt_full,
    "resnet50_full": zoo.resnet50_full,
    "unet_full": zoo.unet_full,
    "lstm_full": zoo.lstm_full,
    "gpt2 of transformers": gpt2_transformers,
}


def program_of(make: Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]]) -> tuple[Program, Options]:
    """A model's training step on an absent H200."""
    options = Options(costs=roofline(named_device("h200")), offload=Tier("host", speed=SPEED))
    with WithoutMemory(math.inf), FakeTensorMode(allow_non_fake_inputs=True):
        graph = trace(*make()).planned
    put_on(graph, torch.device("cuda"))
    return Planning(graph, options).planner.program, options


def moving_alone(program: Program, budget: int) -> Plan | None:
    """What greedy moving comes to; None where it is not enough."""
    found = greedy(Timeline(Operators.of(program), budget - program.constants))
    plans = [execute_order(program, each.order, budget, each.moved) for each in found]
    return min(plans, key=lambda plan: plan.extra, default=None)


def rows_of(name: str, program: Program) -> Iterator[tuple[object, ...]]:
    options = Options(cache=False)
    both, alone = (Planner(each, options) for each in (program, replace(program, tier=None)))
    for share in SHARES:
        budget = program.constants + int(share * (program.peak - program.constants))
        plans = [
            alone.search(budget, alone.program, lambda: alone.smallest),
            moving_alone(program, budget),
            both.search(budget, both.program, lambda: alone.smallest),
        ]
        extra = [math.inf if plan is None else plan.extra / program.cost for plan in plans]
        yield name, share, *extra, plans[-1].outside if plans[-1] else 0


def steps() -> Iterator[dict[str, object]]:
    """Training steps on this machine, at shares of the activations: peaks, times, equal gradients."""
    folder = tempfile.mkdtemp()
    for name in ("mlp", "gpt"):
        expected = Trained(name, None, None)
        [whole] = Trained(name, 1.0, None).reports
        yield {"model": name, "budget": "", "peak": format_bytes(expected.peak), "step": expected.seconds}
        for share in (0.4, 0.2):
            for offload in (None, folder):
                row = {"model": name, "budget": f"{share:.0%}", "offload": "disk" if offload else ""}
                budget = whole.constants + int(share * (whole.baseline_peak - whole.constants))
                try:
                    trained = Trained(name, budget, offload)
                except dtr_fx.InfeasibleBudgetError as error:
                    of = (error.smallest - whole.constants) / (whole.baseline_peak - whole.constants)
                    yield {**row, "peak": f"smallest {of:.1%}"}
                    continue
                report = trained.reports[0]
                yield {
                    **row,
                    "peak": format_bytes(trained.peak),
                    "of": format_bytes(report.budget),
                    "moved": format_bytes(report.outside_peak),
                    "extra": f"{report.overhead:.1%}",
                    "step": trained.seconds,
                    "equal": all(map(torch.equal, trained.gradients, expected.gradients)),
                    "left in folder": "" if offload is None else len(list(Path(folder).iterdir())),
                }


class Trained:
    """A model of the zoo that has trained for some steps."""

    def __init__(self, name: str, budget: float | None, offload: str | None) -> None:
        torch._dynamo.reset()
        torch.manual_seed(0)
        model, inputs = zoo.MODELS[name]()
        self.reports: list[dtr_fx.Report] = []
        options = {"budget": budget, "offload": offload, "cache": False, "on_report": self.reports.append}
        plain = {"backend": "aot_eager"}
        compiled = torch.compile(
            model, **(plain if budget is None else {"backend": "dtr", "options": options})
        )

        def step() -> None:
            torch.manual_seed(1)
            compiled(*inputs).backward()

        step()
        self.gradients = [parameter.grad.clone() for parameter in model.parameters()]
        model.zero_grad(set_to_none=True)
        self.peak = dtr_fx.measure_peak(step)
        taken = []
        for _ in range(7):
            model.zero_grad(set_to_none=True)
            started = time.perf_counter()
            step()
            taken.append(time.perf_counter() - started)
        self.seconds = f"{statistics.median(taken) * 1e3:.0f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--logs", type=Path, metavar="FOLDER", help="operator logs, whose costs are their own"
    )
    parser.add_argument("--steps", action="store_true", help="steps for real, with a file")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="some of the models")
    arguments = parser.parse_args()
    if arguments.steps:
        print(tabulate(list(steps()), headers="keys"))
        return
    rows = []
    if arguments.logs is not None:
        for path in sorted(arguments.logs.glob("*.log*")):
            moving = with_offload(read_log(path), SPEED.out, SPEED.back, SPEED.latency)
            for row in rows_of(moving.name, moving):
                rows.append(row)
                print(*row, flush=True)
    else:
        for name in arguments.only or MODELS:
            program, _ = program_of(MODELS[name])
            for row in rows_of(name, program):
                rows.append(row)
                print(*row, flush=True)
    head = ["model", "activations", "recomputing", "moving", "both", "moved"]
    print(tabulate(rows, head, floatfmt=".3f"))
    sums = [sum(row[at] for row in rows if math.isfinite(row[2])) for at in (2, 4)]
    print(f"sum of both over recomputing alone: {sums[1] / sums[0]:.2f}")


if __name__ == "__main__":
    main()
