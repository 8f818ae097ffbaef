"""Draw the figures of the DTR paper from its evaluation in simulation.

NUMBERS are those of the figures in the paper (Kirisame et al., ICLR 2021), all of them if none is given:

   2         slowdown under seven heuristics, a panel for each log
   3         overhead of DTR and of static planners, optimal ones among them
   5         which tensors of the linear network are in memory when
   7 to 10   slowdown under the heuristics c / (m · s) with and without staleness s, size m and cost c
  11         slowdown by what the last release of a storage does
  12         storages accessed to evaluate the heuristic and to keep its metadata

  dtr-fx figures
  dtr-fx figures 2 12 --logs *.log.gz -o results

Without --logs the models of the paper's evaluation are recorded first, once: their logs are kept in
FOLDER/logs. Next to each figure, figure2.png, its numbers are written as figure2.csv. Figure 3 has small
networks beside the logs; its numbers say which planners were not tried on logs of many operators.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
from collections.abc import Collection, Sequence
from pathlib import Path

import torch

from dtr_fx.cli.arguments import add_jobs, check_names_apart, read
from dtr_fx.cli.output import check_output, write_picture, write_text
from dtr_fx.cli.progress import progress, tracked
from dtr_fx.errors import CommandError
from dtr_fx.lab.figures.drawing import FIGURES, REPLAYED, Drawing, draw_comparison, draw_linear, draw_study
from dtr_fx.lab.figures.overheads import PlannerComparison, networks
from dtr_fx.lab.figures.residency import trace_linear
from dtr_fx.lab.figures.study import Study
from dtr_fx.lab.figures.style import require_matplotlib
from dtr_fx.lab.planners.graph import OperatorGraph
from dtr_fx.lab.record import record_log
from dtr_fx.runtime.program import Program


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "numbers", nargs="*", type=int, metavar="NUMBER", help="a figure of the paper (default: all)"
    )
    parser.add_argument(
        "--logs", nargs="+", type=Path, metavar="FILE", help="operator logs to replay, plain or gzip"
    )
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        default=Path("figures"),
        metavar="FOLDER",
        help="where to write, made if it is not there (default: %(default)s)",
    )
    parser.add_argument("-f", "--force", action="store_true", help="overwrite files in FOLDER")
    parser.add_argument(
        "--format",
        choices=("png", "svg", "pdf"),
        default="png",
        help="of the pictures (default: %(default)s)",
    )
    parser.add_argument("--json", action="store_true", help="write the numbers as JSON, too")
    add_jobs(parser)


def run(arguments: argparse.Namespace) -> None:
    numbers = sorted(set(arguments.numbers)) or FIGURES
    _check_numbers(numbers)
    _check_libraries(numbers)
    folder = _folder(arguments.output)
    for number in numbers:
        for suffix in (arguments.format, "csv", *(["json"] if arguments.json else [])):
            check_output(folder / f"figure{number}.{suffix}", force=arguments.force)
    programs = _programs(arguments, numbers)
    study = Study(programs, numbers)
    with progress("replays", len(study)) as advance:
        study.run(processes=arguments.jobs, advance=advance)
    for number in numbers:
        if number in REPLAYED:
            drawing = draw_study(study, number)
        elif number == 3:
            drawing = _compare(programs, arguments.jobs)
        else:
            drawing = draw_linear(trace_linear())
        _write(drawing, folder, arguments.format, force=arguments.force)
        if arguments.json:
            path = folder / f"figure{number}.json"
            write_text(path, json.dumps(drawing.rows) + "\n", force=arguments.force)


def _check_numbers(numbers: Collection[int]) -> None:
    for number in numbers:
        if number not in FIGURES:
            known = ", ".join(map(str, FIGURES))
            raise CommandError(f"figure {number} is none that is drawn here: choose among {known}")


def _check_libraries(numbers: Collection[int]) -> None:
    require_matplotlib()
    missing = [name for name in ("scipy", "ortools") if importlib.util.find_spec(name) is None]
    if 3 in numbers and missing:
        raise CommandError(f"figure 3 needs {' and '.join(missing)}: pip install 'dtr_fx[optimal]'")


def _folder(path: Path) -> Path:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise CommandError(f"cannot write into {path}: {error.strerror}") from None
    return path


def _programs(arguments: argparse.Namespace, numbers: Collection[int]) -> list[Program]:
    """The logs that were named; else those of the zoo, if a figure is drawn from logs."""
    if arguments.logs is None and not set(numbers) & {*REPLAYED, 3}:
        return []
    paths = arguments.logs or _recorded(arguments.output / "logs")
    programs = [read(path) for path in paths]
    check_names_apart(programs)
    return programs


def _recorded(folder: Path) -> list[Path]:
    """Logs of the zoo; those that are not there are recorded."""
    from dtr_fx.lab.zoo import ZOO

    paths = {name: _folder(folder) / f"{name}.log.gz" for name in ZOO}
    missing = [name for name, path in paths.items() if not path.exists()]
    for name in tracked("recording", missing):
        torch.manual_seed(0)
        record_log(*ZOO[name](), paths[name])
    for name in missing:
        print(f"Wrote {paths[name]}")
    return list(paths.values())


def _compare(programs: Sequence[Program], jobs: int | None) -> Drawing:
    comparison = PlannerComparison([*networks(), *map(OperatorGraph.of, programs)])
    with progress("plans", len(comparison)) as advance:
        comparison.run(processes=jobs, advance=advance)
    return draw_comparison(comparison)


def _write(drawing: Drawing, folder: Path, suffix: str, *, force: bool) -> None:
    path = folder / f"figure{drawing.number}.{suffix}"
    write_picture(path, drawing.picture)
    write_text(path.with_suffix(".csv"), drawing.csv(), force=force)
