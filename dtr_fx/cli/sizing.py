"""What a model's training step takes on a device, at any batch, in several ways to run it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointPolicy

from dtr_fx.cli.planned import CARD, joint_of, optimizer_of
from dtr_fx.cli.targets import default_of, load_fake, one_line
from dtr_fx.compiler.as_on_card import traced_for
from dtr_fx.compiler.joint import Joint
from dtr_fx.costs.figures import CPU, Device
from dtr_fx.costs.roofline import roofline
from dtr_fx.errors import CommandError
from dtr_fx.inspect.views import Report
from dtr_fx.lab import baselines
from dtr_fx.passes.marking import mark_hints
from dtr_fx.passes.marks import mark_of
from dtr_fx.passes.modes import WithoutMemory
from dtr_fx.passes.sizes import extrapolate, grows_faster, put_on
from dtr_fx.planning.judge import judge
from dtr_fx.planning.options import Options, parse_budget
from dtr_fx.planning.planning import Planning, copy_of
from dtr_fx.planning.transform import rewritten_copy
from dtr_fx.search import execute_order, rerun
from dtr_fx.torch_private import make_state

BATCH = "batch"  # the argument of a factory that is one
# What the forward pass costs of a step, of which it is a third: to compute it all again.
MOST_EXTRA = 1 / 3
# The least batch that is traced: of one, tensors are laid out otherwise.
_LEAST = 2
_EFFORT = 0.02


@dataclass(frozen=True)
class Run:
    """A step of one batch as it is run in one way: its peak in bytes, its seconds, the extra share."""

    batch: int | None
    peak: int
    seconds: float
    overhead: float


@dataclass(frozen=True)
class Way:
    """A way to run a step, at the batch that is asked for, and at the largest that fits; None without any."""

    asked: Run | None
    largest: Run | None


@dataclass(frozen=True)
class Bytes:
    """What a step holds, the ``activations`` those that autograd saves for the backward pass."""

    parameters: int
    gradients: int
    optimizer: int
    inputs: int
    activations: int


class Sizing:
    """The step of a target on a device; peaks have the optimizer's state in them.

    It is traced once. If the factory takes a batch it is traced at the one asked for and at twice that, where
    tensors grow faster than the batch at three times that, too; for others sizes are extrapolated.
    """

    def __init__(
        self, target: str, settings: Mapping[str, Any], device: Device, optimizer: str | None
    ) -> None:
        self._device = device
        self.batch: int | None = settings.get(BATCH, default_of(target, BATCH))
        if self.batch is not None and (type(self.batch) is not int or self.batch < 1):
            raise CommandError(f"{target}: batch={self.batch!r} is no number of samples, 1 or more")
        self._traced = max(_LEAST, self.batch or 0)
        with WithoutMemory():

            def traced(times: int) -> tuple[Callable[..., Any], Joint]:
                batch = {} if self.batch is None else {BATCH: times * self._traced}
                model, inputs = load_fake(target, **{**settings, **batch})
                with traced_for(self._card):
                    return model, joint_of(model, inputs, target)

            model, joint = traced(1)
            if not isinstance(model, torch.nn.Module):
                raise CommandError(f"{target}: a function has no parameters to train; give a module")
            self.state = 0 if optimizer is None else _state_bytes(model, optimizer)
            self._joints = [joint]
            if self.batch is not None:
                self._joints.append(traced(2)[1])
                if grows_faster(*(each.planned for each in self._joints)):
                    self._joints.append(traced(3)[1])
        names = {id(module): name for name, module in model.named_modules()}
        self._blocks = [names[id(block)] for block in baselines.blocks_of(model)]
        self._parameters = list(model.parameters())

    @property
    def _card(self) -> Device | None:
        return None if self._device.flops is CPU.flops else self._device

    @property
    def graph(self) -> torch.fx.GraphModule:
        """The step as it was traced."""
        return self._joints[0].planned

    @functools.cache  # noqa: B019  it lives as long as the command
    def _planning(self, batch: int | None) -> Planning:
        gm = self._at([joint.planned for joint in self._joints], batch)
        return Planning(gm, Options(costs=self._cost, slices="off", plan_seconds=_EFFORT))

    @functools.cached_property
    def _in_blocks(self) -> set[int]:
        """The operators of the model's blocks, which have the same numbers at any batch."""
        planning = self._planning(self.batch)
        gm = copy_of(planning.gm)
        mark_hints(gm, [(name, "recompute") for name in self._blocks])
        marked = {node.name for node in gm.graph.nodes if mark_of(node) is CheckpointPolicy.MUST_RECOMPUTE}
        return {number for number, call in enumerate(planning.graph.calls) if call.node.name in marked}

    @property
    def _cost(self) -> Callable[..., float]:
        return roofline(self._device)

    def _at(self, graphs: list[torch.fx.GraphModule], batch: int | None) -> torch.fx.GraphModule:
        """The graph of a batch, as if it had been traced on the device."""
        gm = copy_of(graphs[0])
        if batch is not None:
            extrapolate([gm, *graphs[1:]], self._traced, batch)
        if self._card is not None:
            put_on(gm, CARD)
        return gm

    def bytes(self, batch: int | None) -> Bytes:
        planning = self._planning(batch)
        weights = sum(parameter.nbytes for parameter in self._parameters)
        gradients = sum(parameter.nbytes for parameter in self._parameters if parameter.requires_grad)
        held = planning.graph.constant_bytes - weights
        return Bytes(weights, gradients, self.state, max(0, held), planning.saved)

    # Ways to run the step; None where there is no such way.

    def as_it_is(self, batch: int | None) -> Run:
        planning = self._planning(batch)
        return Run(batch, planning.baseline_peak + self.state, planning.base_cost, 0.0)

    def checkpointed(self, batch: int | None) -> Run | None:
        """With every block of the model computed again."""
        if not self._blocks:
            return None
        planning = self._planning(batch)
        program = planning.graph.program
        plan = execute_order(program, rerun(program, range(len(planning.graph.calls)), self._in_blocks))
        overhead = planning.overhead(plan)
        return Run(batch, plan.peak + self.state, planning.base_cost * (1 + overhead), overhead)

    def partitioned(self, batch: int | None) -> Run:
        """As ``torch.compile`` splits the step by default."""
        planning = self._planning(batch)
        joint = Joint(
            self._at([joint.graph for joint in self._joints], batch), *self._joints[0][1:3], planning.gm
        )
        found = judge(*baselines.min_cut(joint, 1.0), costs=self._cost)
        return Run(batch, found.peak + self.state, found.cost, found.cost / planning.base_cost - 1)

    def planned(self, batch: int | None) -> Run | None:
        """By a plan of ours in the device's memory, at no more than ``MOST_EXTRA``; None if none is found."""
        planning, room = self._planning(batch), int(self._device.memory) - self.state
        if planning.baseline_peak <= room:
            return self.as_it_is(batch)
        plan = planning.planner.search(room, planning.graph.program, lambda: None)
        if plan is None or (overhead := planning.overhead(plan)) > MOST_EXTRA:
            return None
        return Run(batch, plan.peak + self.state, planning.base_cost * (1 + overhead), overhead)

    def reports(self, ways: Mapping[str, Way]) -> Iterator[Report]:
        """Those of the plans at the batch that is asked for and at the largest that fits by a plan.

        What does not fit by any plan is shown as it is.  Budgets are what the optimizer's state leaves.
        """
        runs = ways["dtr_fx"]
        batches = [self.batch, *([runs.largest.batch] if runs.largest is not None else ())]
        for batch in dict.fromkeys(batches):
            is_planned = batch != self.batch or runs.asked is not None
            budget = int(self._device.memory) - self.state if is_planned else "100%"
            options = replace(self._planning(batch).options, budget=parse_budget(budget))
            report = rewritten_copy(self._planning(batch).gm, options)[1]
            yield report if batch is None else replace(report, trigger=f"batch {batch}")

    def fits(self, run: Run | None) -> bool:
        return run is not None and run.peak <= self._device.memory

    def ways(self) -> dict[str, Way]:
        """Each way at the batch that is asked for, and at the largest that fits."""
        return {
            "as it is": self._way(self.as_it_is),
            "checkpoint every block": self._way(self.checkpointed),
            "PyTorch's partitioner": Way(self.partitioned(self.batch), None),
            "dtr_fx": self._way(self.planned, self.checkpointed if self._blocks else self.as_it_is),
        }

    def _way(
        self, run: Callable[[int | None], Run | None], near: Callable[[int], Run | None] | None = None
    ) -> Way:
        if self.batch is None:
            return Way(run(None), None)
        guess = on_a_line(near or run, self._device.memory)
        return Way(run(self.batch), None if guess is None else largest(run, self.fits, guess))


