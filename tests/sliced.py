"""How far slices lower the smallest budget, and what they cost.

    python tests/sliced.py            # plans: language models of large vocabularies, a U-Net, a ResNet
    python tests/sliced.py --steps    # one of them for real, beside the loss in chunks and PyTorch's own
    python tests/sliced.py --budgets  # models of the README between their smallest budgets and their peaks
    python tests/sliced.py --curves   # the losses of 200 steps
    python tests/sliced.py --graphs 0:2000    # goes on where it stopped

The language models are those of transformers, of 4 layers, for 2 × 1,024 tokens.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
import timeit
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tabulate import tabulate
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import dtr_fx
from dtr_fx import InfeasibleBudgetError, Report, measure_peak
from dtr_fx.lab import baselines
from dtr_fx.lab.zoo import MODELS
from dtr_fx.passes.verify import verify
from dtr_fx.planning.alternatives import Alternatives
from dtr_fx.planning.options import Options
from dtr_fx.planning.planning import Planning
from dtr_fx.torch_private import FakeTensorMode
from dtr_fx.units import format_bytes, format_percent

WORDS = (50_257, 128_256)
README = ("mlp", "gpt", "lstm", "unet", "unet_bn", "resnet50_32")
_HOW = ("off", "exact", "summed")


class LanguageModel(nn.Module):
    """A body of transformers, with a head and the loss of the next word."""

    def __init__(self, kind: str, words: int, width: int) -> None:
        super().__init__()
        import transformers

        heads = width // 64
        if kind == "gpt2":
            options = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
            sizes = {"vocab_size": words, "n_embd": width, "n_layer": 4, "n_head": heads}
            given = transformers.GPT2Config(**sizes, use_cache=False, **options)
            self.body: nn.Module = transformers.GPT2Model(given)
        else:
            sizes = {"vocab_size": words, "hidden_size": width, "intermediate_size": 3 * width}
            sizes |= {"num_hidden_layers": 4, "num_attention_heads": heads}
            self.body = transformers.LlamaModel(transformers.LlamaConfig(**sizes, use_cache=False))
        self.head = nn.Linear(width, words, bias=False)

    def hidden(self, x: Tensor) -> tuple[Tensor, Tensor]:
        hidden: Tensor = self.body(x).last_hidden_state
        return hidden.flatten(0, 1), F.pad(x[:, 1:], (0, 1), value=-100).flatten()

    def forward(self, x: Tensor) -> Tensor:
        hidden, target = self.hidden(x)
        return F.cross_entropy(self.head(hidden), target)


class InChunks(LanguageModel):
    """The same with a loss in 16 checkpointed chunks, as one writes it by hand."""

    def forward(self, x: Tensor) -> Tensor:
        hidden, target = self.hidden(x)
        pairs = zip(hidden.chunk(16), target.chunk(16))
        total = sum(checkpoint(self._loss, *pair, use_reentrant=False) for pair in pairs)
        return total / (target != -100).sum()

    def _loss(self, hidden: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(self.head(hidden), target, reduction="sum")


class Fused(LanguageModel):
    """The same with PyTorch's own loss of a linear map, in chunks, which is of torch 2.13 and newer."""

    def forward(self, x: Tensor) -> Tensor:
        hidden, target = self.hidden(x)
        options = nn.LinearCrossEntropyOptions()
        return F.linear_cross_entropy(hidden, self.head.weight, target, options=options)


def language_model(kind: str, words: int, width: int = 512) -> tuple[nn.Module, tuple[Tensor]]:
    return LanguageModel(kind, words, width), (torch.randint(words, (2, 1024)),)


PLANNED: dict[str, Callable[[], Any]] = {
    **{
        f"{kind} {words}": partial(language_model, kind, words)
        for kind in ("gpt2", "llama")
        for words in WORDS
    },
    **{name: MODELS[name] for name in ("unet", "unet_bn", "resnet50_32")},
}


