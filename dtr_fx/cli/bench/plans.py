"""All that is promised of plans: every table and, at the end, every goal.

"baselines": plans against other ways to run a step, and against the lower bound. Models are built on fake
tensors and nothing is executed, so they can have any size; by default they are those of the zoo at full size.
Every baseline is judged by the same rule at the peak that it really reaches (a share of eager's, inputs and
parameters apart) and at the compute that its graphs really have (extra over eager's). For each model this
prints, for each activation_memory_budget of PyTorch's partitioner, its peak, its extra compute, and ours at
that peak; for torch.utils.checkpoint around every block, our extra compute at its peak, and our lowest peak
at its extra compute; the smallest budget that works, over the lower bound of any plan.

"optimum": DTR against the optimum, on training steps of 16 to 62 operators. Checkmate's integer program is
tried first, MOCCASIN's constraint program where that proves nothing in time. For each network and budget this
prints the optimum over the cost of the unconstrained program, who proved it, and by how much DTR's plan under
each heuristic costs more; where no optimum is proved, the cost of the best plan known and of DTR's over that
of the program. "None in stages" is Checkmate's proof that no plan of its kind fits: one that runs no operator
twice between two first runs. Budgets that an operator alone exceeds are left out.

"transfers": plans that may move values to the host and back, against the optimum of their kind, on training
steps of 6 to 17 operators, where moving an average value takes 0.3, 1 and 3 times its cost. For each program,
budget and link this prints when the best plan ends, over the cost of the unconstrained program ("≥": no plan
is better, and none as good was found in time), and when those end that recompute alone and that move alone.

"logs": operator logs with their future known, for one plan of all of a log; the original simulator decides
online. At each ratio of a log's peak this prints the lowest slowdown (total over base time) that any
heuristic of the original reaches, by the reference, and that of the plan that a search finds; then the lowest
ratios that work: of the original, of the plans, which are tried there and at 0.05 below, too, and of the
lower bound. As in the original, more than twice the time is "thrash" and does not work.

"times": times of planning, by both planners, over GPTs of growing depth, or of TARGETs. Nodes are all those
of the joint graph; operators are those that are called. "All" are the seconds from the graph to the rewritten
and verified one, "plan" those of finding the plan alone; of the online planner the best of two runs.

All of them take long; --quick runs a small case of each, too small to judge by:

  dtr-fx bench plans --quick
  dtr-fx bench plans zoo:gpt_full train.py:make_model --only baselines --json
  dtr-fx bench plans --only optimum --shares 70% 40% --heuristic dtr-eq next-use --seconds 10
  dtr-fx bench plans --only transfers --seconds 20 --resume transfers.jsonl
  dtr-fx bench plans --only logs --logs lstm.log.gz --reference simrd_slowdown.json --shares 50% 30%
  dtr-fx bench plans --only times --layers 12 24 --shares 50%
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

from dtr_fx.cli.arguments import add_heuristic, positive, seconds, share
from dtr_fx.cli.bench import add_targets, collect, logs, optimum
from dtr_fx.cli.bench.goals import Goal, goal_table
from dtr_fx.errors import CommandError
from dtr_fx.lab.planners.gaps import SEARCH
from dtr_fx.lab.planners.moccasin import require_ortools
from dtr_fx.planning.options import Options
from dtr_fx.runtime import HEURISTICS

_PARTS = ("baselines", "optimum", "transfers", "logs", "times")
# Of the GPTs of times: the first has 2,000 nodes, the last 20,000.
_LAYERS = (16, 24, 50, 100, 164)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_targets(parser, nargs="*", default=" (default: models at full size, and GPTs for times)")
    add = parser.add_argument
    add("--only", nargs="+", choices=_PARTS, default=_PARTS, metavar="PART", help=f"of {', '.join(_PARTS)}")
    add("--quick", action="store_true", help="a small case of each part")
    about = "budgets, of each peak; of baselines, activation_memory_budget (default: each part has its own)"
    add("--shares", nargs="+", type=share, metavar="SHARE", help=about)
    names, usual = (*HEURISTICS, SEARCH), optimum.DEFAULTS
    add_heuristic(parser, f"{' '.join(usual)}; of optima", nargs="+", choices=names, default=usual)
    add("--seconds", type=seconds, default=60.0, metavar="S", help="for each exact planner (default: 60)")
    about = "of transfers: take the cases that are in this file from there, and add the others to it"
    add("--resume", type=Path, metavar="FILE", help=about)
    about = f"operator logs, or a folder with NAME.log.gz and {logs.REFERENCE} (default: {logs.FOLDER})"
    add("--logs", nargs="+", type=Path, metavar="LOG", help=about)
    about = 'JSON: {"slowdown": {log: {heuristic: {ratio: slowdown}}}} (default: beside the logs)'
    add("--reference", type=Path, metavar="FILE", help=about)
    about = f"depths of the GPT of times (default: {' '.join(map(str, _LAYERS))})"
    add("--layers", nargs="+", type=positive, metavar="N", help=about)


def run(arguments: argparse.Namespace) -> None:
    if arguments.targets and arguments.layers:
        raise CommandError("give TARGETs, or --layers, the depths of the GPT that is measured without them")
    found: list[Goal] = []
    data: dict[str, Any] = {}
    for name, (part, results) in _parts(arguments).items():
        data[name] = collect(results, getattr(part, "each", None), quiet=arguments.json)
        if not arguments.json and (summary := part.summary(data[name])):
            print(summary, end="\n\n", flush=True)
        found += part.goals(data[name])
    if arguments.json:
        print(json.dumps({**data, "goals": found}, indent=1, default=asdict))
    elif found:
        print(goal_table(found))


def _parts(arguments: argparse.Namespace) -> dict[str, tuple[ModuleType | SimpleNamespace, Iterator[Any]]]:
    """The parts that are asked for, and their results to come; what can be wrong is said before."""
    from dtr_fx.cli.bench import baselines, times

    quick, targets, shares, only = arguments.quick, arguments.targets, arguments.shares, arguments.only
    settings = dict(arguments.arg)
    parts: dict[str, tuple[ModuleType | SimpleNamespace, Iterator[Any]]] = {}
    if "baselines" in only:
        models = targets or (["zoo:mlp_full"] if quick else baselines.models())
        options = Options(plan_seconds=0.1 if quick else None, cache=False)  # plans are timed
        budgets = shares or ((1.0, 0.5) if quick else baselines.BUDGETS)
        parts["baselines"] = baselines, baselines.results(models, settings, options, budgets)
    if "optimum" in only:
        require_ortools()
        graphs = optimum.small_networks()[: 2 if quick else None]
        wanted = shares or ((0.5,) if quick else optimum.SHARES)
        parts["optimum"] = optimum, optimum.results(graphs, wanted, arguments.heuristic, arguments.seconds)
    if "transfers" in only:
        programs = optimum.small_programs()[: 2 if quick else None]
        wanted = shares or ((0.65,) if quick else optimum.TRANSFER_SHARES)
        resume = arguments.resume
        found = optimum.transfer_results(programs, wanted, arguments.seconds, resume=resume)
        parts["transfers"] = optimum.TRANSFERS, found
    if "logs" in only:
        known = logs.known(arguments.logs or [], arguments.reference)[: 1 if quick else None]
        parts["logs"] = logs, logs.results(known, shares or ((0.5,) if quick else None))
    if "times" in only:
        depths = arguments.layers or ((2, 4) if quick else _LAYERS)
        gpts = {f"gpt of {depth}": ("zoo:gpt_full", {"layers": depth}) for depth in depths}
        given = {target.rpartition(":")[2]: (target, settings) for target in targets}
        parts["times"] = times, times.results(given or gpts, shares or (0.7,))
    return parts
