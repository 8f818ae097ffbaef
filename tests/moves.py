"""What moving adds to recomputing: overheads of plans with both, of recomputing alone, and of moving alone.

The costs are those of a named device, and the bandwidth is given; nothing runs.  Moving alone is greedy: the
largest idle values go first, and come back ahead.

    python tests/moves.py                        # the models, costs of an H200, 50 GB/s each way
    python tests/moves.py --logs FOLDER          # operator logs of the DTR paper
    python tests/moves.py --steps                # steps for real, on the CPU, with a file
    python tests/moves.py --smallest             # the smallest budgets without and with a file
"""

from __future__ import annotations

import argparse
import importlib
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

import torch
from rivals import Labelled
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
from dtr_fx.search.bound import Bounds
from dtr_fx.search.moves import moving_alone as greedy
from dtr_fx.search.timeline import Timeline
from dtr_fx.tiers.tier import Bandwidth, Tier
from dtr_fx.torch_private import FakeTensorMode
from dtr_fx.units import format_bytes

SPEED = Bandwidth(out=50e9, back=50e9, latency=1e-5, source="given")
SHARES = (0.6, 0.4, 0.2)
ROUNDS = 20

Inputs: TypeAlias = "tuple[torch.Tensor, ...]"


class GPT2(nn.Module):
    """GPT-2 of transformers, to its loss."""

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
    return GPT2(), (torch.randint(0, 8192, (8, 1024)),)


MODELS: dict[str, Callable[[], tuple[nn.Module, Inputs]]] = {
    "gpt_full": zoo.gpt_full,
    "resnet50_full": zoo.resnet50_full,
    "unet_full": zoo.unet_full,
    "lstm_full": zoo.lstm_full,
    "gpt2 of transformers": gpt2_transformers,
}


WORDS = 200


def labelled(name: str, config: str, **sizes: object) -> Callable[[], tuple[nn.Module, Inputs]]:
    """A small model of transformers, called with labels, to its loss."""

    def make() -> tuple[nn.Module, Inputs]:
        import transformers

        model = getattr(transformers, name)(getattr(transformers, config)(vocab_size=WORDS, **sizes))
        ids = torch.randint(3, WORDS, (4, 128))
        return Labelled(model, ("input_ids", "labels")), (ids, ids)

    return make


def of_library(name: str, setting: str) -> Callable[[], tuple[nn.Module, Inputs]]:
    """A vision model of timm or torchvision."""

    def make() -> tuple[nn.Module, Inputs]:
        library = importlib.import_module(name)
        model = library.create_model(setting) if name == "timm" else library.get_model(setting)
        return model, (torch.randn(4, 3, 64, 64),)

    return make


_SIZES: dict[str, object] = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
_WIDE = {**_SIZES, "intermediate_size": 128}
SMALL: dict[str, Callable[[], tuple[nn.Module, Inputs]]] = {
    **{f"zoo:{name}": zoo.MODELS[name] for name in ("mlp", "gpt", "vit")},
    "BERT": labelled("BertForMaskedLM", "BertConfig", **_WIDE),
    "GPT-2": labelled("GPT2LMHeadModel", "GPT2Config", n_embd=64, n_layer=3, n_head=4),
    "Llama": labelled("LlamaForCausalLM", "LlamaConfig", **_WIDE),
    "Mixtral": labelled(
        "MixtralForCausalLM", "MixtralConfig", num_local_experts=4, num_key_value_heads=4, **_WIDE
    ),
    "OPT": labelled("OPTForCausalLM", "OPTConfig", ffn_dim=128, word_embed_proj_dim=64, **_SIZES),
    "Mamba": labelled("MambaForCausalLM", "MambaConfig", hidden_size=32, num_hidden_layers=2, state_size=8),
    "T5": labelled(
        "T5ForConditionalGeneration", "T5Config", d_model=64, num_layers=2, decoder_start_token_id=0
    ),
    "timm's convnext": of_library("timm", "convnext_atto"),
    "torchvision's mobilenet": of_library("torchvision.models", "mobilenet_v3_small"),
}


def smallest(names: Sequence[str]) -> Iterator[dict[str, object]]:
    """The smallest budgets by recomputing and with a file, and what sets them.

    At the peak of the first: what is kept there as it may not run twice.  At that of the second: what its
    operator alone needs, with the results that are there by then.  Beside it: what any plan needs.
    """
    tier = Tier("disk", tempfile.gettempdir(), speed=Bandwidth(2e9, 2e9, 1e-5, source="given"))
    options = Options(offload=tier, cache=False)
    for name in names:
        torch.manual_seed(0)
        try:
            planner = Planning(trace(*SMALL[name]()).planned, options).planner
        except ImportError as error:
            yield {"model": name, "recomputing": f"{error}"}
            continue
        alone, both = Planner(replace(planner.program, tier=None), options).smallest, planner.smallest
        number = next(step.op for step in both.steps if step.live == both.peak)
        needed = Bounds(planner.program).while_running[number]
        yield {
            "model": name,
            "recomputing": format_bytes(alone.peak),
            "kept there": format_bytes(idle_for_good(planner.program, alone)),
            "with a file": format_bytes(both.peak),
            "its operator needs": format_bytes(needed.nbytes),
            "no plan below": format_bytes(planner.need.nbytes),
        }


