"""Plans against other ways to checkpoint, at each one's own peak, on networks that nobody here wrote.

Of transformers, timm (each left out where it is not installed) and ``torch.nn``, with random weights and fake
tensors.  A rival is judged by ``dtr_fx.judge``, and so is the plan for a budget of its peak, in the same run:
``torch.utils.checkpoint`` around every block, segments of √n operators, Revolve, PyTorch's partitioner.

    python tests/rivals.py                        # all, a row for each rival
    python tests/rivals.py gpt2 lstm_64 --plan-seconds 2
"""

from __future__ import annotations

import argparse
import importlib.util
import math
import statistics
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from deep import LSTM
from torch import Tensor, nn

from dtr_fx import judge
from dtr_fx.errors import DTRError, InfeasibleBudgetError
from dtr_fx.inspect.table import table
from dtr_fx.lab import baselines, zoo
from dtr_fx.lab.planners import OperatorGraph
from dtr_fx.lab.planners.checkpointing import revolve_order
from dtr_fx.lab.zoo.layers import Model
from dtr_fx.passes.drops import LowerDrops
from dtr_fx.passes.split import split
from dtr_fx.planning.judge import Judgement
from dtr_fx.planning.options import Options
from dtr_fx.planning.planning import Planning, copy_of
from dtr_fx.planning.rewrite import Laps, carry_out
from dtr_fx.runtime import Program
from dtr_fx.search import execute_order
from dtr_fx.torch_private import FakeTensorMode
from dtr_fx.units import format_percent

# How many snapshots Revolve has, as powers of the number of forward operators.
_SNAPSHOTS = (0.5, 1 / 3)
_SETTINGS = (0.9, 0.7, 0.5, 0.3, 0.1)


