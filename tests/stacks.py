"""Trainers with ``backend="dtr"``, beside the same trainer uncompiled and under ``aot_eager``.

    python tests/stacks.py            # the table of RESULTS.md, in some minutes
    python tests/stacks.py two        # rows whose name has this word: those of two processes

A stack trains a small language model with dropout, compiled as ``docs/trainers.md`` says.  Every loss counts,
and of the later steps the peak; parameters are part of it, as they are of a budget, the optimizer is not.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import ranks
import torch
from torch import Tensor, nn
from torch.distributed.pipelining import Schedule1F1B, ScheduleGPipe
from torch.utils.data import DataLoader

import dtr_fx
from dtr_fx.lab.zoo.gpt import GPT
from dtr_fx.units import format_bytes

os.environ.setdefault("HF_HUB_OFFLINE", "1")

STEPS = 4
FIRST = 2  # steps that compile, and divide the budget among the graphs
BATCH, LENGTH, VOCAB = 8, 64, 128
WIDTH, LAYERS, HEADS = 64, 2, 4


@dataclass(frozen=True)
class Way:
    """How a stack compiles its model: with a backend and its options, or not at all."""

    backend: str | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def compile(self, module: nn.Module) -> None:
        if self.backend is not None:
            module.compile(backend=self.backend, options=self.options or None)

    def compiled(self, module: nn.Module) -> Any:
        if self.backend is None:
            return module
        return torch.compile(module, backend=self.backend, options=self.options or None)

    @contextlib.contextmanager
    def config(self) -> Iterator[None]:
        """The options, for whoever cannot hand them over."""
        before = {name: getattr(dtr_fx.config, name) for name in self.options}
        try:
            for name, value in self.options.items():
                setattr(dtr_fx.config, name, value)
            yield
        finally:
            for name, value in before.items():
                setattr(dtr_fx.config, name, value)


@dataclass
class Run:
    """What a stack left behind: the loss of each batch, and a step's peak with the parameters.

    Where ranks share the parameters, ``held`` are the bytes of this one's.
    """

    losses: list[float] = field(default_factory=list)
    peak: int = 0
    held: int = 0

    def step(self, model: nn.Module, number: int, run: Callable[[], Any]) -> Any:
        """Run step ``number``, forward and backward, and give its result."""
        result = None

        def call() -> None:
            nonlocal result
            result = run()

        if number < FIRST:
            call()
        else:
            held = sum(parameter.nbytes for parameter in model.parameters())
            self.peak = max(self.peak, held + dtr_fx.measure_peak(call, device="cpu"))
        return result


def tokens() -> list[Tensor]:
    made = torch.Generator().manual_seed(0)
    return [torch.randint(VOCAB, (LENGTH,), generator=made) for _ in range(2 * STEPS * BATCH)]


def batches() -> list[Tensor]:
    return list(torch.stack(tokens()).split(BATCH))


def gpt() -> GPT:
    torch.manual_seed(0)
    return GPT(layers=LAYERS, width=WIDTH, heads=HEADS, length=LENGTH - 1, vocab=VOCAB, dropout=0.1)


def gpt2() -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(0)
    sizes = {"n_layer": LAYERS, "n_embd": WIDTH, "n_head": HEADS, "n_positions": LENGTH, "vocab_size": VOCAB}
    settings: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 0, "loss_type": "ForCausalLM", **sizes}
    return GPT2LMHeadModel(GPT2Config(**settings))


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD((p for p in model.parameters() if p.requires_grad), lr=0.1)


# --- the stacks --------------------------------------------------------------------------------------------


def loop(way: Way) -> Run:
    """nanoGPT's: gradient accumulation over two batches, autocast."""
    run, model = Run(), gpt()
    optimizer = sgd(model)
    way.compile(model)
    for number, batch in enumerate(batches()):

        def step(batch: Tensor = batch) -> Tensor:
            with torch.autocast("cpu", torch.bfloat16):
                loss = model(batch[:, :-1], batch[:, 1:]) / 2
            loss.backward()
            return loss.detach()

        run.losses.append(run.step(model, number // 2, step).item())
        if number % 2:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
    return run


def blocks(way: Way) -> Run:
    """torchtitan's: every block is compiled by itself."""
    run, model = Run(), gpt()
    optimizer = sgd(model)
    for block in model.blocks:
        way.compile(block)
    return _epoch(run, model, model, optimizer, lambda loss: loss.backward())


def _epoch(run: Run, model: nn.Module, called: Any, optimizer: Any, backward: Callable[[Tensor], Any]) -> Run:
    """``model`` is what holds the parameters, ``called`` what a framework made of it."""
    for number, batch in enumerate(batches()[:STEPS]):

        def step(batch: Tensor = batch) -> Tensor:
            loss: Tensor = called(batch[:, :-1], batch[:, 1:])
            backward(loss)
            return loss.detach()

        run.losses.append(run.step(model, number, step).item())
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    return run


def trainer(way: Way, *, by_name: bool = True, lora: bool = False, **settings: Any) -> Run:
    """transformers' Trainer; ``by_name`` the backend is an argument, else the model is compiled in place."""
    from transformers import PrinterCallback, Trainer, TrainingArguments

    run, model = Run(), gpt2()
    if lora:
        from peft import LoraConfig, get_peft_model

        model = get_peft_model(model, LoraConfig(target_modules=["c_attn"], fan_in_fan_out=True, r=4))
    dtr_fx.register_with_accelerate()
    accumulated = settings.get("gradient_accumulation_steps", 1)

    class Measured(Trainer):  # type: ignore[misc]
        calls = 0

        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            number, self.calls = self.calls, self.calls + 1
            training_step = super().training_step
            loss = run.step(self.model, number // accumulated, lambda: training_step(*args, **kwargs))
            run.losses.append(loss.item())
            return loss

        def evaluate(self, *args: Any, **kwargs: Any) -> Any:
            metrics = super().evaluate(*args, **kwargs)
            run.losses.append(metrics["eval_loss"])
            return metrics

    data = [{"input_ids": row, "labels": row} for row in tokens()]
    with tempfile.TemporaryDirectory() as folder, way.config() if by_name else contextlib.nullcontext():
        arguments = TrainingArguments(
            folder,
            use_cpu=True,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            max_steps=STEPS,
            per_device_train_batch_size=BATCH,
            torch_compile_backend=way.backend if by_name else None,
            **settings,
        )
        made = Measured(model, arguments, train_dataset=data, eval_dataset=data[: 2 * BATCH])
        made.remove_callback(PrinterCallback)
        if not by_name:
            way.compile(made.model)
        made.train()
    return run


def trainer_bf16(way: Way) -> Run:
    return trainer(way, bf16=True, gradient_accumulation_steps=2, eval_strategy="steps", eval_steps=2)


def trainer_checkpoints(way: Way) -> Run:
    return trainer(way, gradient_checkpointing=True)


def trainer_lora(way: Way) -> Run:
    return trainer(way, by_name=False, lora=True)


def trainer_in_place(way: Way) -> Run:
    return trainer(way, by_name=False)


def accelerate(way: Way, *, by_region: bool = False) -> Run:
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState
    from accelerate.utils import TorchDynamoPlugin

    dtr_fx.register_with_accelerate()
    AcceleratorState._reset_state(reset_partial_state=True)
    plugin = TorchDynamoPlugin(
        backend=way.backend or "no", options=way.options or None, use_regional_compilation=by_region
    )
    accelerator = Accelerator(cpu=True, dynamo_plugin=plugin)
    model = gpt()
    called, optimizer = accelerator.prepare(model, sgd(model))
    return _epoch(Run(), model, called, optimizer, accelerator.backward)


def accelerate_regions(way: Way) -> Run:
    return accelerate(way, by_region=True)


def fabric(way: Way) -> Run:
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1, precision="bf16-mixed")
    model = gpt()
    called, optimizer = fabric.setup(way.compiled(model), sgd(model))
    return _epoch(Run(), model, called, optimizer, fabric.backward)


def lightning(way: Way, *, whole: bool = False) -> Run:
    """``whole``: the LightningModule is compiled, else the model within it."""
    from lightning import LightningModule, Trainer

    run = Run()

    class Module(LightningModule):  # type: ignore[misc]
        calls = 0

        def __init__(self) -> None:
            super().__init__()
            self.model = gpt()

        def configure_model(self) -> None:
            if not whole:
                way.compile(self.model)

        def training_step(self, batch: Tensor, _: int) -> Tensor:
            loss: Tensor = self.model(batch[:, :-1], batch[:, 1:])
            return loss

        def on_before_backward(self, loss: Tensor) -> None:
            run.losses.append(loss.item())

        def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
            number, self.calls = self.calls, self.calls + 1
            optimizer_step = super().optimizer_step
            run.step(self, number, lambda: optimizer_step(*args, **kwargs))

        def configure_optimizers(self) -> Any:
            return sgd(self)

    with tempfile.TemporaryDirectory() as folder:
        made = Trainer(
            accelerator="cpu",
            devices=1,
            max_steps=STEPS,
            precision="bf16-mixed",
            default_root_dir=folder,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        module = Module()
        made.fit(way.compiled(module) if whole else module, DataLoader(batches(), batch_size=None))
    return run


def lightning_whole(way: Way) -> Run:
    return lightning(way, whole=True)


def timm(way: Way) -> Run:
    """timm's ``train.py --torchcompile``: label smoothing, its optimizer, an average of the weights."""
    from timm import create_model
    from timm.loss import LabelSmoothingCrossEntropy
    from timm.optim import create_optimizer_v2
    from timm.utils import ModelEmaV3

    run = Run()
    torch.manual_seed(0)
    sizes = {"img_size": 32, "patch_size": 4, "embed_dim": WIDTH, "depth": LAYERS, "num_heads": HEADS}
    model = create_model("vit_tiny_patch16_224", num_classes=10, drop_rate=0.1, proj_drop_rate=0.1, **sizes)
    average, optimizer = ModelEmaV3(model), create_optimizer_v2(model, "adamw", lr=1e-3)
    images, labels = torch.randn(STEPS, 4 * BATCH, 3, 32, 32), torch.randint(10, (STEPS, 4 * BATCH))
    smooth = LabelSmoothingCrossEntropy()
    with way.config():
        called = model if way.backend is None else torch.compile(model, backend=way.backend)
        for number in range(STEPS):

            def step(number: int = number) -> Tensor:
                loss: Tensor = smooth(called(images[number]), labels[number])
                loss.backward()
                return loss.detach()

            run.losses.append(run.step(model, number, step).item())
            optimizer.step()
            optimizer.zero_grad()
            average.update(model)
    return run


def detection(way: Way, name: str = "fcos_resnet50_fpn") -> Run:
    """A detector of torchvision as its reference trains it: images of several sizes, boxes for each."""
    from torchvision.models import detection

    run = Run()
    torch.manual_seed(0)
    sizes = {"min_size": 256, "max_size": 384, "num_classes": 5}
    model = getattr(detection, name)(weights=None, weights_backbone=None, **sizes)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    called = way.compiled(model)
    for number in range(STEPS):
        made = torch.Generator().manual_seed(number % 2)
        images = [torch.rand(3, 224 + 64 * ((number + at) % 2), 320, generator=made) for at in range(2)]
        corners = 60 * torch.rand(2, 2, 2, generator=made)
        boxes = torch.cat([corners, corners + 20 + 10 * torch.rand(2, 2, 2, generator=made)], 2)
        targets = [{"boxes": each, "labels": torch.tensor([1, 2])} for each in boxes]

        def step(images: list[Tensor] = images, targets: Any = targets) -> Tensor:
            loss: Tensor = sum(called(images, targets).values())
            loss.backward()
            return loss.detach()

        run.losses.append(run.step(model, number, step).item())
        optimizer.step()
        optimizer.zero_grad()
    return run


def faster_rcnn(way: Way) -> Run:
    return detection(way, "fasterrcnn_mobilenet_v3_large_fpn")


def of_two_ranks(stack: Any, work: Callable[..., Any] = ranks.steps) -> Callable[[Way], Run]:
    """Blocks, not a language model; losses of both ranks count, and the higher peak."""

    def train(way: Way) -> Run:
        found = ranks.of_both_ranks(work, stack, way.backend, way.options or None)
        highest = max(found, key=lambda one: one[2] + one[3])
        losses = sorted(loss for losses, *_ in found for loss in losses)
        return Run(losses, highest[2] + highest[3], highest[3])

    return train


@dataclass(frozen=True)
class Stack:
    """``lines`` are those to add, and ``needs`` has to be installed."""

    train: Callable[[Way], Run]
    lines: int
    needs: tuple[str, ...] = ()


HUGGING_FACE = ("transformers", "accelerate")
STACKS = {
    "a loop, accumulation, bf16": Stack(loop, 1),
    "each block by itself (torchtitan)": Stack(blocks, 2),
    "Trainer, by name": Stack(trainer, 4, HUGGING_FACE),
    "Trainer, accumulation, bf16, evaluation": Stack(trainer_bf16, 4, HUGGING_FACE),
    "Trainer, gradient checkpointing": Stack(trainer_checkpoints, 4, HUGGING_FACE),
    "Trainer, in place": Stack(trainer_in_place, 1, HUGGING_FACE),
    "Trainer, LoRA, in place": Stack(trainer_lora, 1, (*HUGGING_FACE, "peft")),
    "accelerate": Stack(accelerate, 4, ("accelerate",)),
    "accelerate, by regions": Stack(accelerate_regions, 4, ("accelerate",)),
    "Lightning, bf16, the model within": Stack(lightning, 2, ("lightning",)),
    "Lightning, bf16, the module": Stack(lightning_whole, 1, ("lightning",)),
    "Fabric, bf16": Stack(fabric, 1, ("lightning",)),
    "timm": Stack(timm, 0, ("timm", "torchvision")),
    "torchvision's FCOS, sizes vary": Stack(detection, 1, ("torchvision",)),
    "torchvision's Faster R-CNN, sizes vary": Stack(faster_rcnn, 1, ("torchvision",)),
    "DDP, compiled, two processes": Stack(of_two_ranks(ranks.ddp_inside), 1),
    "DDP around what is compiled, two processes": Stack(of_two_ranks(ranks.ddp_outside), 1),
    "FSDP1, two processes": Stack(of_two_ranks(ranks.fsdp1), 1),
    "FSDP2 by block, two processes": Stack(of_two_ranks(ranks.fsdp2_by_block), 2),
    "tensor parallel, two processes": Stack(of_two_ranks(ranks.tensor_parallel), 1),
    "pipeline, GPipe, two processes": Stack(of_two_ranks(ScheduleGPipe, ranks.pipeline), 1),
    "pipeline, 1F1B, two processes": Stack(of_two_ranks(Schedule1F1B, ranks.pipeline), 1),
}


def is_there(stack: Stack) -> bool:
    return all(importlib.util.find_spec(name) is not None for name in stack.needs)


def run(stack: Stack, backend: str | None = None, **options: Any) -> Run:
    torch._dynamo.reset()
    return stack.train(Way(backend, options))


# --- the table ---------------------------------------------------------------------------------------------


def rows(stack: Stack) -> Iterator[tuple[str, str, str, str]]:
    plain, reference = run(stack), run(stack, "aot_eager")
    share = int(0.6 * plain.peak)
    budgets = {"none": {}, "60%": {"budget": "60%"}, "bytes": {"budget": share}}
    for name, options in budgets.items():
        try:
            ours = run(stack, "dtr", **options)
        except Exception as error:
            yield name, "", "", f"{type(error).__name__}: {str(error)[:200]}"
            continue
        others = {"plain": plain, "`aot_eager`": reference}
        same = [other for other, its in others.items() if ours.losses == its.losses]
        asked = format_bytes(share) if name == "bytes" else name
        beside = f"{ours.peak / plain.peak:.1%} of {format_bytes(plain.peak)}"
        if plain.held:
            beside += f", {(ours.peak - ours.held) / (plain.peak - plain.held):.1%} above parameters"
        yield asked, format_bytes(ours.peak), beside, ", ".join(same) or "neither"


def main() -> None:
    torch.set_num_threads(1)
    names = ("torch", "transformers", "accelerate", "peft", "lightning", "timm", "torchvision")
    print({name: importlib.metadata.version(name) for name in names if importlib.util.find_spec(name)})
    print()
    print("| stack | lines to add | budget | peak | of the plain trainer's | losses equal those of |")
    print("|---|--:|--:|--:|--:|---|")
    for name, stack in STACKS.items():
        if is_there(stack) and any(word in name for word in sys.argv[1:] or [""]):
            for asked, peak, share, same in rows(stack):
                print(f"| {name} | {stack.lines} | {asked} | {peak} | {share} | {same} |", flush=True)


if __name__ == "__main__":
    main()