def plans() -> Iterator[dict[str, str]]:
    """A row for each model and value of the option ``slices``."""
    for name, make in PLANNED.items():
        with FakeTensorMode(allow_non_fake_inputs=True):
            joint = baselines.trace(*make())
        today = 0
        for how in _HOW:
            print(f"{name}, {how}", file=sys.stderr)
            begun = time.process_time()
            whole = Planning(joint.graph, Options(slices=how, cache=False))
            alternatives = Alternatives(whole)
            planning, least, plan = alternatives.least_memory()
            today = today or least
            at_today, _, then = alternatives.plan_at(today)
            yield {
                "model": name,
                "slices": how,
                "smallest": format_bytes(least),
                "of today's": format_percent(least / today),
                "extra there": format_percent(planning.overhead(plan)),
                "extra at today's": format_percent(at_today.overhead(then)),
                "seconds of CPU": f"{time.process_time() - begun:.1f}",
            }


def steps(words: int, width: int) -> Iterator[dict[str, str]]:
    """Measured peaks and times of one step of a GPT-2, and gradients against eager's."""
    torch.manual_seed(0)
    model, (x,) = language_model("gpt2", words, width)
    held = sum(tensor.nbytes for tensor in (*model.parameters(), x))
    rivals = {"eager": model, "in chunks": InChunks("gpt2", words, width)}
    rivals["in chunks, blocks checkpointed"] = InChunks("gpt2", words, width)
    rivals["in chunks, blocks checkpointed"].body.gradient_checkpointing_enable({"use_reentrant": False})
    if hasattr(F, "linear_cross_entropy"):
        rivals["linear_cross_entropy"] = Fused("gpt2", words, width)
    ways: dict[str, tuple[nn.Module, Any]] = {}
    for name, rival in rivals.items():
        rival.load_state_dict(model.state_dict())
        ways[name] = rival, rival
    ways["Inductor"] = model, torch.compile(model)
    for executor, how in (*(("eager", how) for how in _HOW), ("inductor", "summed")):
        planned = copy.deepcopy(model)
        options = {"slices": how, "executor": executor, "cache": False}
        # At the smallest budget what Inductor makes of a plan may be above it.
        budget = int((1.1 if executor == "inductor" else 1) * _smallest(planned, options, x))
        forward = torch.compile(planned, backend="dtr", options={"budget": budget, **options})
        ways[f"dtr, {executor}, {how}, {format_bytes(budget)}"] = planned, forward
    expected: list[Tensor] = []
    rows: dict[str, dict[str, str]] = {}
    for name, (owner, forward) in ways.items():
        print(name, file=sys.stderr)
        run = partial(_step, owner, forward, x)
        run()
        found = [each.grad.clone() for each in owner.parameters() if each.grad is not None]
        expected = expected or found
        owner.zero_grad()
        peak = held + measure_peak(run)
        rows[name] = {
            "": name,
            "peak": format_bytes(peak),
            "largest difference to eager": f"{_difference(found, expected):.1e}",
        }
    # In turns: another may use the machine meanwhile.
    runs = [partial(_step, *way, x) for way in ways.values()]
    rounds = [[timeit.timeit(run, number=1) for run in runs] for _ in range(5)]
    for row, seconds in zip(rows.values(), map(min, zip(*rounds))):
        yield {**row, "fastest of five steps": f"{seconds:.2f} s"}


def _smallest(model: nn.Module, options: dict[str, Any], *given: Tensor) -> int:
    torch.compiler.reset()
    try:
        torch.compile(model, backend="dtr", options={"budget": "1%", **options})(*given)
    except InfeasibleBudgetError as error:
        return error.smallest
    raise AssertionError("a step in 1% of its memory")


def _step(model: nn.Module, forward: Callable[[Tensor], Tensor], x: Tensor) -> None:
    model.zero_grad()
    forward(x).backward()


def _difference(found: list[Tensor], expected: list[Tensor]) -> float:
    pairs = zip(found, expected)
    return max(float((one - other).abs().max() / other.abs().max().clamp_min(1e-30)) for one, other in pairs)


