"""Show what each budget costs: the curve of budget and extra compute of a model's training step.

TARGET is a factory as in dtr-fx diff, or zoo:NAME. It is built on fake tensors and traced as one graph;
nothing is executed, so it can have any size:

  dtr-fx sweep zoo:gpt
  dtr-fx sweep zoo:gpt --html page.html
  dtr-fx sweep train.py:make_gpt --budgets 80% 60% 8GiB -o curve.csv
  dtr-fx sweep train.py:make_small --optimum 30

The page is for choosing a budget: the curve, and for about ten of its points all that dtr-fx diff shows.

Beside our plans it shows other ways to run the step, judged by one rule at the peaks that they really reach:
eager, torch.utils.checkpoint around every block, checkpoints at every √n-th operator, PyTorch's partitioner
at activation_memory_budget 1.0, 0.9, ... 0.0, Inductor's own split and, with --optimum, the optimum of an
integer program where a solver proves it. We plan for each of their peaks, too.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from dtr_fx.cli import plans
from dtr_fx.cli.arguments import add_outputs, seconds
from dtr_fx.cli.output import check_outputs, progress, screen, tracked, write_text
from dtr_fx.inspect.comparison import Comparison, Mark, decision_page, render_curve, to_csv, to_json
from dtr_fx.inspect.table import table
from dtr_fx.planning.options import PERCENTS, Options, parse_budget
from dtr_fx.report import Report
from dtr_fx.report.curve import Curve
from dtr_fx.units import format_bytes, format_percent

if TYPE_CHECKING:
    from torch.fx import GraphModule

    from dtr_fx.lab.planners import OperatorGraph
    from dtr_fx.planning.curve import Sweep

_FILES: dict[str, Callable[[Comparison], str]] = {".csv": to_csv, ".json": to_json}
_PAGE = ".html"
_MOST_PLANS = 12  # on the page
# A solver that is given more proves nothing in minutes.
_MOST_OPERATORS = 120
# Of the program's cost, added to what must not be repeated: solvers round costs to 1e-7 of them all.
_DEAR = 10


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    plans.add_target(parser, "package.module:factory, path/to/file.py:factory or zoo:NAME")
    about = 'shares of the step\'s own peak ("60%%", 0.6) or bytes ("8GiB") (default: 95%%, 90%%, ... 5%%)'
    add("--budgets", nargs="+", default=PERCENTS, metavar="BUDGET", help=about)
    about = "effort of the search for each budget, as in dtr-fx show (default: 0.7, 1 for 2,300 operators)"
    add("--plan-seconds", type=seconds, metavar="S", help=about)
    plans.add_slices(parser, Options.slices)
    add("--no-rivals", action="store_true", help="our plans only")
    about = f"solve for the optimum, S seconds a budget (default: 20), up to {_MOST_OPERATORS} operators"
    add("--optimum", nargs="?", type=seconds, const=20.0, metavar="S", help=about)
    add("--json", action="store_true", help="print one JSON object")
    add_outputs(parser, ".csv, .json, or a page (.html)")
    about = "write the page on which to choose a budget to FILE"
    html = add("--html", dest="output", action="append", type=Path, metavar="FILE", help=about)
    html.default = argparse.SUPPRESS  # that of --output


def run(arguments: argparse.Namespace) -> None:
    # What is wrong on the command line is refused before a model is built and traced.
    for budget in arguments.budgets:
        parse_budget(budget)
    plans.check_target(arguments.target)
    check_outputs(arguments, (*_FILES, _PAGE))
    if arguments.optimum is not None:
        from dtr_fx.lab.planners.moccasin import require_ortools

        require_ortools()
    made, found = _compare(arguments)
    sys.stdout.write(to_json(found) if arguments.json else _as_text(found))
    for path in arguments.output:
        if path.suffix == _PAGE:
            reports = [replace(report, model=arguments.target) for report in _reports(made, found)]
            text = decision_page(found, reports, plans.command_of(arguments, path))
        else:
            text = _FILES[path.suffix](found)
        write_text(path, text, force=arguments.force)


def _reports(made: Sweep, found: Comparison) -> Iterator[Report]:
    """Those of the plans on the page."""
    chosen = list(_chosen(found.curve, [mark.peak for mark in found.marks]))
    return (made.report(budget) for budget in tracked("reports", chosen))


def _chosen(curve: Curve, peaks: Collection[int]) -> Iterator[int]:
    """The budgets of the page: the ends of the curve, and between them not those of others' peaks."""
    budgets = [point.budget for point in curve.points]
    between = [budget for budget in budgets[1:-1] if budget not in peaks]
    while len(between) > _MOST_PLANS - 2:
        between = between[1::2]
    yield from dict.fromkeys((budgets[0], *between, budgets[-1]))


