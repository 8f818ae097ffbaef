"""Whole training steps with AdamW: results against eager's, peaks at 100%, and the smallest budget of each.

  OMP_NUM_THREADS=1 python tests/whole_steps.py gpt resnet50_32 lstm_cell unet_bn gpt2_small
  OMP_NUM_THREADS=1 python tests/whole_steps.py --planning

Peaks are read from the allocator, with parameters, the optimizer's state and the batch.  "checkpoint" is
``torch.utils.checkpoint`` around each block, "hooks" an optimizer for each parameter that steps in
``register_post_accumulate_grad_hook`` and lets its gradient go; both are eager.  It ends with 1 where a
result differs from eager's, or a rival takes less than the smallest budget.  With ``--planning`` it plans
a whole step of some 5,000 operators at 60%, and two passes of as many.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from tabulate import tabulate
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import dtr_fx
from dtr_fx.costs.measure import measure_peak
from dtr_fx.lab import baselines
from dtr_fx.lab.zoo import MODELS
from dtr_fx.planning.options import Options
from dtr_fx.planning.planning import Planning
from dtr_fx.planning.step import call, loss_of
from dtr_fx.planning.transform import readable_copy
from dtr_fx.torch_private import FakeTensorMode, pytree
from dtr_fx.units import format_bytes, format_percent

NAMES = ("gpt", "resnet50_32", "lstm_cell", "unet_bn", "gpt2_small")
STEPS = 5
_BLOCKS = ("Block", "GPT2Block", "Bottleneck", "LSTMCell")


def gpt2_small(batch: int = 4, length: int = 128) -> tuple[nn.Module, tuple[Tensor, ...]]:
    from transformers import GPT2Config, GPT2LMHeadModel

    class Labelled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            size = {"n_layer": 6, "n_embd": 256, "n_head": 4, "vocab_size": 2048, "n_positions": length}
            self.gpt2 = GPT2LMHeadModel(GPT2Config(**size, use_cache=False))

        def forward(self, tokens: Tensor) -> Tensor:
            return self.gpt2(tokens, labels=tokens).loss

    return Labelled(), (torch.randint(0, 2048, (batch, length)),)


FACTORIES = {**MODELS, "gpt2_small": gpt2_small}


class Trained:
    """A model with an optimizer, from the same start each time."""

    def __init__(self, model: nn.Module, inputs: Any, make: Callable[..., Any] = torch.optim.AdamW) -> None:
        self.model = copy.deepcopy(model)
        self.inputs = inputs
        self.optimizer = make(self.model.parameters())

    def loss(self, model: nn.Module, *inputs: Any) -> Tensor:
        loss = loss_of(call(model, inputs))
        assert loss is not None
        return loss

    def eager(self) -> Tensor:
        loss = self.loss(self.model, *self.inputs)
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.detach()

    @property
    def held(self) -> int:
        """Bytes of parameters, buffers, state and batch."""
        states = [tensor for state in self.optimizer.state.values() for tensor in state.values()]
        tensors = [*self.model.parameters(), *self.model.buffers(), *states, *pytree.tree_leaves(self.inputs)]
        return sum(tensor.nbytes for tensor in tensors)

    def results(self) -> list[Tensor]:
        states = [tensor for state in self.optimizer.state.values() for tensor in state.values()]
        return [tensor.clone() for tensor in (*self.model.state_dict().values(), *states)]


def with_checkpoints(trained: Trained) -> Trained:
    for module in blocks(trained.model):
        module.forward = partial(checkpoint, module.forward, use_reentrant=False)  # type: ignore[method-assign]
    return trained


def blocks(model: nn.Module) -> Iterator[nn.Module]:
    """What is checkpointed: the model's own word, or modules that come again and again."""
    own = getattr(model, "blocks_to_checkpoint", None)
    found = [module for module in model.modules() if type(module).__name__ in _BLOCKS]
    yield from own() if own is not None else found or model.children()


class WithHooks(Trained):
    """Each gradient is freed as soon as its parameter is updated."""

    def __init__(self, model: nn.Module, inputs: Any) -> None:
        super().__init__(model, inputs)
        self.each = {
            parameter: torch.optim.AdamW([parameter], foreach=False) for parameter in self.model.parameters()
        }
        for parameter in self.each:
            parameter.register_post_accumulate_grad_hook(self.update)

    def update(self, parameter: Tensor) -> None:
        self.each[parameter].step()
        parameter.grad = None

    def eager(self) -> Tensor:
        loss = self.loss(self.model, *self.inputs)
        loss.backward()
        return loss.detach()

    @property
    def held(self) -> int:
        for optimizer in self.each.values():
            self.optimizer.state.update(optimizer.state)
        return super().held


