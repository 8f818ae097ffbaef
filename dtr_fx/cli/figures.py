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
from collections.abc import Collection
from pathlib import Path

from dtr_fx.cli.arguments import add_jobs, check_names_apart, read
from dtr_fx.cli.output import check_output, progress, tracked, write_picture, write_text
from dtr_fx.errors import CommandError
from dtr_fx.lab.figures.drawing import FIGURES, REPLAYED, draw_comparison, draw_linear, draw_study
from dtr_fx.lab.figures.overheads import PlannerComparison, networks
from dtr_fx.lab.figures.residency import trace_linear
from dtr_fx.lab.figures.study import Study
from dtr_fx.lab.figures.style import require_matplotlib
from dtr_fx.lab.planners.graph import OperatorGraph


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("numbers", nargs="*", type=int, metavar="NUMBER", help="a figure of the paper (default: all)")
    add("--logs", nargs="+", type=Path, metavar="FILE", help="operator logs to replay, plain or gzip")
    about = "where to write, made if it is not there (default: %(default)s)"
    add("-o", "--output", type=Path, default=Path("figures"), metavar="FOLDER", help=about)
    add("-f", "--force", action="store_true", help="overwrite files in FOLDER")
    add("--format", choices=("png", "svg", "pdf"), default="png", help="of the pictures (default: png)")
    add("--json", action="store_true", help="write the numbers as JSON, too")
    add_jobs(parser)


def run(arguments: argparse.Namespace) -> None:
    numbers = sorted(set(arguments.numbers)) or FIGURES
    _check(numbers)
    folder, force, suffix = _folder(arguments.output), arguments.force, arguments.format
    for number in numbers:
        for end in (suffix, "csv", *(["json"] if arguments.json else [])):
            check_output(folder / f"figure{number}.{end}", force=force)
    paths = arguments.logs or []
    if arguments.logs is None and set(numbers) & {*REPLAYED, 3}:
        paths = _recorded(folder / "logs")
    programs = [read(path) for path in paths]
    check_names_apart(programs)
    study = Study(programs, numbers)
    with progress("replays", len(study)) as advance:
        study.run(processes=arguments.jobs, advance=advance)
    for number in numbers:
        if number in REPLAYED:
            drawing = draw_study(study, number)
        elif number == 3:
            comparison = PlannerComparison([*networks(), *map(OperatorGraph.of, programs)])
            with progress("plans", len(comparison)) as advance:
                comparison.run(processes=arguments.jobs, advance=advance)
            drawing = draw_comparison(comparison)
        else:
            drawing = draw_linear(trace_linear())
        path = folder / f"figure{number}.{suffix}"
        write_picture(path, drawing.picture)
        write_text(path.with_suffix(".csv"), drawing.csv(), force=force)
        if arguments.json:
            write_text(path.with_suffix(".json"), json.dumps(drawing.rows) + "\n", force=force)


def _check(numbers: Collection[int]) -> None:
    """That all figures are known, and what draws them is installed."""
    for number in numbers:
        if number not in FIGURES:
            known = ", ".join(map(str, FIGURES))
            raise CommandError(f"figure {number} is none that is drawn here: choose among {known}")
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


def _recorded(folder: Path) -> list[Path]:
    """Logs of the zoo; those that are not there are recorded."""
    import torch

    from dtr_fx.lab.record import record_log
    from dtr_fx.lab.zoo import ZOO

    paths = {name: _folder(folder) / f"{name}.log.gz" for name in ZOO}
    missing = [name for name, path in paths.items() if not path.exists()]
    for name in tracked("recording", missing):
        torch.manual_seed(0)
        record_log(*ZOO[name](), paths[name])
    for name in missing:
        print(f"Wrote {paths[name]}")
    return list(paths.values())
