"""The paper's dynamic models, each trained inside one budget in bytes:

    treelstm    a graph per tree: each shape of tree is traced and planned
    lengths     an LSTM on sequences of varying lengths, in pieces that share the budget
    gan         an unrolled GAN, whose generator learns through steps of its opponent
    supernet    one path of many per step, as in single-path one-shot search (SPOS)
    experts     a mixture of experts, where the data say how many tokens each gets

    $ python examples/dynamic.py treelstm

A row per step: what came, the plans that were made for it, seconds for tracing and for planning, and beside
the budget the peak that the allocator shows when the step is repeated, parameters and batch included.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from tabulate import tabulate
from torch import Tensor, nn
from torch.func import functional_call, grad

import dtr_fx
from dtr_fx.lab import zoo
from dtr_fx.units import format_bytes


@dataclass(frozen=True)
class Step:
    """One batch: ``arguments`` of the model, and what is special about it in words."""

    what: str
    arguments: tuple[Any, ...]

    @property
    def nbytes(self) -> int:
        return sum(value.nbytes for value in self.arguments if isinstance(value, Tensor))


@dataclass(frozen=True)
class Task:
    """A model that returns its loss, the part of it to compile, and what it is trained on."""

    model: nn.Module
    compile: Callable[[nn.Module, dict[str, Any]], None]
    steps: Iterator[Step]
    share: float  # the budget, of what the largest step takes in eager mode


def whole(model: nn.Module, options: dict[str, Any], *, dynamic: bool | None = None) -> None:
    model.compile(backend="dtr", options=options, dynamic=dynamic)


# --- TreeLSTM ----------------------------------------------------------------------------------------------

Tree = Any  # a leaf is None, any other node a pair of trees


class TreeLSTM(nn.Module):
    """A binary TreeLSTM (Tai et al., 2015) over trees of any shape, with a batch of words at each leaf."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.leaf = nn.Linear(width, 3 * width)
        self.node = nn.Linear(2 * width, 5 * width)

    def forward(self, tree: Tree, words: Tensor) -> Tensor:
        h, _ = self.state(tree, iter(words.unbind()))
        return h.square().mean()

    def state(self, tree: Tree, words: Iterator[Tensor]) -> tuple[Tensor, Tensor]:
        if tree is None:
            enter, leave, new = self.leaf(next(words)).chunk(3, 1)
            c = enter.sigmoid() * new.tanh()
            return leave.sigmoid() * c.tanh(), c
        (left, c_left), (right, c_right) = self.state(tree[0], words), self.state(tree[1], words)
        gates = self.node(torch.cat([left, right], 1))
        enter, forget_left, forget_right, leave, new = gates.chunk(5, 1)
        c = enter.sigmoid() * new.tanh() + forget_left.sigmoid() * c_left + forget_right.sigmoid() * c_right
        return leave.sigmoid() * c.tanh(), c


def random_tree(leaves: int, choose: random.Random) -> Tree:
    if leaves == 1:
        return None
    left = choose.randrange(1, leaves)
    return random_tree(left, choose), random_tree(leaves - left, choose)


def treelstm(count: int, *, largest: int = 12, width: int = 32) -> Task:
    """The first tree is the largest."""
    choose = random.Random(0)
    leaves = (largest if number == 0 else choose.randrange(4, largest + 1) for number in range(count))
    steps = (Step(f"{2 * n - 1} nodes", (random_tree(n, choose), torch.randn(n, 64, width))) for n in leaves)
    return Task(TreeLSTM(width), whole, steps, 0.7)


# --- LSTM --------------------------------------------------------------------------------------------------


class Piece(nn.Module):
    """A few steps of an LSTM."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell = nn.LSTMCell(width, width)

    def forward(self, words: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        for word in words.unbind():
            h, c = self.cell(word, (h, c))
        return h, c


class LSTM(nn.Module):
    """An LSTM in pieces of a fixed length; each is compiled, and all that are needed share the budget."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.length = length
        self.piece = Piece(width)

    def forward(self, words: Tensor) -> Tensor:
        h = c = words.new_zeros(words.shape[1:])
        for piece in words.split(self.length):
            h, c = self.piece(piece, h, c)
        return h.square().mean()


def lengths(count: int, *, width: int = 32, piece: int = 8) -> Task:
    """The first is the longest: it takes a step to learn how its pieces share the budget."""
    pieces = [4, 2, 3, 1, 4, 3, 2, 1]
    steps = (Step(f"{n * piece} words", (torch.randn(n * piece, 64, width),)) for n in pieces[:count])
    model = LSTM(width, piece)
    return Task(model, lambda model, options: whole(model.piece, options), steps, 0.8)


