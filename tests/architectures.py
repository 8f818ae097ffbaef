"""Small configurations of the architectures of transformers: peaks of a step under dtr, beside eager's.

    python tests/architectures.py                      # the table of RESULTS.md, in half an hour
    python tests/architectures.py --budget 60% bert    # one model, under a budget

Weights are random, most models compute their own loss from labels.  The peak is the allocator's, with
parameters, buffers and the batch.  Losses, gradients and buffers of three steps are held against those of
eager, or else of ``aot_eager``.
"""

from __future__ import annotations

import argparse
import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

if __name__ == "__main__":
    os.environ |= {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}

import numpy as np
import torch
import transformers
from torch import Tensor, nn

import dtr_fx
from dtr_fx.units import format_bytes

BATCH, LENGTH, VOCAB = 4, 128, 200
STEPS = 3

Batch = dict[str, Any]
Make = Callable[[], "tuple[nn.Module, Batch]"]

_SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4}
_GROUPED = {**_SMALL, "num_key_value_heads": 2}
_HEADS = {**_GROUPED, "head_dim": 16}
_GPT = {"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 3}
_CODER = {
    f"{part}_{name}": value
    for part in ("encoder", "decoder")
    for name, value in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 128))
}
_TEXT = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}


def _model(family: str, head: str, part: str = "", **settings: Any) -> nn.Module:
    config = getattr(transformers, f"{family}{part}Config")(**settings)
    model: nn.Module = getattr(transformers, f"{family}{head}")(config)
    return model


def _ids() -> Tensor:
    return torch.randint(3, VOCAB, (BATCH, LENGTH))


def _pixels(size: int) -> Tensor:
    return torch.randn(BATCH, 3, size, size)


def text(family: str, head: str = "ForCausalLM", part: str = "", **settings: Any) -> Make:
    def make() -> tuple[nn.Module, Batch]:
        ids = _ids()
        return _model(family, head, part, vocab_size=VOCAB, **settings), {"input_ids": ids, "labels": ids}

    return make


def images(family: str, size: int, **settings: Any) -> Make:
    def make() -> tuple[nn.Module, Batch]:
        model = _model(family, "ForImageClassification", num_labels=5, **settings)
        return model, {"pixel_values": _pixels(size), "labels": torch.randint(5, (BATCH,))}

    return make


def t5() -> tuple[nn.Module, Batch]:
    sizes = {"d_model": 64, "d_ff": 128, "num_layers": 2, "num_heads": 4, "d_kv": 16}
    tokens = {"vocab_size": VOCAB, "decoder_start_token_id": 0, "pad_token_id": 0}
    batch = {"input_ids": _ids(), "labels": _ids()[:, :20].contiguous()}
    return _model("T5", "ForConditionalGeneration", **sizes, **tokens), batch


def whisper() -> tuple[nn.Module, Batch]:
    tokens = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    sizes = {"vocab_size": VOCAB, "d_model": 64, "max_source_positions": 50}
    model = _model("Whisper", "ForConditionalGeneration", **sizes, **tokens, **_CODER)
    return model, {"input_features": torch.randn(BATCH, 80, 100), "labels": _ids()}


def wav2vec2() -> tuple[nn.Module, Batch]:
    convolutions = {"num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4, "conv_dim": (32,) * 7}
    model = _model("Wav2Vec2", "ForCTC", vocab_size=32, **_TEXT, **convolutions)
    return model, {"input_values": torch.randn(BATCH, 8000), "labels": torch.randint(1, 32, (BATCH, 8))}


def segformer() -> tuple[nn.Module, Batch]:
    sizes = {"hidden_sizes": [16, 32, 40, 64], "decoder_hidden_size": 32}
    model = _model("Segformer", "ForSemanticSegmentation", num_labels=5, **sizes)
    return model, {"pixel_values": _pixels(64), "labels": torch.randint(5, (BATCH, 64, 64))}


def clip() -> tuple[nn.Module, Batch]:
    words = {"max_position_embeddings": 200, "vocab_size": VOCAB, **_TEXT}
    vision = {"image_size": 32, "patch_size": 8, **_TEXT}
    model = _model("CLIP", "Model", text_config=words, vision_config=vision, projection_dim=32)
    return model, {"input_ids": _ids(), "pixel_values": _pixels(32), "return_loss": True}


MODELS: dict[str, Make] = {
    "bert": text("Bert", "ForMaskedLM", **_SMALL),
    "roberta": text("Roberta", "ForMaskedLM", **_SMALL),
    "albert": text("Albert", "ForMaskedLM", **_SMALL, embedding_size=32),
    "deberta": text("DebertaV2", "ForMaskedLM", **_SMALL),
    "electra": text("Electra", "ForMaskedLM", **_SMALL, embedding_size=32),
    "distilbert": text("DistilBert", "ForMaskedLM", dim=64, hidden_dim=128, n_layers=3, n_heads=4),
    "gpt2": text("GPT2", "LMHeadModel", n_embd=64, n_layer=3, n_head=4),
    "gpt_neo": text(
        "GPTNeo",
        hidden_size=64,
        num_layers=2,
        num_heads=4,
        attention_types=[[["global", "local"], 1]],
        window_size=16,
    ),
    "gpt_neox": text("GPTNeoX", **_SMALL),
    "opt": text("OPT", **_GPT, ffn_dim=128, word_embed_proj_dim=64),
    "bloom": text("Bloom", hidden_size=64, n_layer=3, n_head=4),
    "falcon": text("Falcon", **_GPT),
    "llama": text("Llama", **_GROUPED),
    "mistral": text("Mistral", **_GROUPED, sliding_window=16),
    "qwen3": text("Qwen3", **_HEADS),
    "gemma2": text("Gemma2", **_HEADS, sliding_window=16),
    "gemma3": text("Gemma3", part="Text", **_HEADS, sliding_window=16),
    "phi3": text("Phi3", **_SMALL, pad_token_id=0),
    "mixtral": text("Mixtral", **_GROUPED, num_local_experts=4),
    "qwen3_moe": text("Qwen3Moe", **_HEADS, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=64),
    "mamba": text("Mamba", hidden_size=32, num_hidden_layers=2, state_size=8),
    "mamba, no scan": text(
        "Mamba", hidden_size=32, num_hidden_layers=2, state_size=8, use_associative_scan=False
    ),
    "mamba2": text(
        "Mamba2",
        hidden_size=32,
        num_hidden_layers=2,
        state_size=8,
        num_heads=4,
        head_dim=16,
        n_groups=1,
        chunk_size=16,
    ),
    "t5": t5,
    "bart": text("Bart", "ForConditionalGeneration", d_model=64, **_CODER),
    "whisper": whisper,
    "wav2vec2": wav2vec2,
    "vit": images("ViT", 32, **_SMALL, image_size=32, patch_size=8),
    "swin": images(
        "Swin", 64, image_size=64, patch_size=4, embed_dim=24, depths=[2, 2], num_heads=[2, 4], window_size=4
    ),
    "convnext": images("ConvNext", 64, hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 2, 1]),
    "resnet": images("ResNet", 64, embedding_size=16, hidden_sizes=[32, 64, 96, 128], depths=[1, 1, 1, 1]),
    "segformer": segformer,
    "clip": clip,
}


