"""The dimensions of what an operator reads and makes, in labels: the words of the table behind ``cuts``.

A label names what a dimension ranges over, as a letter does in ``einsum``.  Along a label that no slice of a
result needs another slice for, the operator may be cut; along one that only inputs have, its results add up
if the rule says so.  A dimension without a label (None) stays whole.

Exact by construction is what computes every element of its results by the same operations, however long the
tensors are.  Of all else a measurement decides.  On a CPU that is nearly all that calculates: a BLAS blocks a
smaller product otherwise, and vectorized loops have other functions for the last few elements.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from dtr_fx.torch_private import OpOverload, TorchPrivateError, schema_of

Label = int | str
Labels = Sequence[Label | None]


class Made(NamedTuple):
    """The labels of a result's dimensions, and those over which the result is a sum."""

    labels: Labels
    over: frozenset[Label] = frozenset()


class Form(NamedTuple):
    """An operator's tensors in labels.

    ``measured`` are the labels along which a measurement has to say that a cut leaves the bits as they are,
    ``shapes`` arguments that hold sizes, with labels and sizes.  ``leading``: the kernel takes its operands
    for contiguous, so that only cuts of the first dimensions leave slices that it can read.
    """

    reads: Sequence[tuple[Node, Labels]]
    makes: Sequence[Made | None]
    measured: frozenset[Label] = frozenset()
    shapes: Mapping[str, tuple[Labels, Sequence[int]]] = {}
    leading: bool = False


class Call:
    """A node's arguments by name, with defaults, and the shapes of its tensors."""

    def __init__(self, node: Node) -> None:
        arguments = schema_of(node.target).arguments  # type: ignore[arg-type]
        self.name = str(node.target.overloadpacket.__name__)  # type: ignore[union-attr]
        self._node = node
        self.given = {
            argument.name: argument.default_value for argument in arguments if not argument.kwarg_only
        }
        self.given.update(zip(self.given, node.args))
        defaults = {argument.name: argument.default_value for argument in arguments if argument.kwarg_only}
        self.given.update({**defaults, **node.kwargs})
        value = node.meta.get("val")
        self.results: Sequence[Any] = value if isinstance(value, (tuple, list)) else [value]

    def __getitem__(self, name: str) -> Any:
        return self.given[name]

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor argument."""
        return tuple(self.given[name].meta["val"].shape)

    def made(self, number: int = 0) -> tuple[int, ...]:
        """The shape of a result."""
        return tuple(self.results[number].shape)

    def reads_result(self, number: int) -> bool:
        """True if something reads this result of several."""
        return any(user.args[1] == number for user in self._node.users)

    def dim(self, name: str, rank: int) -> int:
        """A dimension among the arguments, counted from the front."""
        return int(self.given[name]) % rank if rank else 0

    def dims(self, name: str, rank: int) -> frozenset[int]:
        """A list of dimensions among the arguments, counted from the front; none given are all."""
        given = self.given[name]
        given = [given] if isinstance(given, int) else given
        return frozenset(dim % rank for dim in given or range(rank)) if rank else frozenset()

    def reads(self, labels: Mapping[str, Labels | None]) -> list[tuple[Node, Labels]]:
        """Those of these arguments that are tensors, with their labels."""
        return [
            (self.given[name], of or ())
            for name, of in labels.items()
            if isinstance(self.given.get(name), Node)
        ]


Rule = Callable[[Call], Form | None]


class Rules(dict[OpOverload, Rule]):
    """A part of the table."""

    def of(
        self, names: str, **facts: Any
    ) -> Callable[[Callable[..., Form | None]], Callable[..., Form | None]]:
        """Enter a rule for these operators; ``TorchPrivateError`` for one that this torch does not have."""

        def enter(rule: Callable[..., Form | None]) -> Callable[..., Form | None]:
            for name in names.split():
                packet, _, overload = name.partition(".")
                try:
                    operator = getattr(getattr(torch.ops.aten, packet), overload or "default")
                except AttributeError as error:
                    raise TorchPrivateError(f"torch.ops.aten.{name}") from error
                self[operator] = functools.partial(rule, **facts)
            return rule

        return enter


def named(count: int, without: Iterable[int] = ()) -> list[Label | None]:
    """A label for every dimension but some: its number."""
    kept = frozenset(without)
    return [None if dim in kept else dim for dim in range(count)]


def broadcast(shape: Sequence[int], result: Sequence[int]) -> list[Label | None]:
    """The labels of an operand, of those of the result; none where it is broadcast."""
    offset = len(result) - len(shape)
    return [dim + offset if size == result[dim + offset] else None for dim, size in enumerate(shape)]


def numbers(count: int) -> frozenset[Label]:
    """The labels of so many dimensions."""
    return frozenset(range(count))
