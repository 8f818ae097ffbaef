"""``dtr_fx.explain(model, inputs, budget)``: what a budget would do to a model, to look at."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import FunctionType
from typing import Any

import torch

from dtr_fx.compiler.backend import dtr
from dtr_fx.compiler.memoryless import traceable
from dtr_fx.inspect.views import Report, in_notebook
from dtr_fx.planning.options import Options
from dtr_fx.planning.step import Inputs, call, loss_of
from dtr_fx.torch_private import dynamo_config, reset_code, unset_fake_temporarily


class Reports(tuple[Report, ...]):
    """The reports of all graphs that were traced, in order; in a notebook, one page."""

    __slots__ = ()

    def __str__(self) -> str:
        return "\n".join(report.summary() for report in self)

    def _repr_html_(self) -> str:
        return in_notebook(self)

    def to_html(self) -> str:
        """The page, complete in itself; ValueError where there are no reports."""
        from dtr_fx.inspect.html import render

        return render(self)


def explain(
    model: Callable[..., Any], inputs: Inputs, budget: float | int | str = 1.0, **options: Any
) -> Reports:
    """Plan a model's training step, and leave the model as it is.

    One step is compiled and run, forward, and backward from the output if that is a scalar, else from the sum
    of its floating-point outputs.  Gradients, buffers and random generators are afterwards what they were.

    ``inputs`` are a tensor, a tuple of arguments, or a mapping of keyword arguments; ``budget`` and
    ``options`` are as for the backend, see ``Options``.  What cannot be understood is an OptionError; where
    no plan fits it is an InfeasibleBudgetError.

    >>> import torch, dtr_fx
    >>> layers = [layer for _ in range(4) for layer in (torch.nn.Linear(64, 64), torch.nn.GELU())]
    >>> reports = dtr_fx.explain(torch.nn.Sequential(*layers), torch.randn(256, 64), "80%")
    >>> reports[0].planned_peak <= reports[0].budget
    True
    """
    reports = plan_step(model, inputs, Options.from_mapping({"budget": budget, **options}))
    name = type(model).__name__ if isinstance(model, torch.nn.Module) else getattr(model, "__name__", "")
    return Reports(replace(report, model=name) for report in reports)


def plan_step(model: Callable[..., Any], inputs: Inputs, options: Options) -> list[Report]:
    """A report for each graph of one step that is compiled and run; see ``explain``."""
    reports: list[Report] = []
    asked = {**vars(options), "executor": options.executor or "eager", "on_report": reports.append}
    compiled = torch.compile(model, backend=functools.partial(dtr, options=asked))
    try:
        with (
            unset_fake_temporarily(),  # a mode that the model was made in
            traceable(model, inputs) as given,
            _left_alone(model),
            # Each plan is a compilation, and Dynamo runs what was compiled eight times uncompiled.
            dynamo_config.patch(recompile_limit=sys.maxsize, accumulated_recompile_limit=sys.maxsize),
        ):
            loss = loss_of(call(compiled, given))
            if loss is not None:
                loss.backward()
    finally:
        # Here, too: plans that are only looked at must not count.
        function = type(model).forward if isinstance(model, torch.nn.Module) else model
        # Of a module of torch.nn Dynamo compiles a function that calls it.
        around = getattr(getattr(compiled, "forward", None), "_torchdynamo_orig_callable", None)
        for each in (function, *([around] if isinstance(around, FunctionType) else [])):
            if hasattr(each, "__code__"):
                reset_code(each.__code__)
    return reports


@contextlib.contextmanager
def _left_alone(model: Callable[..., Any]) -> Iterator[None]:
    """Gradients, buffers and random generators are put back as they were."""
    module = model if isinstance(model, torch.nn.Module) else torch.nn.Module()
    gradients = [(parameter, parameter.grad) for parameter in module.parameters()]
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    try:
        for parameter, _ in gradients:
            parameter.grad = None  # a backward pass adds to the one that is there
        # Named, devices raise no warning that they are many.
        with torch.random.fork_rng(devices=range(torch.cuda.device_count())):
            yield
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