def _compare(arguments: argparse.Namespace) -> tuple[Sweep, Comparison]:
    """Plan the target's training step for every budget, and judge other ways to run it."""
    from dtr_fx.cli.planned import for_device, graph_of
    from dtr_fx.cli.rivals import beside_rivals
    from dtr_fx.planning.curve import Sweep

    if arguments.optimizer is None and arguments.device is None:
        graph, marks, notes = beside_rivals(arguments)
    else:
        graph, marks = graph_of(arguments), []
        whole = "a whole step: no rivals, which have a budget for two passes only"
        notes = [
            whole if arguments.device is None else "for a named device: no rivals; dtr-fx estimate has some"
        ]
    budgets = [*arguments.budgets, *(mark.peak for mark in marks)]
    given = Options(plan_seconds=arguments.plan_seconds, slices=arguments.slices, offload=arguments.offload)
    options = for_device(given, arguments)
    with progress("plans", len(budgets) + 1) as advance:
        made = Sweep(graph, budgets, options, watch=lambda done, of: advance(done))
    curve = made.curve
    if made.dominated:
        shares = ", ".join(format_percent(budget / curve.baseline_peak) for budget in made.dominated)
        notes.append(f"left out, as a plan for less memory that was found costs less: {shares}")
    if arguments.optimum is not None:
        notes += _optimum(graph, curve, arguments.optimum, marks)
    operators = sum(node.op.startswith("call") for node in graph.graph.nodes)
    name = arguments.target.rpartition(":")[2]
    return made, Comparison(name, operators, curve, tuple(marks), tuple(notes))


def _optimum(graph: GraphModule, curve: Curve, limit: float, marks: list[Mark]) -> Iterator[str]:
    """Add the optimum at each budget where it is proved; say what is meant by it, or why there is none."""
    from dtr_fx.lab.planners import find_gap

    operators = _operators(graph)
    if len(operators) > _MOST_OPERATORS:
        yield f"no optimum: {len(operators)} operators are too many to solve for, {_MOST_OPERATORS} at most"
        return
    whole = operators.peak + operators.constants
    shares = tracked("optimum", [point.budget / whole for point in curve.points[1:]])
    found = [find_gap(operators, share, (), limit) for share in shares]
    proved = [gap for gap in found if gap.optimal]
    for gap in proved:
        overhead = (gap.best - gap.cost) / curve.base_cost
        budget = gap.budget + operators.constants
        marks.append(Mark("optimum", format_percent(budget / curve.baseline_peak), budget, overhead))
    yield (
        f"optimum: proved at {len(proved)} of {len(found)} budgets, for plans in a solver's form: "
        "all outputs of an operator are one result, operators take no memory for themselves, and none waits"
    )


def _operators(graph: GraphModule) -> OperatorGraph:
    """The graph for solvers, who would free and repeat anything: what runs once is too dear to repeat."""
    from dtr_fx.lab.planners import OperatorGraph
    from dtr_fx.planning.planning import Planning

    program = Planning(graph, Options()).planner.program
    operators = OperatorGraph.of(program)
    once = {call.name for call in program.calls() if not call.recomputable}
    nodes = (
        node._replace(cost=node.cost + _DEAR * program.cost)
        if number in operators.results or node.name in once
        else node
        for number, node in enumerate(operators.nodes)
    )
    return replace(operators, nodes=tuple(nodes))


def _as_text(found: Comparison) -> str:
    on = screen(pipe_width=100)
    points = [
        {
            "budget": format_bytes(point.budget),
            "of eager's peak": format_percent(found.share(point.budget)),
            "peak": format_bytes(point.peak),
            "share": format_percent(found.share(point.peak)),
            "extra compute": format_percent(point.overhead),
            "at least": "" if point.least_overhead is None else format_percent(point.least_overhead),
        }
        for point in found.curve.points
    ]
    marks = [
        {
            "beside it": f"{mark.kind} {mark.setting}".strip(),
            "peak": format_bytes(mark.peak),
            "share": format_percent(found.share(mark.peak)),
            "extra compute": format_percent(mark.overhead),
            "dtr in that peak": found.ours(mark.peak),
        }
        for mark in found.marks
    ]
    picture = render_curve(found, width=on.width, color=on.color).rstrip("\n")
    parts = [found.title, table(points, starts_with="numbers"), picture]
    parts += [table(marks)] if len(marks) > 1 else []
    return "\n\n".join((*parts, *found.notes)) + "\n"
