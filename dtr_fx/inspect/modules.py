"""Memory, drops and recomputation by module: the tree that the page and ``dtr-fx show`` print.

A module has what its operators do and what the modules in it do; backward operators belong to the module of
their forward operators. A parameter or an input belongs to the module that reads it first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from operator import attrgetter

from dtr_fx.report import Event, Report
from dtr_fx.report.blocks import blocks

OPTIMIZER = "(optimizer)"  # the path of its operators, which no module calls


@dataclass(frozen=True)
class Figures:
    """What operators do: seconds of compute, bytes at the peak, drops and what they free, recomputes.

    ``operators`` and ``cost`` are those of the graph as it was, ``recomputed`` the bytes of recomputes and
    ``extra`` their seconds.  ``at_peak`` are the bytes live at the planned peak: results, temporary memory,
    and parameters and inputs that are read here first.
    """

    operators: int = 0
    cost: float = 0.0
    at_peak: int = 0
    drops: int = 0
    dropped: int = 0
    recomputes: int = 0
    recomputed: int = 0
    extra: float = 0.0


_VALUES = attrgetter(*(field.name for field in fields(Figures)))


@dataclass(frozen=True)
class Module:
    """A module by its ``path``, with the figures of all operators in it.

    ``name`` is the path below the module that it is shown in: ``blocks.0`` where ``blocks`` itself is not
    shown, as it holds one module and nothing else.  The whole graph has the path ``""``.
    """

    path: str
    name: str
    figures: Figures
    modules: tuple[Module, ...]

    def walk(self, depth: int = 0) -> Iterator[tuple[int, Module]]:
        """This module and all in it, each after the one that it is in, with the number of those around it."""
        yield depth, self
        for module in self.modules:
            yield from module.walk(depth + 1)


def module_tree(report: Report) -> Module:
    """The modules of a plan, in the order in which they first run."""
    original = {point.name for point in report.before}
    own: dict[str, list[Figures]] = {}
    for event in report.events:
        own.setdefault(path_of(event), []).append(_figures(event, is_new=event.name not in original))
    for path, nbytes in _at_peak(report):
        own.setdefault(path, []).append(Figures(at_peak=nbytes))
    return _module("", "", {_names(path): sum_of(found) for path, found in own.items()})


def page_rows(tree: Module) -> Iterator[tuple[object, ...]]:
    """Of each module its depth, path and name, and its figures, for ``assets/tree.js``."""
    return ((depth, module.path, module.name, *_VALUES(module.figures)) for depth, module in tree.walk())


def path_of(event: Event) -> str:
    """The path in the tree that an event belongs to."""
    return event.module or (OPTIMIZER if event.phase == "optimizer" else "")


def _names(path: str) -> tuple[str, ...]:
    return tuple(path.split(".")) if path else ()


def _figures(event: Event, *, is_new: bool) -> Figures:
    """The figures of one event; what ``is_new`` and no recompute saves something for one."""
    if event.kind == "drop":
        return Figures(drops=1, dropped=event.nbytes)
    if event.kind == "recompute":
        return Figures(recomputes=1, recomputed=event.nbytes, extra=event.cost)
    return Figures(extra=event.cost) if is_new else Figures(operators=1, cost=event.cost)


def _at_peak(report: Report) -> Iterator[tuple[str, int]]:
    """The path and the bytes of everything that is live at the planned peak."""
    position = {event.name: at for at, event in enumerate(report.events)}
    points = [point for point in report.after if point.name in position]
    if not points:
        return
    peak = max(points, key=lambda point: point.live)
    at = position[peak.name]
    for block in blocks(report):
        if block.made_at <= at and (block.stays or at <= block.last_at):
            by = block.made_at if block.made_at >= 0 else min(block.readers, default=-1)
            yield path_of(report.events[by]) if by >= 0 else "", report.storages[block.storage].nbytes
    yield path_of(report.events[at]), peak.parts[-1] if peak.parts else 0


def sum_of(found: Iterable[Figures]) -> Figures:
    """The figures of operators taken together."""
    return Figures(*map(sum, zip(*map(_VALUES, found))))


def _module(path: str, name: str, own: dict[tuple[str, ...], Figures]) -> Module:
    """The module whose operators, by their paths below it, are ``own``."""
    below: defaultdict[str, dict[tuple[str, ...], Figures]] = defaultdict(dict)
    for names, found in own.items():
        if names:
            below[names[0]][names[1:]] = found
    if path and len(below) == 1 and () not in own:  # nothing but one module in it
        ((only, inner),) = below.items()
        return _module(f"{path}.{only}", f"{name}.{only}", inner)
    modules = (_module(f"{path}.{first}".lstrip("."), first, inner) for first, inner in below.items())
    return Module(path, name, sum_of(own.values()) if own else Figures(), tuple(modules))