class Labelled(nn.Module):
    """The loss of a model that computes it itself."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model = model
        self.names = names

    def forward(self, *inputs: Tensor) -> Tensor:
        loss: Tensor = self.model(**dict(zip(self.names, inputs, strict=True)), use_cache=False).loss
        return loss


class Classifier(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        return nn.functional.cross_entropy(self.model(images), labels)


def _causal(name: str, **settings: Any) -> Model:
    import transformers

    config = getattr(transformers, f"{name}Config")(vocab_size=1000, **settings)
    kind = {"GPT2": "GPT2LMHeadModel"}.get(name, f"{name}ForCausalLM")
    model = getattr(transformers, kind)(config).train()
    model.loss_type = "ForCausalLM"  # GPT-2 logs that it has none, and that breaks the graph
    ids = torch.randint(1000, (4, 128))
    return Labelled(model, ("input_ids", "labels")), (ids, ids)


def gpt2() -> Model:
    return _causal("GPT2", n_layer=6, n_embd=128, n_head=4)


def llama() -> Model:
    sizes = {"hidden_size": 128, "intermediate_size": 344, "num_attention_heads": 4}
    return _causal("Llama", num_hidden_layers=6, **sizes)


def mamba() -> Model:
    import transformers

    config = transformers.MambaConfig(vocab_size=1000, hidden_size=64, num_hidden_layers=4, state_size=8)
    ids = torch.randint(1000, (2, 32))
    return Labelled(transformers.MambaForCausalLM(config).train(), ("input_ids", "labels")), (ids, ids)


def t5() -> Model:
    import transformers

    sizes = {"d_model": 128, "d_ff": 256, "num_layers": 4, "num_heads": 4, "d_kv": 32}
    config = transformers.T5Config(vocab_size=1000, decoder_start_token_id=0, **sizes)
    model = transformers.T5ForConditionalGeneration(config).train()
    ids = torch.randint(1000, (4, 96))
    return Labelled(model, ("input_ids", "labels")), (ids, ids[:, :64].contiguous())


def whisper() -> Model:
    import transformers

    config = transformers.WhisperConfig(
        vocab_size=1000,
        d_model=128,
        encoder_layers=4,
        decoder_layers=4,
        max_source_positions=100,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=512,
        decoder_ffn_dim=512,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        decoder_start_token_id=1,
    )
    model = transformers.WhisperForConditionalGeneration(config).train()
    given = torch.randn(4, 80, 200), torch.randint(3, 1000, (4, 64))
    return Labelled(model, ("input_features", "labels")), given


def _timm(name: str, size: int, **settings: Any) -> Model:
    import timm

    model = timm.create_model(name, num_classes=100, **settings).train()
    return Classifier(model), (torch.randn(4, 3, size, size), torch.randint(100, (4,)))


def convnext() -> Model:
    return _timm("convnext_atto", 96)


def swin() -> Model:
    return _timm("swin_tiny_patch4_window7_224", 112, img_size=112, embed_dim=48)


def efficientnet() -> Model:
    return _timm("efficientnet_b0", 96)


class Recurrent(nn.Module):
    """A module of ``torch.nn`` over a sequence; the loss is of the last output."""

    def __init__(self, layers: nn.Module) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, sequence: Tensor, target: Tensor) -> Tensor:
        outputs, _ = self.layers(sequence)
        return nn.functional.mse_loss(outputs[-1], target)


def _recurrent(layers: nn.Module, steps: int) -> Model:
    return Recurrent(layers), (torch.randn(steps, 32, 64), torch.randn(32, 128))


def gru() -> Model:
    return _recurrent(nn.GRU(64, 128), 24)


def lstm_2() -> Model:
    return _recurrent(nn.LSTM(64, 128, num_layers=2), 16)


def rnn_200() -> Model:
    return _recurrent(nn.RNN(64, 128), 200)


def lstm_64() -> Model:
    return LSTM(256, 512), (torch.randn(64, 64, 256), torch.randn(64, 512))


def lstm_48() -> Model:
    return LSTM(256, 512), (torch.randn(48, 64, 256), torch.randn(64, 512))


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.linear = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + nn.functional.gelu(self.linear(self.norm(x)))


def mlp_100() -> Model:
    layers = nn.Sequential(*(Residual(64) for _ in range(100)), nn.Linear(64, 10))
    return Classifier(layers), (torch.randn(512, 64), torch.randint(10, (512,)))


MODELS: dict[str, tuple[str, Callable[[], Model]]] = {
    **{make.__name__: ("transformers", make) for make in (gpt2, llama, t5, mamba, whisper)},
    **{make.__name__: ("timm", make) for make in (convnext, swin, efficientnet)},
    **{make.__name__: ("torch", make) for make in (gru, lstm_2, lstm_48, lstm_64, rnn_200, mlp_100)},
    "treelstm": ("torch", lambda: zoo.treelstm(leaves=16, batch=64)),
}


class Row(NamedTuple):
    """A rival, and our plan in its peak: ``peak`` is a share of eager's, the others are of eager's compute.

    ``least`` is the report's bound, by the report's costs: what the split leaves out is in it.
    """

    model: str
    rival: str
    peak: float
    theirs: float
    ours: float
    least: float

    @property
    def is_above(self) -> bool:
        return self.ours > self.theirs + 5e-4

    @property
    def ratio(self) -> float:
        return self.ours / self.theirs if self.theirs > 5e-4 else math.nan


def compare(name: str, make: Callable[[], Model], seconds: float | None) -> Iterator[Row]:
    model, inputs = make()
    with FakeTensorMode(allow_non_fake_inputs=True):
        joint = baselines.trace(model, inputs)
        eager = judge(*baselines.eager(joint))
        rivals = dict(_rivals(model, inputs, joint))
    found: dict[int, Row] = {}
    for rival, judged in rivals.items():
        if judged.peak >= eager.peak:
            continue
        if judged.peak not in found:
            options = Options(budget=judged.peak, plan_seconds=seconds, cache=False, slices="off")
            ours, least = math.inf, 0.0
            try:
                pair, report = baselines.planned(joint, options)
                ours = judge(*pair).overhead(eager)
                # Of the graph that is planned, in which what is computed twice in a pass is merged.
                least = report.base_cost * (1 + (report.least_overhead or 0.0)) / eager.cost - 1
            except InfeasibleBudgetError:
                pass
            found[judged.peak] = Row(name, rival, judged.peak / eager.peak, 0.0, ours, least)
        yield found[judged.peak]._replace(rival=rival, theirs=judged.overhead(eager))


def _rivals(model: nn.Module, inputs: Any, joint: baselines.Joint) -> Iterator[tuple[str, Judgement]]:
    if baselines.blocks_of(model):
        try:
            yield "per block", judge(*baselines.checkpointed(model, inputs))
        except DTRError as error:
            print(f"no checkpoints: {str(error).splitlines()[0]}", flush=True)
    planning = Planning(copy_of(joint.planned), Options(cache=False))
    program = planning.graph.program
    assert program.backward is not None
    yield "√n", _carried_out(joint, _by_sqrt(program))
    for power in _SNAPSHOTS:
        snapshots = round(program.backward**power)
        yield f"Revolve, {snapshots}", _carried_out(joint, _by_revolve(program, snapshots))
    for setting in _SETTINGS:
        yield f"min-cut {setting:.1f}", judge(*baselines.min_cut(joint, setting))


def _by_sqrt(program: Program) -> list[int]:
    assert program.backward is not None
    again = baselines.in_segments(program, program.backward)
    return baselines.rerun(program, range(sum(1 for _ in program.calls())), again)


def _by_revolve(program: Program, snapshots: int) -> list[int]:
    """Revolve's order of the program's calls: views run with what they are of."""
    calls, storages = list(program.calls()), program.storages
    graph = OperatorGraph.of(program)
    kept = {storages[tensor] for tensors in program.kept_after.values() for tensor in tensors}
    call_of: list[int | None] = []  # of each of the graph's operators, none for what returns results alone
    for number, call in enumerate(calls):
        fresh = [output for output in call.outputs if output.alias is None]
        if fresh or not call.outputs:
            call_of.append(number)
            is_mixed = len({output.tensor in kept for output in fresh}) == 2
            call_of += [None] * is_mixed
    assert len(call_of) == len(graph)
    order: list[int] = []
    reached = 0
    for op in revolve_order(graph, snapshots):
        number = call_of[op]
        if number is None:
            continue
        if number >= reached:
            order += range(reached, number + 1)
            reached = number + 1
        elif calls[number].recomputable:
            order.append(number)
    return [*order, *range(reached, len(calls))]


def _carried_out(joint: baselines.Joint, order: list[int]) -> Judgement:
    graph = copy_of(joint.planned)
    planning = Planning(graph, Options(cache=False))
    plan = execute_order(planning.graph.program, order)
    carry_out(graph, planning, plan.peak, plan, Laps())
    LowerDrops().call(graph)
    return judge(*split(graph, joint.inputs, **joint.facts))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="*", default=list(MODELS), metavar="MODEL", help=", ".join(MODELS))
    parser.add_argument("--plan-seconds", type=float)
    arguments = parser.parse_args()
    rows: list[Row] = []
    for name in arguments.models:
        library, make = MODELS[name]
        if importlib.util.find_spec(library) is None:
            print(f"{name}: {library} is not installed", flush=True)
            continue
        torch.manual_seed(0)
        for row in compare(name, make, arguments.plan_seconds):
            rows.append(row)
            shares = map(format_percent, (row.peak, row.theirs, row.ours, row.least))
            print(name, row.rival, *shares, "ABOVE" if row.is_above else "", sep="  ", flush=True)
    print(_summary(rows))


def _summary(rows: list[Row]) -> str:
    kinds = dict.fromkeys(row.rival.split()[0].rstrip(",") for row in rows)
    found = []
    for kind in kinds:
        its = [row for row in rows if row.rival.split()[0].rstrip(",") == kind]
        ratios = [row.ratio for row in its if math.isfinite(row.ratio)]
        found.append(
            {
                "rival": kind,
                "peaks": str(len(its)),
                "above": str(sum(row.is_above for row in its)),
                "× on average": f"{statistics.mean(ratios):.3f}" if ratios else "",
                "at worst": f"{max(ratios):.3f}" if ratios else "",
            }
        )
    return table(found)


if __name__ == "__main__":
    main()