def _state_bytes(model: torch.nn.Module, optimizer: str) -> int:
    """Those that the optimizer's first step makes."""
    make, settings = optimizer_of(optimizer)
    trained = [each for each in model.parameters() if each.requires_grad]
    with one_line(f"--optimizer {optimizer}"):
        made = make(trained, **settings)
    if isinstance(made, torch.optim.SGD):  # which makes its momentum while it steps
        return sum(each.nbytes for each in trained) if made.defaults["momentum"] else 0
    make_state(made, trained)
    if not made.state:
        raise CommandError(f"--optimizer {optimizer}: what state it has is not known before it steps")
    entries = (value for state in made.state.values() for value in state.values())
    return sum(entry.nbytes for entry in entries if isinstance(entry, torch.Tensor))


def largest(way: Callable[[int], Run | None], fits: Callable[[Run | None], bool], near: int) -> Run | None:
    """The run of the largest batch that fits, to 3%; None if not even one does.  Peaks grow with it."""
    low, high, step = 0, 0, max(1, near // 8)
    found: Run | None = None
    batch = near
    while high != 1 and not (low and high):
        run = way(batch)
        if fits(run):
            found, low = run, batch
            batch += step
        else:
            high = batch
            batch = max(1, batch - step)
        step *= 2
    while high - low > max(1, low // 32):
        middle = (low + high) // 2
        run = way(middle)
        if fits(run):
            found, low = run, middle
        else:
            high = middle
    return found


def on_a_line(way: Callable[[int], Run | None], memory: float) -> int | None:
    """About the largest batch, if peaks grow as at first; None if they do not, or one is too many."""
    first = way(1)
    if first is None or first.peak > memory:
        return None
    for batch in (2, 2**6, 2**12):  # of little tensors some fit into the allocator's least block
        more = way(batch)
        if more is not None and more.peak > first.peak:
            return 1 + int((batch - 1) * (memory - first.peak) / (more.peak - first.peak))
    return None
