"""``transform``: any FX graph, rewritten to run inside a byte budget."""

from __future__ import annotations

import contextlib
import copy
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule

from dtr_fx.errors import GraphError, InfeasibleBudgetError
from dtr_fx.options import Options, parse_budget, resolve_budget
from dtr_fx.passes import costs as cost_model
from dtr_fx.passes import storages, verify
from dtr_fx.passes.drops import lower_drops
from dtr_fx.passes.propagate import propagate
from dtr_fx.passes.rematerialize import Infeasible, Need, fit, lower_bound
from dtr_fx.passes.workspace import workspaces
from dtr_fx.report import Report
from dtr_fx.reporting import make_report, source_line
from dtr_fx.runtime import Heuristic, collector_paused, resolve
from dtr_fx.runtime.heuristics import Score

log = logging.getLogger(__name__)


def transform(
    gm: GraphModule,
    budget: float | int | str,
    *,
    heuristic: str | Heuristic | Score = "next-use",
    costs: str | cost_model.Cost | Mapping[Any, float] = "roofline",
    example_inputs: Sequence[Any] | None = None,
) -> tuple[GraphModule, Report]:
    """Rewrite a graph so that its live bytes never exceed ``budget``; the original is left as it was.

    Parameters
    ----------
    gm:
        Any FX graph: from ``symbolic_trace``, ``make_fx``, ``torch.export`` (its module), AOTAutograd.
    budget:
        ``0.6`` or ``"60%"`` of the graph's own peak, bytes, ``"8GiB"``, ``"8GB"``, or ``"auto"``.  It
        counts inputs, parameters, activations and outputs on the graph's device.
    heuristic:
        What is dropped first: a name in ``dtr_fx.runtime.HEURISTICS``, a ``Heuristic``, or a function
        ``score(s, m, c)`` of staleness (seconds), size (bytes) and cost (seconds), over arrays.
    costs:
        ``"roofline"``, ``"profile"`` (each operator is timed), a function from a node to seconds, or a
        mapping from node names or targets.
    example_inputs:
        Needed by graphs whose nodes have no ``meta["val"]``: their shapes are found with fake tensors.

    Returns
    -------
    tuple[GraphModule, Report]
        The rewritten graph, with its Drop and Recompute nodes, and what was done.

    Raises
    ------
    OptionError
        A budget, heuristic or cost that cannot be understood.
    GraphError
        A graph without operators, or without shapes and example inputs.
    InfeasibleBudgetError
        No plan fits; the error holds the smallest budget that works.

    Examples
    --------
    >>> import torch, dtr_fx
    >>> def f(x):
    ...     a = x.sin(); b = a.cos(); c = b.exp()
    ...     return c.sum() + a.sum()
    >>> gm = torch.fx.symbolic_trace(f)
    >>> rewritten, report = dtr_fx.transform(gm, 1.0, example_inputs=[torch.ones(1024)])
    >>> bool(rewritten(torch.ones(1024)) == gm(torch.ones(1024)))
    True
    """
    options = Options(budget=budget, heuristic=heuristic, costs=costs)
    rewritten = GraphModule(gm, copy.deepcopy(gm.graph))
    _forget_earlier_rewrite(rewritten)
    propagate(rewritten, example_inputs)
    report = rewrite(rewritten, options)
    rewritten.recompile()
    return rewritten, report


def _forget_earlier_rewrite(gm: GraphModule) -> None:
    """A graph that was rewritten before is a graph like any other: its recomputes are operators."""
    lower_drops(gm.graph)
    for node in gm.graph.nodes:
        node.meta.pop("dtr", None)


def rewrite(gm: GraphModule, options: Options, *, saves_nothing: bool = False) -> Report:
    """Rewrite a graph with shapes in place; it is changed only if a plan fits.

    A graph that ``saves_nothing`` for a backward pass has a small peak and little to give up: there a share
    that no plan reaches is no error, and the graph stays as it is.
    """
    with collector_paused(), _without_guards(gm):
        return _rewrite(gm, options, saves_nothing=saves_nothing)


def _without_guards(gm: GraphModule) -> contextlib.AbstractContextManager[None]:
    """Sizes count as they are in the trace at hand, but the graph is to serve inputs of other sizes, too."""
    values = (node.meta.get("val") for node in gm.graph.nodes)
    mode = next((value.fake_mode for value in values if isinstance(value, FakeTensor)), None)
    shapes = mode.shape_env if mode is not None else None
    return shapes.suppress_guards() if shapes is not None else contextlib.nullcontext()


def _rewrite(gm: GraphModule, options: Options, *, saves_nothing: bool) -> Report:
    seconds: dict[str, float] = {}
    started = time.perf_counter()

    def lap(stage: str) -> None:
        nonlocal started
        now = time.perf_counter()
        seconds[stage] = now - started
        started = now

    calls = [node for node in gm.graph.nodes if node.op.startswith("call")]
    if not calls:
        raise GraphError("the graph has no operators: there is nothing to plan")
    cost = cost_model.resolve(options.costs, storages.graph_device(gm))
    workspace = workspaces(calls)
    lap("workspaces")
    program = storages.analyze(gm, cost, workspace)
    workspace_of = {node.name: nbytes for node, nbytes in workspace.items()}
    lap("storages")
    before = verify.liveness(gm, workspace_of, program.device)
    baseline_peak = max(point.live for point in before)
    asked = parse_budget(options.budget)
    budget = resolve_budget(asked, baseline_peak, program.device, already_held=program.constant_bytes)
    lap("baseline")
    need = lower_bound(program)
    heuristic = resolve(options.heuristic)
    interpreter = None
    if budget < baseline_peak:
        try:
            interpreter = fit(program, budget, heuristic, bound=need.nbytes)
        except Infeasible as infeasible:
            if not saves_nothing or asked.kind != "fraction":
                raise _error(program, need, budget, baseline_peak, infeasible.smallest) from None
            budget = baseline_peak
    lap("plan")
    if interpreter is not None:
        interpreter.emit()
    lap("emit")
    if interpreter is not None:
        verify.verify(gm)
    lap("verify")
    after = verify.liveness(gm, workspace_of, program.device)
    if interpreter is not None:
        verify.check_budget(after, budget)
    report = make_report(
        gm,
        program,
        interpreter,
        budget=budget,
        heuristic=heuristic.name,
        lower_bound=need.nbytes,
        before=before,
        after=after,
        seconds=seconds,
    )
    log.info("%s", report.summary())
    return report


def _error(
    program: storages.Program, need: Need, budget: int, baseline_peak: int, smallest: int
) -> InfeasibleBudgetError:
    node = program.steps[need.step].node
    pinned: dict[str, int] = {}
    pinned_values = {program.storage(value) for step in program.steps[: need.step + 1] for value in step.pins}
    for value in {*program.constants, *pinned_values}:
        kind = program.values[value].kind if value in program.constants else "output"
        pinned[kind] = pinned.get(kind, 0) + program.values[value].nbytes
    return InfeasibleBudgetError(
        asked=budget,
        # As it is, the graph needs no saved states of random operators: where those weigh most, less.
        smallest=min(smallest, baseline_peak),
        lower_bound=need.nbytes,
        baseline_peak=baseline_peak,
        operator=node.name,
        source=source_line(node),
        pinned=pinned,
    )
