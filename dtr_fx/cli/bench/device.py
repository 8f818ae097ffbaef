"""The largest batch that trains on a small card, and time and memory at one batch, for six training methods.

The networks are those of the paper's Table 1 and of MegEngine, in their own sizes on a GPU and in small ones
on a CPU. --cap imitates a small card: PyTorch gets no more of the device than that.  The first table has
the largest size that trains under the cap, and its time per sample over that of eager PyTorch's largest; the
second has peak and time of a step at eager's largest size, where dtr is given the peak of checkpointing as
its budget, and with Inductor that of Inductor with activation_memory_budget.

Each cell is saved when it is done.  The same command with the same file goes on where the last one ended:

  dtr-fx bench device -o device.json
  dtr-fx bench device resnet1202 treelstm --cap 4GiB --minutes 20 -o device.json
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from dtr_fx.cli.output import tracked
from dtr_fx.errors import CommandError, did_you_mean
from dtr_fx.inspect.table import table
from dtr_fx.units import format_bytes, format_seconds, parse_bytes

if TYPE_CHECKING:
    from dtr_fx.lab.methods import Trial
    from dtr_fx.lab.zoo.sized import Subject

_LARGEST, _ALIKE = "largest", "alike"

Cells: TypeAlias = "dict[tuple[str, str, str], Cell]"


@dataclass(frozen=True)
class Cell:
    """A model by a training method: its largest size, or a step at eager's; no ``trial`` if too large."""

    model: str
    method: str
    kind: str
    trial: Trial | None
    failure: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("models", nargs="*", metavar="MODEL", help="default: all")
    add("--cap", metavar="BYTES", help="default: 8GiB of a GPU, 64MiB of a CPU")
    add("--minutes", type=float, default=8.0, help="begin nothing after (default: %(default)s)")
    add("-o", "--output", type=Path, metavar="FILE", help="JSON, which another run goes on from")


def run(arguments: argparse.Namespace) -> None:
    from dtr_fx.lab.methods import METHODS
    from dtr_fx.lab.zoo.sized import SMALL, WHOLE

    device, name, cap = torch.device("cpu"), "CPU", "64MiB"
    if torch.cuda.is_available():
        device = torch.device("cuda", torch.cuda.current_device())  # a limit of memory wants the number
        name, cap = torch.cuda.get_device_name(device), "8GiB"
    try:
        facts: dict[str, Any] = {
            "device": name,
            "torch": torch.__version__,
            "cap": parse_bytes(arguments.cap or cap),
        }
    except ValueError as error:
        raise CommandError(f"--cap {arguments.cap}: {error}") from None
    known = {subject.name: subject for subject in (WHOLE if device.type == "cuda" else SMALL)}
    for model in arguments.models:
        if model not in known:
            raise CommandError(f"unknown model {model!r}{did_you_mean(model, known)}")
    subjects = [known[model] for model in arguments.models or known]
    cells = _read(arguments.output, facts)
    today, until = time.strftime("%Y-%m-%d"), time.monotonic() + 60 * arguments.minutes
    # A cell comes after those whose results it needs.
    todo = list(itertools.product(subjects, (_LARGEST, _ALIKE), METHODS))
    for subject, kind, method in tracked("device", todo):
        if time.monotonic() > until:
            break
        before = cells.get((subject.name, kind, method))
        if before is None or before.failure:
            cells[subject.name, kind, method] = _cell(subject, kind, method, device, facts["cap"], cells)
            if arguments.output is not None:
                saved = {**facts, "date": today, "cells": list(map(asdict, cells.values()))}
                arguments.output.write_text(json.dumps(saved, indent=1), encoding="utf-8")
    done = sum((subject.name, kind, method) in cells for subject, kind, method in todo)
    print(f"{name}, torch {torch.__version__}, {today}, cap {format_bytes(facts['cap'])}\n")
    print("\n\n".join(_table(subject, cells) for subject in subjects))
    if done < len(todo):
        print(f"\n{done} of {len(todo)} cells; run it again to go on")


def _cell(subject: Subject, kind: str, method: str, device: torch.device, cap: int, cells: Cells) -> Cell:
    from dtr_fx.lab import methods

    try:
        if kind == _LARGEST:
            trial = methods.largest(methods.METHODS[method], subject, device, cap)
        else:  # at eager's largest size; dtr gets the peak of the method that it is held against
            eager = cells[subject.name, _LARGEST, methods.EAGER].trial
            beside = cells.get((subject.name, _ALIKE, methods.BUDGET_OF.get(method, "")))
            budget = beside.trial.peak if beside is not None and beside.trial is not None else None
            size = eager.size if eager is not None else subject.start
            trial = methods.attempt(methods.METHODS[method], subject, size, device, cap, budget=budget)
    except Exception as error:  # what a compiler makes of one network must not end the others' measurements
        return Cell(subject.name, method, kind, None, f"{type(error).__name__}: {error}".splitlines()[0])
    return Cell(subject.name, method, kind, trial)


def _read(path: Path | None, facts: dict[str, Any]) -> Cells:
    from dtr_fx.lab.methods import Trial

    if path is None or not path.exists():
        return {}
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        rows = [Cell(**{**row, "trial": row["trial"] and Trial(**row["trial"])}) for row in saved["cells"]]
        found = {key: saved[key] for key in facts}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CommandError(f"cannot go on from {path}: {error}") from None
    if found != facts:
        raise CommandError(f"cannot go on from {path}: it is of {found}, this is {facts}; name another file")
    return {(cell.model, cell.kind, cell.method): cell for cell in rows}


def _table(subject: Subject, cells: Cells) -> str:
    from dtr_fx.lab.methods import EAGER, METHODS

    def trial(kind: str, method: str) -> Trial | None:
        cell = cells.get((subject.name, kind, method))
        return None if cell is None else cell.trial

    def ratio(kind: str, method: str, value: Callable[[Trial], float]) -> str:
        ours, theirs = trial(kind, method), trial(kind, EAGER)
        return f"× {value(ours) / value(theirs):.2f}" if ours and theirs else ""

    def instead(kind: str, method: str) -> str:
        cell = cells.get((subject.name, kind, method))
        return "not yet" if cell is None else cell.failure.split(":", 1)[0] or "does not fit"

    rows = []
    for method in METHODS:
        largest, alike = trial(_LARGEST, method), trial(_ALIKE, method)
        rows.append(
            {
                "method": method,
                "largest size": largest.size if largest else instead(_LARGEST, method),
                "of eager's": ratio(_LARGEST, method, lambda trial: trial.size),
                "time a sample": ratio(_LARGEST, method, lambda trial: trial.seconds / trial.size),
                "peak at eager's largest": format_bytes(alike.peak) if alike else instead(_ALIKE, method),
                "step": format_seconds(alike.seconds) if alike else "",
                "of eager": ratio(_ALIKE, method, lambda trial: trial.seconds),
            }
        )
    return f"{subject.name}, size = {subject.axis}\n{table(rows)}"
