"""What trains on a device, and whether plans hold there: one command, which goes on where it ended.

By default: the largest batch that trains on a small card, and time and memory at one batch, for six training
methods. The networks are those of the paper's Table 1 and of MegEngine, in their own sizes on a GPU and in
small ones on a CPU. --cap imitates a small card: PyTorch gets no more of the device than that. The first
table has the largest size that trains under the cap, and its time per sample over that of eager PyTorch's
largest; the second has peak and time of a step at eager's largest size, where dtr is given the peak of
checkpointing as its budget, and with Inductor that of Inductor with activation_memory_budget.

With --all, before these:

tests      the tests that are marked for a GPU, if they are beside this installation
allocator  PyTorch's allocator against ours on the same requests, block for block: random ones and those of
           training steps, under several of its settings, by torch.cuda.memory._snapshot()
peaks      planned against measured peak of steps under budgets, allocated and reserved
steps      what a step under a budget came to: peak, time, and whether results are the same, bit for bit
costs      the roofline and the profile against measured time
quality    time of a step at one budget by plans of several planners and efforts

On a CPU the allocator is held against an imitation of itself, and tests for a GPU are skipped: there the
command is tried, and nothing is learned of a card.

Each cell is saved when it is done. The same command with the same file goes on where the last one ended:

  dtr-fx bench device --all -o device.json
  dtr-fx bench device resnet1202 treelstm --cap 4GiB --minutes 20 -o device.json
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from dtr_fx.cli.bench.cells import Cell, Cells, Part, failed
from dtr_fx.cli.output import tracked
from dtr_fx.errors import CommandError, did_you_mean
from dtr_fx.units import format_bytes, parse_bytes

_MINUTES, _MINUTES_OF_ALL = 8.0, 35.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("models", nargs="*", metavar="MODEL", help="default: all")
    add("--all", action="store_true", help="all that is to be measured on a card")
    add("--cap", metavar="BYTES", help="default: 8GiB of a GPU, 64MiB of a CPU")
    about = f"begin nothing after (default: {_MINUTES:.0f}, with --all {_MINUTES_OF_ALL:.0f})"
    add("--minutes", type=float, metavar="N", help=about)
    add("-o", "--output", type=Path, metavar="FILE", help="JSON, which another run goes on from")


def run(arguments: argparse.Namespace) -> None:
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

    from dtr_fx.cli.bench import card, largest

    parts: list[Part] = [largest.part(subjects, device, facts["cap"])]
    if arguments.all:
        parts[:0] = card.parts(subjects, device)
    usual = _MINUTES_OF_ALL if arguments.all else _MINUTES
    minutes = usual if arguments.minutes is None else arguments.minutes
    today, until = time.strftime("%Y-%m-%d"), time.monotonic() + 60 * minutes
    todo = [(part, case) for part in parts for case in part.cases]
    for part, case in tracked("device", todo):
        if time.monotonic() > until:
            break
        key = part.name, *case
        if failed(cells.get(key)):
            cells[key] = _cell(part, case, cells)
            _save(arguments.output, {**facts, "date": today}, cells)
    done = sum((part.name, *case) in cells for part, case in todo)
    print(f"{name}, torch {torch.__version__}, {today}, cap {format_bytes(facts['cap'])}\n")
    print("\n\n".join(part.text(cells) for part in parts))
    if done < len(todo):
        print(f"\n{done} of {len(todo)} cells; run it again to go on")


def _cell(part: Part, case: tuple[str, ...], cells: Cells) -> Cell:
    try:
        return Cell(part.name, case, part.measure(case, cells))
    except Exception as error:  # what a compiler makes of one network must not end the others' measurements
        return Cell(part.name, case, [], f"{type(error).__name__}: {error}".splitlines()[0])


def _save(path: Path | None, facts: Mapping[str, Any], cells: Cells) -> None:
    if path is not None:
        text = json.dumps({**facts, "cells": list(map(asdict, cells.values()))}, indent=1)
        path.write_text(text, encoding="utf-8")


def _read(path: Path | None, facts: Mapping[str, Any]) -> Cells:
    if path is None or not path.exists():
        return {}
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
        cells = [Cell(**{**row, "case": tuple(row["case"])}) for row in saved["cells"]]
        found = {key: saved[key] for key in facts}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CommandError(f"cannot go on from {path}: {error}") from None
    if found != facts:
        raise CommandError(f"cannot go on from {path}: it is of {found}, this is {facts}; name another file")
    return {(cell.part, *cell.case): cell for cell in cells}
