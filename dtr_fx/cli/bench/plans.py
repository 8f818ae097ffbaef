"""All that is promised of plans, from one run: every table and, at the end, every goal.

The tables are those of

  - dtr-fx bench rivals: PyTorch's partitioner, checkpointing, the smallest budgets;
  - dtr-fx bench optimum: exact planners on small networks;
  - dtr-fx bench futures: operator logs with their future known, where DIR has logs and a reference;
  - dtr-fx bench times: how long planning takes.

This takes long; --quick runs a small case of each, too small to judge by:

  dtr-fx bench plans
  dtr-fx bench plans --logs ../shared/dtr_logs --seconds 10
  dtr-fx bench plans --quick
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dtr_fx.cli.arguments import seconds
from dtr_fx.cli.bench import futures, optimum, rivals, times
from dtr_fx.cli.bench.goals import Goal, goal_table
from dtr_fx.errors import CommandError
from dtr_fx.lab.planners import OperatorGraph
from dtr_fx.lab.planners.moccasin import require_ortools
from dtr_fx.planning.options import Options

_LOGS = Path(__file__).parents[4] / "shared" / "dtr_logs"
_REFERENCE = "simrd_slowdown.json"
_HEURISTICS = ("dtr", "next-use", optimum.SEARCH)


@dataclass(frozen=True)
class Cases:
    """What the benchmarks are run on, each as it takes them.

    ``ratios`` are of the logs' peaks, all that the reference has if None.
    """

    targets: Sequence[str]
    options: Options
    budgets: Sequence[float]
    networks: Sequence[OperatorGraph]
    shares: Sequence[float]
    logs: Sequence[futures.Case]
    ratios: Sequence[float] | None
    gpts: Sequence[times.Subject]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--logs",
        type=Path,
        metavar="DIR",
        help=f"with operator logs, NAME.log.gz, and {_REFERENCE} (default: ../shared/dtr_logs)",
    )
    parser.add_argument(
        "--seconds",
        type=seconds,
        default=optimum.SECONDS,
        metavar="S",
        help="for each exact planner and budget (default: %(default)g)",
    )
    parser.add_argument("--quick", action="store_true", help="a small case of each benchmark")


def run(arguments: argparse.Namespace) -> None:
    """Carry out the command.

    Raises
    ------
    DTRError
        DIR has no logs, the exact planners' libraries are not installed, or the models are not there.
    """
    require_ortools()
    folder = arguments.logs or _LOGS
    logs = _logs(folder, must_exist=arguments.logs is not None)
    paths = logs[:1] if arguments.quick else logs
    known = futures.load(paths, folder / _REFERENCE) if paths else []
    cases = _few(known) if arguments.quick else _all(known)
    found = list(_show(cases, folder, arguments.seconds))
    print(goal_table(found))


def _logs(folder: Path, *, must_exist: bool) -> list[Path]:
    """The logs of a folder, the smallest first."""
    logs = sorted(folder.glob("*.log.gz"), key=lambda path: path.stat().st_size)
    has_all = bool(logs) and (folder / _REFERENCE).is_file()
    if must_exist and not has_all:
        raise CommandError(f"--logs {folder}: there are no logs (*.log.gz) with a {_REFERENCE}")
    return logs if has_all else []


def _all(logs: Sequence[futures.Case]) -> Cases:
    return Cases(
        targets=rivals.examples(),
        options=Options(),
        budgets=rivals.BUDGETS,
        networks=optimum.small_networks(),
        shares=optimum.SHARES,
        logs=logs,
        ratios=None,
        gpts=times.gpts(),
    )


def _few(logs: Sequence[futures.Case]) -> Cases:
    return Cases(
        targets=[rivals.example("mlp_full")],
        options=Options(plan_seconds=0.1),
        budgets=(1.0, 0.5),
        networks=optimum.small_networks()[:2],
        shares=(0.5,),
        logs=logs,
        ratios=(0.5,),
        gpts=times.gpts((2, 4)),
    )


def _show(cases: Cases, folder: Path, seconds: float) -> Iterator[Goal]:
    yield from rivals.show(cases.targets, cases.options, cases.budgets)
    yield from optimum.show(cases.networks, cases.shares, _HEURISTICS, seconds)
    if cases.logs:
        yield from futures.show(cases.logs, cases.ratios)
    else:
        print(f"operator logs are left out: {folder} has none", end="\n\n")
    yield from times.show(cases.gpts)
