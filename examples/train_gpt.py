"""Train a character-level GPT inside a byte budget, and measure what that takes.

    $ python examples/train_gpt.py --budget 50%
    $ python examples/train_gpt.py --budget 50% --compare
    $ python examples/train_gpt.py --budget 60% 40% 8MiB --compare --steps 30

The text is generated: sentences of a small grammar, a few words of which the model has learnt when it is
done. ``--compare`` trains the same model, from the same weights, on the same batches, with the same dropout,
in several ways, and prints one row for each:

eager
    PyTorch as it is.
checkpoint per block
    ``torch.utils.checkpoint`` around every transformer block.
dtr
    ``torch.compile(model, backend="dtr", options={"budget": ...})``, at 100% (nothing is rewritten) and at
    each ``--budget``.

Peak memory is measured, not planned: what the allocator shows above the start of one forward and backward
pass, plus the parameters and the batch, which a budget counts too. The optimizer's state is in neither. A
budget in percent is a share of the peak of the traced graph, which is the row "dtr 100%".
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from tabulate import tabulate
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dtr_fx import DTRError, Report, measure_peak
from dtr_fx.lab.zoo.gpt import GPT
from dtr_fx.planning.options import Options
from dtr_fx.units import format_bytes, format_percent, format_seconds

Batch = tuple[Tensor, Tensor]
Loss = Callable[..., Tensor]

_WORDS = (
    "the a one every that".split(),
    "old small quiet red clever lost".split(),
    "fox river bird farmer stone child".split(),
    "sees follows finds calls remembers leaves".split(),
)
_LEARNING_RATE = 5e-3
_TEMPERATURE = 0.7


# --- Data --------------------------------------------------------------------------------------------------


def make_text(sentences: int, seed: int = 0) -> str:
    """Sentences of article, adjective, noun, verb, article, adjective, noun."""
    choose = random.Random(seed).choice
    article, adjective, noun, verb = _WORDS
    order = (article, adjective, noun, verb, article, adjective, noun)
    return "".join(" ".join(map(choose, order)) + ". " for _ in range(sentences))


class Text:
    """A text as numbers, and batches of windows from it."""

    def __init__(self, text: str) -> None:
        self.alphabet = sorted(set(text))
        self.codes = torch.tensor([self.alphabet.index(character) for character in text])

    def batches(self, count: int, size: int, length: int) -> Iterator[Batch]:
        """Windows of ``length`` characters and, as targets, the same windows one character on."""
        generator = torch.Generator().manual_seed(0)
        for _ in range(count):
            starts = torch.randint(len(self.codes) - length, (size,), generator=generator)
            window = self.codes[starts[:, None] + torch.arange(length + 1)]
            yield window[:, :-1].contiguous(), window[:, 1:].contiguous()

    def decode(self, codes: Sequence[int]) -> str:
        return "".join(self.alphabet[code] for code in codes)


# --- Ways to train -----------------------------------------------------------------------------------------


class Checkpointed(nn.Module):
    """A block whose activations are recomputed in the backward pass."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block = block

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.block, x, use_reentrant=False)


@dataclass(frozen=True)
class Way:
    """``prepare`` makes the loss function of a fresh model, and passes on the report of a plan."""

    name: str
    prepare: Callable[[GPT, Callable[[Report], None]], Loss]


def eager(model: GPT, on_report: Callable[[Report], None]) -> Loss:
    return model


def checkpoint_per_block(model: GPT, on_report: Callable[[Report], None]) -> Loss:
    model.blocks = nn.ModuleList(map(Checkpointed, model.blocks))
    return model


def dtr(budget: str) -> Way:
    def prepare(model: GPT, on_report: Callable[[Report], None]) -> Loss:
        return torch.compile(model, backend="dtr", options={"budget": budget, "on_report": on_report})

    return Way(f"dtr {budget}", prepare)


# --- Training ----------------------------------------------------------------------------------------------


class Training:
    """One model on its way: seconds and loss of every step so far, and at the end the bytes of its peak."""

    def __init__(self, way: Way, text: Text, settings: argparse.Namespace) -> None:
        torch.manual_seed(0)
        self.name = way.name
        self.reports: list[Report] = []
        self.seconds: list[float] = []
        self.losses: list[float] = []
        self.peak = self.held = 0
        self.model = GPT(
            layers=settings.layers,
            width=settings.width,
            heads=4,
            length=settings.length,
            vocab=len(text.alphabet),
            dropout=0.1,
        )
        self._loss = way.prepare(self.model, self.reports.append)
        self._optimizer = torch.optim.AdamW(self.model.parameters(), _LEARNING_RATE)

    def step(self, batch: Batch) -> None:
        # The dropout of a step is the same in every way to train.
        torch.manual_seed(len(self.losses))
        started = time.perf_counter()
        self._optimizer.zero_grad()
        loss = self._loss(*batch)
        loss.backward()
        self._optimizer.step()
        self.losses.append(loss.item())
        self.seconds.append(time.perf_counter() - started)

    def measure(self, batch: Batch) -> None:
        """The peak of one more forward and backward pass, parameters and batch included."""
        self._optimizer.zero_grad()
        self.held = sum(
            tensor.numel() * tensor.element_size() for tensor in (*self.model.parameters(), *batch)
        )
        self.peak = self.held + measure_peak(lambda: self._loss(*batch).backward())

    @property
    def fastest(self) -> float:
        """Seconds of the fastest step: what else the machine does only ever adds."""
        return min(self.seconds)