def peak(trained: Trained, step: Callable[[], object]) -> int:
    """The peak of a second step, when the state is there."""
    torch.manual_seed(0)
    step()
    return trained.held + measure_peak(step)


def run(name: str, report: Callable[[str], object]) -> tuple[dict[str, str], bool]:
    torch.manual_seed(0)
    model, inputs = FACTORIES[name]()

    report("eager")
    eager = Trained(model, inputs)
    eager_peak = peak(eager, eager.eager)
    foreach = Trained(model, inputs, partial(torch.optim.AdamW, foreach=True))
    foreach_peak = peak(foreach, foreach.eager)
    rivals = {"checkpoint": with_checkpoints(Trained(model, inputs)), "hooks": WithHooks(model, inputs)}
    rival_peaks = {rival: peak(trained, trained.eager) for rival, trained in rivals.items()}

    report("100%")
    whole, reference = Trained(model, inputs), Trained(model, inputs)
    step = dtr_fx.train_step(whole.model, whole.loss, whole.optimizer, "100%")
    equal = all(equal_losses(lambda: step(*inputs), reference.eager) for _ in range(STEPS))
    equal &= all(map(torch.equal, whole.results(), reference.results()))
    whole_peak = whole.held + measure_peak(lambda: step(*inputs))

    report("smallest")
    begun = time.perf_counter()
    least = Trained(model, inputs)
    smallest = dtr_fx.smallest_budget(
        dtr_fx.train_step(least.model, least.loss, least.optimizer).graph(*inputs)
    )
    step = dtr_fx.train_step(least.model, least.loss, least.optimizer, smallest)
    reference = Trained(model, inputs)
    same = all(equal_losses(lambda: step(*inputs), reference.eager) for _ in range(STEPS))
    same &= all(map(torch.equal, least.results(), reference.results()))
    seconds = time.perf_counter() - begun
    least_peak = least.held + measure_peak(lambda: step(*inputs))

    gradients = sum(parameter.nbytes for parameter in model.parameters() if parameter.requires_grad)
    row = {
        "model": name,
        "operators": str(sum(event.kind == "compute" for event in step.reports[0].events)),
        "eager": format_bytes(eager_peak),
        "foreach": format_bytes(foreach_peak),
        "gradients": format_bytes(gradients),
        "dtr 100%": f"{format_bytes(whole_peak)} = {format_percent(whole_peak / eager_peak)}",
        "checkpoint": format_bytes(rival_peaks["checkpoint"]),
        "hooks": format_bytes(rival_peaks["hooks"]),
        "smallest": f"{format_bytes(smallest)} = {format_percent(smallest / eager_peak)}",
        "measured": format_bytes(least_peak),
        "overhead": format_percent(step.reports[0].overhead),
        "equal": "yes" if equal and same else "NO",
        "seconds": f"{seconds:.0f}",
    }
    return row, equal and same and smallest < min(rival_peaks.values())


def equal_losses(*steps: Callable[[], Tensor]) -> bool:
    """True if the same draws give the same loss."""
    seed = int(torch.randint(0, 2**31, ()))
    losses = []
    for step in steps:
        torch.manual_seed(seed)
        losses.append(step())
    return torch.equal(*losses)


def time_planning() -> None:
    """Seconds of the processor for a whole step, and for two passes of as many operators, of GPTs."""
    torch.manual_seed(0)
    subject = Trained(*MODELS["gpt"](layers=14))
    step = dtr_fx.train_step(subject.model, subject.loss, subject.optimizer).graph(*subject.inputs)
    with FakeTensorMode(allow_non_fake_inputs=True):
        joint = baselines.trace(*MODELS["gpt"](layers=33))
    for name, graph in {"whole step": step, "two passes": baselines.plan(joint, Options())[0]}.items():
        begun = time.process_time()
        planning = Planning(readable_copy(graph, None), Options(budget="60%", cache=False))
        planning.plan(saves_nothing=False)
        operators = sum(1 for _ in planning.planner.program.calls())
        print(f"{name}: {operators} operators, {time.process_time() - begun:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", default=NAMES, metavar="MODEL", help=", ".join(FACTORIES))
    parser.add_argument("--planning", action="store_true", help="time that instead")
    rows, succeeded = [], True
    arguments = parser.parse_args()
    if arguments.planning:
        time_planning()
        return
    for name in arguments.names:
        row, well = run(name, lambda what, name=name: print(f"{name}: {what}", file=sys.stderr))
        rows.append(row)
        succeeded &= well
        print(tabulate(rows, headers="keys", tablefmt="github"), flush=True)
    sys.exit(not succeeded)


if __name__ == "__main__":
    main()
