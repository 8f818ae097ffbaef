"""``transform``: any FX graph, rewritten to run inside a byte budget."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from torch.fx import GraphModule

from dtr_fx.costs import roofline as cost_model
from dtr_fx.errors import GraphError
from dtr_fx.inspect.views import Report
from dtr_fx.passes.contract import Pipeline
from dtr_fx.passes.drops import ForgetPlan
from dtr_fx.passes.propagate import Propagate
from dtr_fx.planning.options import Options
from dtr_fx.planning.planning import copy_of
from dtr_fx.planning.rewrite import rewrite
from dtr_fx.runtime import Heuristic
from dtr_fx.runtime.heuristics import Score

log = logging.getLogger(__name__)


def transform(
    gm: GraphModule,
    budget: float | int | str = 1.0,
    *,
    max_overhead: float | str | None = None,
    heuristic: str | Heuristic | Score = "next-use",
    costs: str | cost_model.Cost | Mapping[Any, float] = "auto",
    planner: Literal["search", "online"] = "search",
    plan_seconds: float | None = None,
    slices: Literal["exact", "summed", "off"] = "exact",
    offload: Any = None,
    count: Literal["allocated", "reserved"] = "allocated",
    example_inputs: Sequence[Any] | None = None,
) -> tuple[GraphModule, Report]:
    """Rewrite a graph so that its live bytes never exceed ``budget``; the original is left as it was.

    What is returned is the rewritten graph, with its Drop and Recompute nodes, and what was done.

    Parameters
    ----------
    gm:
        Any FX graph: from ``symbolic_trace``, ``make_fx``, ``torch.export`` (its module), AOTAutograd.
    budget:
        ``0.6`` or ``"60%"`` of the graph's own peak, bytes, ``"8GiB"``, ``"8GB"``, or ``"auto"``.  It
        counts inputs, parameters, activations and outputs on the graph's device.
    max_overhead, heuristic, costs, planner, plan_seconds, slices, offload, count:
        See ``dtr_fx.planning.options.Options``.
    example_inputs:
        Needed by graphs whose nodes have no ``meta["val"]``: their shapes are found with fake tensors.

    Raises
    ------
    OptionError, GraphError
        An option that cannot be understood; a graph without operators, or without shapes and example inputs.
    InfeasibleBudgetError
        No plan fits; the error holds the smallest budget that works.

    >>> import torch, dtr_fx
    >>> def f(x):
    ...     a = x.sin(); b = a.cos(); c = b.exp()
    ...     return c.sum() + a.sum()
    >>> gm = torch.fx.symbolic_trace(f)
    >>> rewritten, report = dtr_fx.transform(gm, 1.0, example_inputs=[torch.ones(1024)])
    >>> bool(rewritten(torch.ones(1024)) == gm(torch.ones(1024)))
    True
    """
    options = Options(
        budget,
        max_overhead,
        heuristic,
        costs,
        planner,
        plan_seconds,
        slices=slices,
        offload=offload,
        count=count,
    )
    return rewritten_copy(gm, options, example_inputs)


def rewritten_copy(
    gm: GraphModule, options: Options, example_inputs: Sequence[Any] | None = None
) -> tuple[GraphModule, Report]:
    """See ``transform``."""
    if not isinstance(gm, GraphModule):
        raise GraphError(
            f"{type(gm).__name__} is no FX graph: trace it with torch.export.export(...).module(), make_fx "
            'or torch.fx.symbolic_trace, or compile it, torch.compile(model, backend="dtr")'
        )
    rewritten = readable_copy(gm, example_inputs)
    report = rewrite(rewritten, options)
    for tensor in report.relied:
        log.warning("%s", tensor)
    rewritten.recompile()
    return rewritten, report


def readable_copy(gm: GraphModule, example_inputs: Sequence[Any] | None) -> GraphModule:
    """A copy to plan for: with the shapes of the example inputs, and without an earlier plan."""
    copied = copy_of(gm)
    Pipeline(ForgetPlan(), Propagate(example_inputs))(copied)
    return copied