@dataclass
class Run:
    """What three steps left behind, and the peak of a fourth with what the model holds."""

    peak: int
    results: list[list[Tensor | None]] = field(default_factory=list)
    reports: list[dtr_fx.Report] = field(default_factory=list)

    def equals(self, other: Run) -> bool:
        return all(map(_all_same, self.results, other.results))


def _all_same(one: list[Tensor | None], other: list[Tensor | None]) -> bool:
    return all(
        a is b is None or (a is not None and b is not None and torch.equal(a, b)) for a, b in zip(one, other)
    )


def train(model: nn.Module, batch: Batch, backend: str | None, options: dict[str, Any] | None) -> Run:
    torch._dynamo.reset()
    run = Run(0)
    if options is not None:
        options = {**options, "on_report": run.reports.append}
    compiled = model if backend is None else torch.compile(model, backend=backend, options=options)

    def step(seed: int) -> Any:
        for seeded in (torch.manual_seed, random.seed, np.random.seed):
            seeded(seed)
        model.zero_grad(set_to_none=True)
        result = compiled(**batch)
        result.loss.backward()
        return result

    for seed in range(STEPS):
        loss = step(seed).loss.detach().clone()
        gradients = (parameter.grad for parameter in model.parameters())
        left = [loss, *gradients, *model.buffers()]
        run.results.append([None if each is None else each.clone() for each in left])
    model.zero_grad(set_to_none=True)
    tensors = (each for each in batch.values() if isinstance(each, Tensor))
    held = sum(each.nbytes for each in (*model.parameters(), *model.buffers(), *tensors))
    run.peak = held + dtr_fx.measure_peak(step, STEPS, device="cpu")
    model.zero_grad(set_to_none=True)
    return run


HEADER = (
    "| model | eager | aot_eager | dtr | unrewritten | extra compute | equal |\n|---|--:|--:|--:|--:|--:|---|"
)


def row(name: str, budget: str | None) -> str:
    """Of the table: eager's peak, and as shares of it others', and what a share in a budget is of."""

    def run(backend: str | None, options: dict[str, Any] | None = None) -> Run:
        torch.manual_seed(0)
        model, batch = MODELS[name]()
        return train(model.train(), batch, backend, options)

    eager, aot = run(None), run("aot_eager")
    cells = [name, format_bytes(eager.peak), f"{aot.peak / eager.peak:.1%}"]
    try:
        ours = run("dtr", {} if budget is None else {"budget": budget})
    except dtr_fx.InfeasibleBudgetError as error:
        before = f"{error.baseline_peak / eager.peak:.1%}"
        cells += ["refused", before, f"from {error.smallest / error.baseline_peak:.1%} on", ""]
    else:
        before = max(report.unconstrained_peak for report in ours.reports)
        equal = [known for known, other in (("eager", eager), ("aot_eager", aot)) if ours.equals(other)]
        extra = max(report.overhead for report in ours.reports)
        shares = (f"{each:.1%}" for each in (ours.peak / eager.peak, before / eager.peak, extra))
        cells += [*shares, ", ".join(equal) or "NEITHER"]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--budget")
    parser.add_argument("models", nargs="*", metavar="model", help=", ".join(MODELS))
    arguments = parser.parse_args()
    if unknown := set(arguments.models) - MODELS.keys():
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    print(HEADER)
    for name in arguments.models or MODELS:
        print(row(name, arguments.budget), flush=True)


if __name__ == "__main__":
    main()