def idle_for_good(program: Program, plan: Plan) -> int:
    """The bytes at the peak of a plan that nothing reads then and that no plan can make again."""
    calls = list(program.calls())
    results = {program.storages[each] for kept in program.kept_after.values() for each in kept}
    stays = {
        output.tensor
        for call in calls
        for output in call.outputs
        if output.alias is None and not call.recomputable and output.tensor not in results
    }
    there: set[int] = set()
    for step in plan.steps:
        if step.storage >= 0:
            there.discard(step.storage)
            continue
        made = {output.tensor for output in calls[step.op].outputs}
        there |= made & stays
        if step.live == plan.peak:
            touched = made | {program.storages[tensor] for tensor in calls[step.op].inputs}
            return sum(program.sizes[storage] for storage in there - touched)
    return 0


def program_of(make: Callable[[], tuple[nn.Module, Inputs]]) -> tuple[Program, Options]:
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


def rows_of(name: str, program: Program) -> Iterator[tuple[str, float, float, float, float, int]]:
    options = Options(cache=False)
    both, alone = (Planner(each, options) for each in (program, replace(program, tier=None)))
    for share in SHARES:
        budget = program.constants + int(share * (program.peak - program.constants))
        plans = [
            alone.search(budget, alone.program, lambda: alone.smallest),
            moving_alone(program, budget),
            both.search(budget, both.program, lambda: alone.smallest),
        ]
        computed, moved, together = (
            math.inf if plan is None else plan.extra / program.cost for plan in plans
        )
        yield name, share, computed, moved, together, plans[-1].outside if plans[-1] else 0


def steps(names: Sequence[str]) -> Iterator[dict[str, object]]:
    """Training steps on this machine, at shares of the activations: peaks, times in turns, gradients."""
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            expected = Trained(name, None, None)
            [whole] = Trained(name, 1.0, None).reports
            activations = whole.baseline_peak - whole.constants
            budgets = [whole.constants + int(share * activations) for share in (0.4, 0.2)]
            trained = [
                expected,
                *(Trained(name, budget, offload) for budget in budgets for offload in (None, folder)),
            ]
            for _ in range(ROUNDS):
                for each in trained:
                    each.take_step()
            for each in trained:
                yield {"model": name, **each.row(expected), "left": len(list(Path(folder).iterdir()))}


class Trained:
    """A model of the zoo under a budget in bytes, with the folder that values may move to, or as it is."""

    def __init__(self, name: str, budget: float | None, offload: str | None) -> None:
        torch.manual_seed(0)
        model, inputs = zoo.MODELS[name]()
        self.model, self.inputs, self.seconds = model, inputs, list[float]()
        self.reports: list[dtr_fx.Report] = []
        options = {"budget": budget, "offload": offload, "cache": False, "on_report": self.reports.append}
        plain = {"backend": "aot_eager"}
        self.offload = offload
        self.compiled = torch.compile(
            model, **(plain if budget is None else {"backend": "dtr", "options": options})
        )
        self.take_step()
        gradients = (parameter.grad for parameter in model.parameters())
        self.gradients = [gradient.clone() for gradient in gradients if gradient is not None]
        self.seconds.clear()
        self.peak = dtr_fx.measure_peak(self.take_step)

    def take_step(self) -> None:
        self.model.zero_grad(set_to_none=True)
        torch.manual_seed(1)
        started = time.perf_counter()
        self.compiled(*self.inputs).backward()
        self.seconds.append(time.perf_counter() - started)

    def row(self, expected: Trained) -> dict[str, object]:
        found: dict[str, object] = {
            "peak": format_bytes(self.peak),
            "fastest": f"{min(self.seconds) * 1e3:.0f} ms",
            "median": f"{statistics.median(self.seconds) * 1e3:.0f} ms",
        }
        if not self.reports:
            return found
        [report] = self.reports
        return {
            "budget": format_bytes(report.budget - report.constants),
            "place": self.offload or "",
            **found,
            "within": self.peak + report.constants <= report.budget,
            "moved": format_bytes(report.outside_peak),
            "extra": f"{report.overhead:.1%}",
            "equal": all(map(torch.equal, self.gradients, expected.gradients)),
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--logs", type=Path, metavar="FOLDER", help="operator logs, whose costs are their own"
    )
    parser.add_argument("--steps", action="store_true", help="steps for real, with a file")
    parser.add_argument("--smallest", action="store_true", help="smallest budgets, small models")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="some of the models")
    arguments = parser.parse_args()
    if arguments.steps:
        print(tabulate(list(steps(arguments.only or ("mlp", "gpt"))), headers="keys"))
        return
    if arguments.smallest:
        print(tabulate(list(smallest(arguments.only or list(SMALL))), headers="keys"))
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
