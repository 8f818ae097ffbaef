"""Which operator may run slice by slice, along which dimensions, and what becomes of its results.

Requires: concrete sizes in ``meta["val"]``.  The table itself is in ``cut_moves`` and ``cut_sums``: its rules
label the dimensions of what an operator reads and makes, and here the runs of labels are found along which
all of it can be cut.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch.fx import Node

from dtr_fx.passes import cut_moves, cut_sums, rng
from dtr_fx.passes.cut_forms import Call, Form, Labels, Rule
from dtr_fx.passes.effects import may_run_twice, mutated_tensors
from dtr_fx.passes.slices import SUM, Cut, Sum
from dtr_fx.passes.tensors import tensors_of
from dtr_fx.torch_private import OpOverload, schema_of

Arguments = tuple[tuple[Any, ...], dict[str, Any]]  # of a call


class Axis(NamedTuple):
    """One way to run an operator slice by slice: what is cut of its inputs and its results.

    Inputs that are not named are read whole by every slice.  ``results`` has one entry per result, None for
    one that is no tensor, or not defined.  ``extent`` is the number of rows: the product of the sizes of the
    cut dimensions, the same for every cut tensor.  ``measured``: bit for bit only if a measurement says so,
    not by construction; see ``costs.cut_exact``.  ``shapes`` are arguments that hold sizes, cut as well.
    """

    node: Node
    inputs: Mapping[Node, Cut]
    results: tuple[Cut | Sum | None, ...]
    extent: int
    measured: bool
    shapes: Mapping[str, Cut]

    @property
    def is_exact(self) -> bool:
        """True if no result is added up from its slices."""
        return SUM not in self.results

    def arguments(self, rows: int, given: Arguments | None = None) -> Arguments:
        """The node's arguments for a slice of so many rows; nodes stay, and stand for their slices.

        ``given`` are other arguments in their place, as of a cut along another axis.
        """
        given = given or (self.node.args, self.node.kwargs)
        args, kwargs = list(given[0]), dict(given[1])
        for position, argument in enumerate(schema_of(cast(OpOverload, self.node.target)).arguments):
            if argument.name in self.shapes:
                holder: Any = args if position < len(args) else kwargs
                at: Any = position if position < len(args) else argument.name
                holder[at] = _cut(holder[at], self.shapes[argument.name], rows)
        return tuple(args), kwargs


def _cut(given: Any, cut: Cut, rows: int) -> Any:
    return rows if isinstance(given, int) else list(cut.slice_of(given, rows))


_RULES = {**cut_moves.RULES, **cut_sums.RULES}


def axes(node: Node) -> tuple[Axis, ...]:
    """All ways to run the node's operator slice by slice; none if it draws, writes, or has no rule."""
    rule = _rule_of(node.target)
    if rule is None or rng.is_random(node) or not may_run_twice(node) or mutated_tensors(node):
        return ()
    if not all(isinstance(used.meta.get("val"), torch.Tensor) for used in node.all_input_nodes):
        return ()
    tensors = [
        tensor for each in (node, *node.all_input_nodes) for tensor in tensors_of(each.meta.get("val"))
    ]
    if not all(map(_is_plain, tensors)):
        return ()
    form = rule(Call(node))
    if form is None or len(form.makes) != len(_results(node)):
        return ()
    found = (_axis(node, form, chosen) for chosen in dict.fromkeys(_candidates(node, form)))
    return tuple(axis for axis in found if axis is not None)


def _rule_of(target: Any) -> Rule | None:
    if not isinstance(target, OpOverload):
        return None
    is_pointwise = torch.Tag.pointwise in target.tags
    return _RULES.get(target, cut_moves.pointwise if is_pointwise else None)


def is_elementwise(node: Node) -> bool:
    """True if the node's operator computes every element from those at its place."""
    rule = _rule_of(node.target)
    return getattr(rule, "func", rule) is cut_moves.pointwise


