"""From the target of a command to its plans: every command that plans a model does it here."""

from __future__ import annotations

import argparse
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.fx import GraphModule

from dtr_fx.cli.arguments import read, setting
from dtr_fx.cli.output import waiting
from dtr_fx.cli.targets import LOGS, PROGRAM, SAVED, fails_by_itself, load_fake, load_target, one_line
from dtr_fx.compiler.as_on_card import assumed, traced_for
from dtr_fx.costs.devices import named_device
from dtr_fx.costs.roofline import roofline
from dtr_fx.errors import CommandError, GraphError, did_you_mean
from dtr_fx.inspect.views import Report
from dtr_fx.lab.log_plans import LogPlanning
from dtr_fx.passes.modes import WithoutMemory
from dtr_fx.passes.sizes import put_on
from dtr_fx.planning.options import Options, parse_budget
from dtr_fx.planning.transform import rewritten_copy

if TYPE_CHECKING:
    from dtr_fx.compiler.joint import Joint

CARD = torch.device("cuda")  # what a graph is traced for that runs on a named card

Planner: TypeAlias = Callable[[Options], list[Report]]


def planner(arguments: argparse.Namespace) -> Planner:
    """Load the command's target; what is returned plans it, as often as it is called."""
    target, settings = arguments.target, dict(arguments.arg)
    if target.endswith(LOGS) and arguments.device is not None:
        raise CommandError(
            f"{target} has the costs of the device that it was recorded on: leave --device out"
        )
    if arguments.optimizer is not None or arguments.device is not None:
        step = graph_of(arguments)
        name = arguments.device

        def plan_for_device(options: Options) -> list[Report]:
            report = _planned(step, for_device(options, arguments))
            return [report if name is None else replace(report, device=told_of(step, name))]

        return plan_for_device
    if target.endswith(LOGS):
        _check_no(settings, target)
        program = read(Path(target))
        return lambda options: [LogPlanning(program, options).report()]
    if target.endswith(PROGRAM):
        graph = _exported_graph(target, settings)
        return lambda options: [_planned(graph, options)]
    model, inputs = load_target(target, **settings)

    from dtr_fx.compiler.explain import plan_step

    def plan(options: Options) -> list[Report]:
        with waiting(f"tracing and planning {target}"), runs(target):
            reports = plan_step(model, inputs, options)
        if not reports:
            raise CommandError(f"{target}: no graph was traced, so there is nothing to plan")
        return reports

    return plan


@contextmanager
def runs(target: str) -> Iterator[None]:
    """What the target's model raises in here is told in one line; a fault of dtr_fx's own is not."""
    try:
        with _told_if_it_runs(), one_line(f"{target}: the model fails on its example inputs"):
            yield
    except CommandError as error:
        if error.__cause__ is not None and not fails_by_itself(error.__cause__):
            raise error.__cause__ from None
        raise


@contextmanager
def _told_if_it_runs() -> Iterator[None]:
    """Keep back what is logged of a model that may fail: torch tells of the same error, and at length."""
    if os.environ.get("TORCH_LOGS"):
        yield
        return
    logs = [logging.getLogger(name) for name in ("dtr_fx.compiler.frames", "torch._subclasses.fake_tensor")]
    held: list[logging.LogRecord] = []

    def keep_back(record: logging.LogRecord) -> bool:
        held.append(record)
        return False

    for log in logs:
        log.addFilter(keep_back)
    try:
        yield
    finally:
        for log in logs:
            log.removeFilter(keep_back)
    for record in held:
        logging.getLogger(record.name).handle(record)


def told_of(graph: GraphModule, name: str) -> str:
    """A device by its name, and of one that is not here what was assumed."""
    if name == "cpu":
        return name
    return f"cuda ({', '.join(filter(None, (f'{name}, which is not here', assumed(graph))))})"


def _planned(graph: GraphModule, options: Options) -> Report:
    with waiting("planning"):
        return rewritten_copy(graph, options)[1]