def budgets(names: Sequence[str], count: int = 5) -> Iterator[dict[str, str]]:
    """Loss, gradients and buffers of a step at some budgets, against the graph as it is."""
    for name in names:
        torch.manual_seed(0)
        model, given = MODELS[name]()
        peak, _, expected = _outcome(model, given, {"budget": "100%", "slices": "off"})
        for how in _HOW[1:]:
            print(f"{name}, {how}", file=sys.stderr)
            options = {"slices": how, "cache": False, "plan_seconds": 0.1}
            least = _smallest(copy.deepcopy(model), options, *given)
            steps = [least + number * (peak - least) // (count - 1) for number in range(count)]
            found = [_outcome(model, given, {"budget": budget, **options}) for budget in steps]
            yield {
                "model": name,
                "slices": how,
                "smallest": f"{format_bytes(least)} of {format_bytes(peak)}",
                "in slices": f"{sum(sliced > 0 for _, sliced, _ in found)} of {count}",
                "over budget": str(sum(taken > budget for budget, (taken, _, _) in zip(steps, found))),
                "largest difference": f"{max(_difference(left, expected) for _, _, left in found):.1e}",
            }


def _outcome(
    model: nn.Module, given: tuple[Tensor, ...], options: dict[str, Any]
) -> tuple[int, int, list[Tensor]]:
    """The measured peak, the number of regions, and what a step leaves behind."""
    torch.compiler.reset()
    reports: list[Report] = []
    owner, left = copy.deepcopy(model), list[Tensor]()
    forward = torch.compile(owner, backend="dtr", options={**options, "on_report": reports.append})

    def run() -> None:
        torch.manual_seed(1)
        owner.zero_grad()
        loss = forward(*given)
        loss.backward()
        left[:] = [loss.detach()]

    run()
    left += [tensor.clone() for tensor in (*(each.grad for each in owner.parameters()), *owner.buffers())]
    result = [*left]
    owner.zero_grad()
    held = sum(tensor.nbytes for tensor in (*owner.parameters(), *owner.buffers(), *given))
    return held + measure_peak(run), len(reports[-1].slices), result


def curves(count: int = 200) -> Iterator[dict[str, str]]:
    """The losses of training a small model for so many steps, with and without slices."""
    losses: dict[str, list[float]] = {}
    reports: dict[str, Report] = {}
    for how in _HOW:
        torch.manual_seed(0)
        model = LanguageModel("gpt2", 2048, 64)
        data = [torch.randint(2048, (4, 128)) for _ in range(4)]
        options: dict[str, Any] = {"slices": how, "executor": "eager", "cache": False}
        budget: Any = "100%" if how == "off" else _smallest(model, options, data[0])
        options["on_report"] = partial(reports.__setitem__, how)
        torch.compiler.reset()
        forward = torch.compile(model, backend="dtr", options={"budget": budget, **options})
        optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
        losses[how] = []
        for number in range(count):
            loss = forward(data[number % len(data)])
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses[how].append(float(loss.detach()))
    for how, found in losses.items():
        pairs = list(zip(found, losses["off"]))
        largest = max(abs(one - other) / other for one, other in pairs)
        yield {
            "slices": how,
            "peak": format_bytes(reports[how].planned_peak),
            "regions": str(len(reports[how].slices)),
            "last loss": f"{found[-1]:.6f}",
            "largest difference": f"{largest:.1e}",
        }


def graphs(seeds: range, path: Path) -> Iterator[dict[str, str]]:
    """Random layers before a wide one, at the smallest budget of each kind: verified, measured, compared.

    Beside the largest difference to the whole are those of both to the same graph in double precision.
    What is in the log is not run again.
    """
    lines = path.read_text().splitlines() if path.exists() else []
    done = {record["case"]: record for record in map(json.loads, lines)}
    for how in ("summed", "exact"):
        with path.open("a") as log:
            for case, seed in ((f"{seed} {how}", seed) for seed in seeds):
                if case not in done:
                    done[case] = {"case": case, **_checked(seed, how)}
                    print(json.dumps(done[case]), file=log, flush=True)
                    print(f"\r{case}", end="", file=sys.stderr)
        found = [done[f"{seed} {how}"] for seed in seeds]
        yield {
            "slices": how,
            "graphs": str(len(found)),
            "in slices": str(sum(each["sliced"] for each in found)),
            "over budget": str(sum(each["over"] > 0 for each in found)),
            "above 1e-5": str(sum(each["slices to whole"] > 1e-5 for each in found)),
            **{
                name: f"{max(each[name] for each in found):.1e}"
                for name in ("slices to whole", "slices to double", "whole to double")
            },
        }


def _checked(seed: int, how: Any) -> dict[str, Any]:
    from torch._functorch.aot_autograd import aot_export_joint_simple

    torch.manual_seed(seed)
    loss, given = _random_loss(seed)
    gm = aot_export_joint_simple(loss, tuple(given), trace_joint=True)
    options: dict[str, Any] = {"slices": how, "cache": False, "plan_seconds": 0.02}
    budget = dtr_fx.smallest_budget(gm, options=options)
    rewritten, report = dtr_fx.transform(gm, budget, slices=how, plan_seconds=0.02)
    verify(rewritten)
    runs = [partial(_run, each, given) for each in (gm, rewritten)]
    whole, found = (run() for run in runs)
    exact = _run(gm, [each.double() if each.is_floating_point() else each for each in given])
    read = [node.users for node in gm.graph.find_nodes(op="placeholder")]
    held = sum(tensor.nbytes for tensor, users in zip(given, read) if users)
    return {
        "sliced": len(report.slices),
        "over": held + measure_peak(runs[1]) - budget,
        "slices to whole": _difference(found, whole),
        "slices to double": _difference(found, exact),
        "whole to double": _difference(whole, exact),
    }


def _run(gm: torch.fx.GraphModule, given: list[Tensor]) -> list[Tensor]:
    with torch.no_grad():
        made = gm(given, [torch.ones((), dtype=given[0].dtype)])
    return [leaf for leaf in torch.utils._pytree.tree_leaves(made) if isinstance(leaf, Tensor)]


def _random_loss(seed: int) -> tuple[Callable[..., tuple[Tensor]], list[Tensor]]:
    """Some layers, a wide one, and one of several losses; images or rows."""
    draw = torch.Generator().manual_seed(seed)

    def pick(*choices: Any) -> Any:
        return choices[int(torch.randint(len(choices), (), generator=draw))]

    rows, width, wide, depth = pick(8, 12, 32, 64), pick(4, 8, 16), pick(32, 100, 256), pick(1, 2, 3)
    norm = partial(F.layer_norm, normalized_shape=(width,))
    between = [pick(F.gelu, torch.tanh, F.relu, torch.sigmoid, norm) for _ in range(depth)]
    of_images, of_loss = pick(True, False), pick("words", "squares", "softmax")

    def loss(x: Tensor, target: Tensor, head: Tensor, *weights: Tensor) -> tuple[Tensor]:
        for function, weight in zip(between, weights):
            if of_images:
                x = torch.relu(F.conv2d(x, weight, padding=1))
            else:
                x = x + function(x @ weight)
        if of_images:
            x = x.mean((2, 3))
        made = x @ head
        if of_loss == "words":
            return (F.cross_entropy(made, target),)
        return ((made if of_loss == "squares" else made.softmax(1)).square().sum(),)

    x = torch.randn(rows, width, 6, 6) if of_images else torch.randn(rows, width)
    shape = (width, width, 3, 3) if of_images else (width, width)
    weights = [torch.randn(shape) / 3 for _ in range(depth)]
    target = torch.randint(wide, (rows,))
    return loss, [x, target, *(weight.requires_grad_() for weight in (torch.randn(width, wide), *weights))]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", action="store_true")
    parser.add_argument("--words", type=int, default=WORDS[0], help="of --steps")
    parser.add_argument("--width", type=int, default=256, help="of --steps")
    parser.add_argument("--budgets", nargs="*", metavar="MODEL", help="without: those of the README")
    parser.add_argument("--curves", action="store_true")
    parser.add_argument("--graphs", metavar="A:B", help="seeds")
    parser.add_argument("--log", type=Path, default=Path("sliced.jsonl"), help="of --graphs")
    given = parser.parse_args()
    if given.graphs:
        rows = graphs(range(*map(int, given.graphs.split(":"))), given.log)
    elif given.budgets is not None:
        rows = budgets(given.budgets or README)
    elif given.curves:
        rows = curves()
    else:
        rows = steps(given.words, given.width) if given.steps else plans()
    found = []
    for row in rows:
        found.append(row)
        print(tabulate(found, headers="keys", tablefmt="github"), flush=True)


if __name__ == "__main__":
    main()