# --- unrolled GAN ------------------------------------------------------------------------------------------


def perceptron(inputs: int, width: int, outputs: int) -> nn.Module:
    hidden = (nn.Linear(width, width), nn.Tanh())
    return nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), *hidden, nn.Linear(width, outputs))


class UnrolledGAN(nn.Module):
    """The generator's loss after some steps of the discriminator, and through them (Metz et al., 2017).

    AOTAutograd has no double backward: a loss whose gradient was taken with ``torch.autograd.grad`` in one
    compiled graph cannot be differentiated in another.  ``torch.func.grad`` inside of the graph can.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.generator = perceptron(8, width, 2)
        self.discriminator = perceptron(2, width, 1)

    def forward(self, noise: Tensor, real: Tensor, unrolled: int) -> Tensor:
        fake = self.generator(noise)
        now = {name: value.detach() for name, value in self.discriminator.named_parameters()}
        for _ in range(unrolled):
            slope = grad(self.judgement)(now, fake, real)
            now = {name: now[name] - 0.1 * slope[name] for name in now}
        return F.softplus(-functional_call(self.discriminator, now, (fake,))).mean()

    def judgement(self, parameters: dict[str, Tensor], fake: Tensor, real: Tensor) -> Tensor:
        of_fake, of_real = (functional_call(self.discriminator, parameters, (x,)) for x in (fake, real))
        return F.softplus(of_fake).mean() + F.softplus(-of_real).mean()


def gan(count: int, *, width: int = 32, batch: int = 256) -> Task:
    ahead = [3, 1, 2]
    steps = (
        Step(f"{ahead[n % 3]} steps ahead", (torch.randn(batch, 8), torch.randn(batch, 2), ahead[n % 3]))
        for n in range(count)
    )
    return Task(UnrolledGAN(width), whole, steps, 0.8)


# --- supernet ----------------------------------------------------------------------------------------------


class Supernet(nn.Module):
    """Blocks with several candidates each, of which one runs (Guo et al., Single Path One-Shot, 2020)."""

    def __init__(self, blocks: int, channels: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.ModuleList([*(self.candidate(channels, kernel) for kernel in (1, 3, 5)), nn.Identity()])
            for _ in range(blocks)
        )
        self.head = nn.Linear(channels, 4)

    @staticmethod
    def candidate(channels: int, kernel: int) -> nn.Module:
        convolution = nn.Conv2d(channels, channels, kernel, padding="same", bias=False)
        return nn.Sequential(convolution, nn.BatchNorm2d(channels), nn.ReLU())

    def forward(self, path: tuple[int, ...], images: Tensor) -> Tensor:
        x = images
        for number, candidates in zip(path, self.blocks):
            x = x + candidates[number](x)
        logits = self.head(x.mean((2, 3)))
        return F.cross_entropy(logits, torch.arange(len(images)) % 4)


def supernet(count: int, *, blocks: int = 6, channels: int = 8) -> Task:
    choose = random.Random(0)
    paths = [(2,) * blocks, *(tuple(choose.choices(range(4), k=blocks)) for _ in range(count - 1))]
    steps = (
        Step("path " + "".join(map(str, path)), (path, torch.randn(8, channels, 16, 16))) for path in paths
    )
    return Task(Supernet(blocks, channels), whole, steps, 0.7)


# --- mixture of experts ------------------------------------------------------------------------------------


class Expert(nn.Module):
    """An MLP for the tokens of some rows, the result of each scaled."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 8 * width)
        self.down = nn.Linear(8 * width, width)

    def forward(self, tokens: Tensor, rows: Tensor, scale: Tensor) -> Tensor:
        return self.down(F.gelu(self.up(tokens[rows]))) * scale[:, None]


class Experts(nn.Module):
    """Each token goes to the expert that its router prefers; an expert's tokens are padded to whole tiles."""

    def __init__(self, width: int, experts: int, tile: int) -> None:
        super().__init__()
        self.tile = tile
        self.router = nn.Linear(width, experts)
        self.experts = nn.ModuleList(Expert(width) for _ in range(experts))

    def forward(self, tokens: Tensor) -> Tensor:
        weights, chosen = self.router(tokens).softmax(1).max(1)
        result = tokens
        for number, expert in enumerate(self.experts):
            (rows,) = (chosen == number).nonzero(as_tuple=True)
            padding = (0, -len(rows) % self.tile)
            rows, scale = F.pad(rows, padding), F.pad(weights[rows], padding)
            result = result.index_add(0, rows, expert(tokens, rows, scale))
        return result.square().mean()