def optimizer_of(text: str) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
    """An optimizer of ``torch.optim`` and its settings, as in ``sgd momentum=0.9``."""
    name, *settings = text.split() or [""]
    base = torch.optim.Optimizer
    kinds = (kind for kind in vars(torch.optim).values() if isinstance(kind, type))
    known = {kind.__name__.lower(): kind for kind in kinds if issubclass(kind, base) and kind is not base}
    kind = known.get(name.lower())
    if kind is None:
        raise CommandError(f"--optimizer: torch.optim has no {name!r}{did_you_mean(name.lower(), known)}")
    try:
        return kind, dict(map(setting, settings))
    except argparse.ArgumentTypeError as error:
        raise CommandError(f"--optimizer: {error}, as in 'sgd lr=0.1'") from None


def _whole_step(target: str, settings: Mapping[str, Any], optimizer: str) -> GraphModule:
    """The target's whole training step as one graph, without a plan."""
    if target.endswith((SAVED, PROGRAM, *LOGS)):
        raise CommandError(f"{target} is no model: leave --optimizer out")
    make, given = optimizer_of(optimizer)
    model, inputs = load_target(target, **settings)
    if not isinstance(model, torch.nn.Module):
        raise CommandError(f"{target}: a function has no parameters to train; give a module")

    from dtr_fx.compiler.train_step import train_step
    from dtr_fx.planning.step import call, loss_of

    def loss(model: torch.nn.Module, inputs: Any) -> Any:
        return loss_of(call(model, inputs))

    with waiting(f"tracing {target}"), one_line(f"{target}: --optimizer"):
        return train_step(model, loss, make(model.parameters(), **given)).graph(inputs)


def _check_no(settings: Mapping[str, Any], target: str) -> None:
    if settings:
        raise CommandError(f"{target} is no factory: leave --arg out")


def _exported_graph(target: str, settings: Mapping[str, Any]) -> GraphModule:
    """The graph of a program that ``torch.export.save`` wrote."""
    _check_no(settings, target)
    with one_line(f"{target} holds no exported program"):
        return torch.export.load(target).module()


def graph_of(arguments: argparse.Namespace) -> GraphModule:
    """The command's target as the one graph that ``planner`` plans, traced on fake tensors."""
    target, settings = arguments.target, dict(arguments.arg)
    # What is wrong with the device is told before anything is traced.
    device = None if arguments.device is None else named_device(arguments.device)
    card = None if arguments.device == "cpu" else device
    if target.endswith(PROGRAM) and arguments.optimizer is None:
        graph = _exported_graph(target, settings)
    else:
        with traced_for(card):
            graph = _traced(target, settings, arguments.optimizer)
    if card is not None:
        put_on(graph, CARD)
    return graph


def _traced(target: str, settings: Mapping[str, Any], optimizer: str | None) -> GraphModule:
    """The target's step as one graph, with the update of its parameters if there is an optimizer."""
    if optimizer is not None:
        return _whole_step(target, settings, optimizer)
    with WithoutMemory(math.inf):  # as diff runs it
        return joint_of(*load_fake(target, **settings), target).planned


def for_device(options: Options, arguments: argparse.Namespace) -> Options:
    """The options with the costs and the memory of the device that the command names, if it does."""
    if arguments.device is None:
        return options
    if options.costs not in ("auto", "roofline"):
        raise CommandError("--costs profile times the operators here: leave it out, or --device")
    device = named_device(arguments.device)
    budget = options.budget if options.budget.kind != "auto" else parse_budget(int(device.memory))
    is_card = arguments.device != "cpu"
    if is_card and options.slices == "summed":
        raise CommandError("--slices summed: there are no slices for cards: leave it out, or --device")
    # What operators do slice by slice is tried out, which takes the device.
    slices = "off" if is_card else options.slices
    offload = options.offload
    if offload is not None and offload.speed is None:
        offload = replace(offload, speed=device.transfer)
    return replace(options, costs=roofline(device), budget=budget, slices=slices, offload=offload)


def joint_of(model: Callable[..., Any], inputs: Any, target: str) -> Joint:
    """The target's model, traced as one graph."""
    from dtr_fx.compiler.joint import trace

    with runs(target):
        try:
            return trace(model, inputs)
        except GraphError as error:
            raise GraphError(f"{error}; dtr-fx diff plans what graphs there are") from error.__cause__