def _is_plain(tensor: torch.Tensor) -> bool:
    is_strided = tensor.layout is torch.strided
    return is_strided and all(isinstance(size, int) for size in (*tensor.shape, *tensor.stride()))


def _results(node: Node) -> tuple[Any, ...]:
    value = node.meta.get("val")
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _candidates(node: Node, form: Form) -> Iterator[tuple[Any, ...]]:
    """Runs of labels that are adjacent in some tensor."""
    reads = [(labels, read.meta["val"].shape) for read, labels in form.reads]
    makes = [(made.labels, value.shape) for made, value in _made(node, form)]
    for labels, shape in (*makes, *reads):
        kept = [label for label, size in zip(labels, shape) if size != 1]
        for is_named, run in itertools.groupby(kept, lambda label: label is not None):
            names = [name for name, _ in itertools.groupby(run)] if is_named else []
            for first, last in itertools.combinations(range(len(names) + 1), 2):
                yield tuple(names[first:last])


def _made(node: Node, form: Form) -> list[tuple[Any, torch.Tensor]]:
    pairs = zip(form.makes, _results(node))
    return [(made, value) for made, value in pairs if made is not None and _is_defined(value)]


def _is_defined(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.numel() > 0


class _NoCut(Exception):
    """The labels are not adjacent in a tensor, or only some of them are there."""


def _axis(node: Node, form: Form, chosen: tuple[Any, ...]) -> Axis | None:
    """The axis along these labels, if all that the operator reads and makes can be cut there, or is whole."""
    try:
        reads = [(read, _place(labels, read.meta["val"].shape, chosen)) for read, labels in form.reads]
        results: list[Cut | Sum | None] = []
        for made, value in zip(form.makes, _results(node)):
            if made is None or not _is_defined(value):
                results.append(None)
                continue
            place: Cut | Sum | None = _place(made.labels, value.shape, chosen)
            if place is None and not made.over.issuperset(chosen):
                return None
            results.append(SUM if place is None else place)
        shapes = {name: _place(labels, sizes, chosen) for name, (labels, sizes) in form.shapes.items()}
    except _NoCut:
        return None
    inputs = {read: place for read, place in reads if place is not None}
    if form.leading and any(
        math.prod(read.meta["val"].shape[: at.first]) != 1 for read, at in inputs.items()
    ):
        return None
    if any(inputs.get(read) != place for read, place in reads) or not any(results):
        return None
    extents = {_extent(read.meta["val"].shape, place) for read, place in inputs.items()}
    extents |= {
        _extent(value.shape, place) for value, place in zip(_results(node), results) if isinstance(place, Cut)
    }
    if len(extents) != 1 or extents <= {0, 1}:
        return None
    measured = not form.measured.isdisjoint(chosen) or _has_other_kernels(node)
    cut_shapes = {name: place for name, place in shapes.items() if place is not None}
    return Axis(node, inputs, tuple(results), extents.pop(), measured, cut_shapes)


def _has_other_kernels(node: Node) -> bool:
    """True if the operator calculates on a device whose kernels may go by the alignment of a row."""
    on_cpu = all(tensor.device.type == "cpu" for tensor in tensors_of(node.meta["val"]))
    return node.target in cut_sums.RULES and not on_cpu


def _place(labels: Labels, shape: Sequence[int], chosen: tuple[Any, ...]) -> Cut | None:
    """Where the chosen labels are, side by side and in this order; None where none of them is."""
    at = [place for place, label in enumerate(labels) if label in chosen and shape[place] != 1]
    if not at:
        return None
    between = range(at[0], at[-1] + 1)
    names = tuple(name for name, _ in itertools.groupby(labels[place] for place in at))
    if names != chosen or any(shape[place] != 1 for place in between if place not in at):
        raise _NoCut
    return Cut(at[0], at[-1])


def _extent(shape: Sequence[int], cut: Cut) -> int:
    return math.prod(shape[cut.first : cut.last + 1])
