"""A region of operators that runs slice by slice, as one operator: what lies inside is never there whole."""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Final, NamedTuple

import torch
from torch.fx import Graph, GraphModule, Node

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


class Sliced:
    """Some operators as one, which runs them once for each slice; ``extent`` rows are cut into ``slices``.

    ``graph`` takes what one slice reads of what is ``given`` and returns a tuple of what it makes of each of
    the ``results``.
    """

    def __init__(
        self, graph: Graph, extent: int, slices: int, given: Sequence[Given], results: Sequence[Result]
    ) -> None:
        self.graph, self.slices, self.rows = graph, slices, extent // slices
        self.given, self.results = tuple(given), tuple(results)
        self.__name__ = "sliced"

    @cached_property
    def module(self) -> GraphModule:
        """One slice of the region."""
        return GraphModule(torch.nn.Module(), self.graph)

    @property
    def is_exact(self) -> bool:
        """True if no sum is added up in another order than without slices."""
        return all(result.join is not SUM for result in self.results)

    @property
    def accumulator_bytes(self) -> int:
        """What sums that are added up in single precision take above their results."""
        wide = (each for each in self.results if each.join is SUM and each.dtype in _LOW_PRECISION)
        return sum(math.prod(each.shape) * each.dtype.itemsize for each in wide)

    @property
    def operators(self) -> list[Node]:
        """What each slice runs."""
        return [node for node in self.graph.nodes if node.op == "call_function"]

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        made: list[Any] = [None] * len(self.results)
        for number in range(self.slices):
            parts = self.module(*self.slice_of(inputs, number))
            made = [self._joined(*each, number) for each in zip(self.results, made, parts)]
            del parts  # before the next slice runs
        return tuple(whole.to(result.dtype) for result, whole in zip(self.results, made))

    def slice_of(self, inputs: Sequence[torch.Tensor], number: int) -> Iterator[torch.Tensor]:
        """What one slice reads."""
        for given, tensor in zip(self.given, inputs):
            yield tensor if given.cut is None else rows_of(tensor, given.cut, number * self.rows, self.rows)

    def _joined(
        self, result: Result, whole: torch.Tensor | None, part: torch.Tensor, number: int
    ) -> torch.Tensor:
        if isinstance(result.join, Sum):
            if whole is not None:
                return whole.add_(part)
            return part.float() if part.dtype in _LOW_PRECISION else part
        if whole is None:
            whole = torch.empty_strided(result.shape, result.stride, dtype=part.dtype, device=part.device)
        rows_of(whole, result.join, number * self.rows, self.rows).copy_(part)
        return whole

    def __repr__(self) -> str:
        return f"{'+'.join(node.name for node in self.operators)} in {self.slices} slices"


def rows_of(tensor: torch.Tensor, cut: Cut, start: int, count: int) -> torch.Tensor:
    """Some rows of a tensor along a cut, as a view."""
    return together(tensor, cut).narrow(cut.last, start, count)


def together(tensor: torch.Tensor, cut: Cut) -> torch.Tensor:
    """The tensor with its cut dimensions in the last of them; RuntimeError where no view is that."""
    shape = tensor.shape
    ones = [1] * (cut.last - cut.first)
    return tensor.view(*shape[: cut.first], *ones, -1, *shape[cut.last + 1 :]) if ones else tensor