def compile_experts(model: nn.Module, options: dict[str, Any]) -> None:
    for expert in model.experts:  # type: ignore[union-attr]
        whole(expert, options, dynamic=True)


def experts(count: int, *, width: int = 32, tile: int = 64) -> Task:
    steps = (Step("512 tokens", (torch.randn(512, width),)) for _ in range(count))
    return Task(Experts(width, 4, tile), compile_experts, steps, 0.8)


# --- batches for dtr-fx bench steps --dynamic ---------------------------------------------------------------

Batches = tuple[nn.Module, list[tuple[Any, ...]]]


def batches_of(task: Task) -> Batches:
    return task.model, [step.arguments for step in task.steps]


def gpt_batches(count: int = 40) -> Batches:
    """A GPT of 4 layers, and sequences of 40 lengths from 64 to 25, the longest first."""
    model, (tokens, targets) = zoo.gpt(layers=4, length=64)
    return model, [
        (tokens[:, :n].contiguous(), targets[:, :n].contiguous()) for n in range(64, 64 - count, -1)
    ]


class Broken(nn.Module):
    """Four parts with graph breaks between them."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.parts = nn.ModuleList(
            nn.Sequential(*(nn.Sequential(nn.Linear(width, width), nn.GELU()) for _ in range(4)))
            for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        first, second, third, fourth = self.parts
        x = first(x).sin()
        torch._dynamo.graph_break()
        x = second(x).sin()
        torch._dynamo.graph_break()
        x = third(x).sin()
        torch._dynamo.graph_break()
        return fourth(x).sin().square().mean()


def broken_batches() -> Batches:
    return Broken(64), [(torch.randn(1024, 64),)]


def tree_batches(count: int = 100) -> Batches:
    """Trees of 15 to 255 nodes, the largest first."""
    choose = random.Random(0)
    leaves = [128, *(choose.randrange(8, 129) for _ in range(count - 1))]
    return TreeLSTM(32), [(random_tree(n, choose), torch.randn(n, 16, 32)) for n in leaves]


def path_batches(count: int = 100) -> Batches:
    return batches_of(supernet(count))


# --- training ----------------------------------------------------------------------------------------------

TASKS: dict[str, Callable[[int], Task]] = {
    "treelstm": treelstm,
    "lengths": lengths,
    "gan": gan,
    "supernet": supernet,
    "experts": experts,
}


@dataclass(frozen=True)
class Row:
    """What a step came to: plans made, seconds, bytes, and the loss."""

    step: str
    plans: int
    tracing: float
    planning: float
    peak: int
    budget: int
    loss: float

    def cells(self) -> list[str]:
        seconds = (f"{self.tracing:.2f} s", f"{self.planning:.2f} s")
        sizes = map(format_bytes, (self.peak, self.budget))
        return [self.step, str(self.plans), *seconds, *sizes, f"{self.loss:.4f}"]


def train(task: Task) -> list[Row]:
    """Take all steps; the first is measured in eager mode before, which gives the budget."""
    model, steps = task.model, task.steps
    first = next(steps)
    held = sum(parameter.nbytes for parameter in model.parameters())
    budget = int(task.share * (held + peak_of(model, first)))
    task.compile(model, {"budget": budget, "planner": "online"})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    rows = []
    with torch._dynamo.config.patch(recompile_limit=1000, accumulated_recompile_limit=1000):
        for step in (first, *steps):
            known = set(map(id, dtr_fx.plans()))
            model.zero_grad()
            loss = model(*step.arguments)
            loss.backward()
            made = [plan for plan in dtr_fx.plans() if id(plan) not in known]
            planning = sum(plan.planning_seconds for plan in made)
            tracing = sum(plan.seconds for plan in made) - planning
            peak = held + peak_of(model, step)
            rows.append(Row(step.what, len(made), tracing, planning, peak, budget, loss.item()))
            optimizer.step()
    return rows


def peak_of(model: nn.Module, step: Step) -> int:
    """Bytes above parameters for one step, batch included."""
    model.zero_grad()
    return step.nbytes + dtr_fx.measure_peak(lambda: model(*step.arguments).backward())


def main(arguments: Sequence[str] | None = None) -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("task", choices=TASKS)
    parser.add_argument("--steps", type=int, default=8, metavar="N", help="default: %(default)s")
    settings = parser.parse_args(arguments)
    torch.manual_seed(0)
    rows = train(TASKS[settings.task](settings.steps))
    headers = ["step", "new plans", "tracing", "planning", "peak", "budget", "loss"]
    print(tabulate([row.cells() for row in rows], headers=headers, disable_numparse=True))


if __name__ == "__main__":
    main()
