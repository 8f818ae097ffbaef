"""A region of operators that runs slice by slice, as one operator: what lies inside is never there whole."""

from __future__ import annotations

import copy
import enum
import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple, cast

import torch
from torch.fx import Graph, GraphModule, Node

from dtr_fx.passes.subgraphs import InSlices

# Sums of these are added up in single precision.
_LOW_PRECISION = (torch.bfloat16, torch.float16)


class Cut(NamedTuple):
    """Adjacent dimensions of a tensor that are cut together, as if they were one.

    A slice keeps the rank: it has size 1 in ``first`` to ``last - 1`` and n in ``last``.  Neither end has
    size 1 in the whole tensor, so that a cut has one name only.
    """

    first: int
    last: int

    def slice_of(self, shape: Sequence[int], rows: int) -> tuple[int, ...]:
        """The shape of a slice of so many rows."""
        return (*shape[: self.first], *[1] * (self.last - self.first), rows, *shape[self.last + 1 :])


class Sum(enum.Enum):
    """What becomes of a result whose slices add up to the whole one."""

    SUM = "sum"


SUM: Final = Sum.SUM


class Given(NamedTuple):
    """An input of a region, which each slice reads whole, or a slice of it."""

    name: str
    cut: Cut | None


class Result(NamedTuple):
    """A result of a region: the slices' results side by side, or added up; strides are in elements."""

    name: str
    join: Cut | Sum
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


class Sliced(InSlices):
    """Some operators as one, which runs them once for each slice: ``rows`` of ``extent``, or what is left.

    ``graph`` takes what one slice reads of what is ``given`` and returns a tuple of what it makes of each of
    the ``results``; ``rest`` does so for the last slice, if that is shorter.  A product that is a sum over
    the slices is added up by the library that computes it.  ``is_exact``: bit for bit.
    """

    def __init__(
        self,
        graph: Graph,
        extent: int,
        rows: int,
        given: Sequence[Given],
        results: Sequence[Result],
        rest: Graph | None = None,
        *,
        is_exact: bool = False,
    ) -> None:
        self.graph, self.extent, self.rows, self.rest = graph, extent, rows, rest
        self.given, self.results = tuple(given), tuple(results)
        self.is_exact = is_exact
        self.__name__ = "sliced"

    @cached_property
    def runs(self) -> GraphModule:
        """One slice as it runs, which takes the sums that it adds to, and by what to multiply them before."""
        return self._adding_up(self.graph)

    @cached_property
    def _runs_rest(self) -> GraphModule:
        return self.runs if self.rest is None else self._adding_up(self.rest)

    @property
    def accumulator_bytes(self) -> int:
        """What sums that are added up in single precision take above their results."""
        wide = (each for each in self.results if each.join is SUM and each.dtype in _LOW_PRECISION)
        return sum(math.prod(each.shape) * each.dtype.itemsize for each in wide)

    @cached_property
    def _written(self) -> list[int]:
        """The results that the slices write themselves."""
        made = zip(self.results, cast("tuple[Node, ...]", self.graph.output_node().args[0]))
        return [at for at, (result, node) in enumerate(made) if is_added_up(node, result.join, result.dtype)]

    def _adding_up(self, graph: Graph) -> GraphModule:
        """One slice, whose products are added to sums that it is given."""
        module = GraphModule(torch.nn.Module(), copy.deepcopy(graph))
        made = cast("tuple[Node, ...]", module.graph.output_node().args[0])
        first = next(node for node in module.graph.nodes if node.op != "placeholder")
        with module.graph.inserting_before(first):
            totals = [module.graph.placeholder(f"total_{number}") for number in self._written]
            scale = module.graph.placeholder("scale")
        scale.meta["val"] = 1
        for total, part in zip(totals, (made[number] for number in self._written)):
            part.target, part.args = torch.ops.aten.addmm_.default, (total, *part.args)
            part.kwargs = {"beta": scale}
            total.meta = dict(part.meta)
        module.recompile()
        return module

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made: list[Any] = [None] * len(self.results)
        for number in self._written:
            made[number] = _empty(self.results[number])
        totals = [made[number] for number in self._written]
        for start in range(0, self.extent, self.rows):
            count = min(self.rows, self.extent - start)
            run = self.runs if count == self.rows else self._runs_rest
            parts = run(*self.slice_of(inputs, start, count), *totals, int(start > 0))
            for number, result in enumerate(self.results):
                if number not in self._written:
                    made[number] = _joined(result, made[number], parts[number], start, count)
            del parts  # before the next slice runs
        return tuple(whole.to(result.dtype) for result, whole in zip(self.results, made))

    def slice_of(self, inputs: Sequence[torch.Tensor], start: int, count: int) -> Iterator[torch.Tensor]:
        """What a slice of so many rows reads."""
        for given, tensor in zip(self.given, inputs):
            yield tensor if given.cut is None else rows_of(tensor, given.cut, start, count)

    def __repr__(self) -> str:
        return f"{'+'.join(node.name for node in self.operators)} in {self.slices} slices"


def is_added_up(node: Node, join: Cut | Sum | None, dtype: torch.dtype) -> bool:
    """True if the library that computes a part of a sum also adds it to the rest."""
    return join is SUM and node.target is torch.ops.aten.mm.default and dtype not in _LOW_PRECISION


def _joined(
    result: Result, whole: torch.Tensor | None, part: torch.Tensor, start: int, count: int
) -> torch.Tensor:
    if isinstance(result.join, Sum):
        if whole is not None:
            return whole.add_(part)
        return part.float() if part.dtype in _LOW_PRECISION else part
    if whole is None:
        whole = _empty(result)
    rows_of(whole, result.join, start, count).copy_(part)
    return whole


def _empty(result: Result) -> torch.Tensor:
    return torch.empty_strided(result.shape, result.stride, dtype=result.dtype, device=result.device)


def rows_of(tensor: torch.Tensor, cut: Cut, start: int, count: int) -> torch.Tensor:
    """Some rows of a tensor along a cut, as a view."""
    return together(tensor, cut).narrow(cut.last, start, count)


def together(tensor: torch.Tensor, cut: Cut) -> torch.Tensor:
    """The tensor with its cut dimensions in the last of them; RuntimeError where no view is that."""
    shape = tensor.shape
    ones = [1] * (cut.last - cut.first)
    return tensor.view(*shape[: cut.first], *ones, -1, *shape[cut.last + 1 :]) if ones else tensor
