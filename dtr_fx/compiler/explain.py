"""``dtr_fx.explain(model, inputs, budget)``: what a budget would do to a model, to look at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from dtr_fx.inspect.views import Report, in_notebook
from dtr_fx.planning.options import Options
from dtr_fx.planning.step import Inputs


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
    # Compilation machinery takes seconds to import.
    from dtr_fx.compiler.backend import plan_step

    reports = plan_step(model, inputs, Options.from_mapping({"budget": budget, **options}))
    name = type(model).__name__ if isinstance(model, torch.nn.Module) else getattr(model, "__name__", "")
    return Reports(replace(report, model=name) for report in reports)