def train(ways: Sequence[Way], text: Text, settings: argparse.Namespace) -> list[Training]:
    """A fresh model for each way; they take turns at every step, so that a busy machine slows all alike."""
    trainings = [Training(way, text, settings) for way in ways]
    for done, batch in enumerate(text.batches(settings.steps, settings.batch, settings.length), 1):
        for training in trainings:
            training.step(batch)
        show_progress(done, settings.steps, trainings[-1].losses[-1])
    for training in trainings:
        training.measure(batch)
    return trainings


def show_progress(done: int, total: int, loss: float) -> None:
    """A bar on the terminal; a line for the first step and the last where stderr is a file or a pipe."""
    if not sys.stderr.isatty():
        if done in (1, total):
            print(f"step {done}/{total}  loss {loss:.3f}", file=sys.stderr, flush=True)
        return
    filled = 32 * done // total
    end = "\n" if done == total else ""
    bar = "█" * filled + "░" * (32 - filled)
    print(f"\r{bar} step {done}/{total}  loss {loss:.3f} ", end=end, file=sys.stderr, flush=True)


@torch.no_grad()
def write(model: GPT, text: Text, length: int, characters: int) -> str:
    """What the model writes after a full stop."""
    model.eval()
    torch.manual_seed(0)
    written = [text.alphabet.index(" ")]
    for _ in range(characters):
        logits = model.logits(torch.tensor([written[-length:]]))[0, -1]
        written.append(int(torch.multinomial((logits / _TEMPERATURE).softmax(-1), 1)))
    return text.decode(written).strip()


# --- What is printed ---------------------------------------------------------------------------------------


def table(trainings: Sequence[Training]) -> str:
    """A row for each way to train; the first is what the others are held against."""
    first = trainings[0]
    columns = {
        "": [training.name for training in trainings],
        "budget": [budget_of(training) for training in trainings],
        "peak memory": [format_bytes(training.peak) for training in trainings],
        f"of {first.name}": [format_percent(training.peak / first.peak) for training in trainings],
        "first step": [format_seconds(training.seconds[0]) for training in trainings],
        "fastest step": [format_seconds(training.fastest) for training in trainings],
        f"of {first.name} ": [f"× {training.fastest / first.fastest:.2f}" for training in trainings],
        "final loss": [f"{training.losses[-1]:.6f}" for training in trainings],
        "all losses": ["same" if training.losses == first.losses else "differ" for training in trainings],
    }
    if len(trainings) == 1:
        del columns[f"of {first.name}"], columns[f"of {first.name} "], columns["all losses"]
    alignment = ["left"] + ["right"] * (len(columns) - 1)
    return tabulate(columns, headers="keys", disable_numparse=True, colalign=alignment)


def budget_of(training: Training) -> str:
    return format_bytes(training.reports[0].budget) if training.reports else ""


def learning_curve(losses: Sequence[float]) -> str:
    shown = sorted({*range(0, len(losses), max(1, len(losses) // 5)), len(losses) - 1})
    return " → ".join(f"{losses[i]:.2f} (step {i + 1})" for i in shown)


def main(arguments: Sequence[str] | None = None) -> None:
    settings = parse(arguments)
    text = Text(make_text(2000))
    ways = [dtr(budget) for budget in settings.budget]
    if settings.compare:
        ways = [Way("eager", eager), Way("checkpoint per block", checkpoint_per_block), dtr("100%"), *ways]
    try:
        trainings = train(ways, text, settings)
    except DTRError as error:
        sys.exit(f"train_gpt.py: {error}")
    last = trainings[-1]
    print(f"{settings.steps} steps of {settings.batch} × {settings.length} characters, CPU")
    print(f"{table(trainings)}\n")
    held = format_bytes(last.held)
    print(f"peak memory: {held} of parameters and batch, and what a step was measured to need above them")
    print(f"loss, {last.name}: {learning_curve(last.losses)}")
    print(f"plan, {last.name}: {last.reports[0].summary()}")
    print(f"the model writes: {write(last.model, text, settings.length, characters=100)}")


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--budget",
        nargs="+",
        default=["50%"],
        help="50%% (the default), 20MiB, ...; several make several rows",
    )
    parser.add_argument("--steps", type=int, default=80, help="optimizer steps (default: %(default)s)")
    parser.add_argument("--compare", action="store_true", help="train without dtr too, a row for each way")
    parser.add_argument("--layers", type=int, default=6, help="transformer blocks (default: %(default)s)")
    parser.add_argument("--width", type=int, default=64, help="a multiple of 4 (default: %(default)s)")
    parser.add_argument("--batch", type=int, default=16, help="windows in a batch (default: %(default)s)")
    parser.add_argument("--length", type=int, default=64, help="window, characters (default: %(default)s)")
    settings = parser.parse_args(arguments)
    if settings.steps < 2:
        parser.error("--steps: at least 2, since the first one compiles")
    for budget in settings.budget:
        try:
            Options(budget=budget)
        except DTRError as error:
            parser.error(str(error))
    return settings


if __name__ == "__main__":
    main()
