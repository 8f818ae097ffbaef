"""The largest size of models that trains under a cap, and time and memory at one size, by training method."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict

import torch

from dtr_fx.cli.bench import Rows
from dtr_fx.cli.bench.cells import Cells, Part, instead
from dtr_fx.inspect.table import table
from dtr_fx.lab import methods
from dtr_fx.lab.methods import Trial
from dtr_fx.lab.zoo.sized import Subject
from dtr_fx.units import format_bytes, format_seconds

_LARGEST, _ALIKE = "largest", "alike"


def part(subjects: Sequence[Subject], device: torch.device, cap: int) -> Part:
    """A case is a model, ``"largest"`` or ``"alike"`` (a step at eager's largest size), and a method."""
    by_name = {subject.name: subject for subject in subjects}

    def measure(case: tuple[str, ...], cells: Cells) -> Rows:
        model, kind, method = case
        subject = by_name[model]
        if kind == _LARGEST:
            trial = methods.largest(methods.METHODS[method], subject, device, cap)
        else:  # dtr gets the peak of the method that it is held against
            eager = trial_of(cells, model, _LARGEST, methods.EAGER)
            beside = trial_of(cells, model, _ALIKE, methods.BUDGET_OF.get(method, ""))
            size = subject.start if eager is None else eager.size
            budget = None if beside is None else beside.peak
            trial = methods.attempt(methods.METHODS[method], subject, size, device, cap, budget=budget)
        return [] if trial is None else [asdict(trial)]

    cases = list(itertools.product(by_name, (_LARGEST, _ALIKE), methods.METHODS))
    texts = [(subject.name, f"{subject.name}, size = {subject.axis}") for subject in subjects]
    return Part(
        "largest",
        cases,
        measure,
        lambda cells: "\n\n".join(f"{title}\n{_table(model, cells)}" for model, title in texts),
    )


def trial_of(cells: Cells, *case: str) -> Trial | None:
    cell = cells.get(("largest", *case))
    return Trial(**cell.rows[0]) if cell is not None and cell.rows else None


def _table(model: str, cells: Cells) -> str:
    def ratio(kind: str, method: str, value: Callable[[Trial], float]) -> str:
        ours, theirs = (trial_of(cells, model, kind, name) for name in (method, methods.EAGER))
        return f"× {value(ours) / value(theirs):.2f}" if ours and theirs else ""

    def no(kind: str, method: str) -> str:
        return instead(cells.get(("largest", model, kind, method))) or "does not fit"

    rows = []
    for method in methods.METHODS:
        largest, alike = (trial_of(cells, model, kind, method) for kind in (_LARGEST, _ALIKE))
        rows.append(
            {
                "method": method,
                "largest size": largest.size if largest else no(_LARGEST, method),
                "of eager's": ratio(_LARGEST, method, lambda trial: trial.size),
                "time a sample": ratio(_LARGEST, method, lambda trial: trial.seconds / trial.size),
                "peak at eager's largest": format_bytes(alike.peak) if alike else no(_ALIKE, method),
                "step": format_seconds(alike.seconds) if alike else "",
                "of eager": ratio(_ALIKE, method, lambda trial: trial.seconds),
            }
        )
    return table(rows)
