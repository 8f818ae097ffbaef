"""The operator graph that every static planner works on, made from a program as for the paper's Figure 3.

Checkmate and its relatives know neither views nor operators with several outputs (section 4.3).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import NamedTuple

from dtr_fx.errors import GraphError
from dtr_fx.runtime.program import Call, Instruction, Keep, Output, Program, Release
from dtr_fx.search import lower_bound


class Node(NamedTuple):
    """An operator: ``size`` are the bytes of its result, ``inputs`` the numbers of the operators it reads."""

    name: str
    cost: float
    size: int
    inputs: tuple[int, ...] = ()


@dataclass(frozen=True)
class OperatorGraph:
    """Operators in program order, each with one result; each reads earlier ones only.

    ``backward`` is the number of the first operator of the backward pass, None if there is none.  ``results``
    are the operators whose results have to be there at the end.  ``constants`` are bytes that are there all
    the time; neither costs nor budgets of planners count them.

    Raises ``GraphError`` if an operator reads a later one or itself, a size is no whole number, or a number
    is out of range.

    >>> graph = OperatorGraph("two", (Node("a", 1, 4), Node("b", 2, 1, (0,))), results=frozenset({1}))
    >>> graph.cost, graph.peak
    (3, 5)
    """

    name: str
    nodes: tuple[Node, ...]
    backward: int | None = None
    results: frozenset[int] = frozenset()
    constants: int = 0

    def __post_init__(self) -> None:
        for number, node in enumerate(self.nodes):
            what = f"operator {number} ({node.name})"
            if not all(0 <= source < number for source in node.inputs):
                raise GraphError(f"{what} may read operators before it only: {node}")
            if not (0 <= node.cost < math.inf and isinstance(node.size, Integral) and node.size >= 0):
                raise GraphError(f"{what} needs a cost, and whole bytes, of 0 or more: {node}")
        count, starts = len(self.nodes), self.backward
        if not all(0 <= number < count for number in self.results):
            raise GraphError(
                f"results are numbers of operators, 0 to {count - 1}, not {sorted(self.results)}"
            )
        if starts is not None and not 0 <= starts <= count:
            raise GraphError(f"the backward pass starts at one of the {count} operators, not at {starts}")

    def __len__(self) -> int:
        return len(self.nodes)

    @staticmethod
    def of(program: Program) -> OperatorGraph:
        """The graph of a program: views are their base, outputs are merged, constants are taken out.

        An operator that returns results of the program beside other values becomes two: one of the same cost
        that returns the others, and one that reads it and returns the results at no cost.  One that returns
        views alone adds its cost to the operator that makes their base (C.2); what else it reads is not
        counted as read again.
        """
        storages = program.storages
        kept = {storages[step.tensor] for step in program.instructions if isinstance(step, Keep)}
        nodes: list[Node] = []
        maker: dict[int, int] = {}  # of each storage but the constants
        starts: list[int] = []  # the nodes before each call, and before the end

        def makers(tensors: Iterable[int]) -> dict[int, None]:
            made = (storages[tensor] for tensor in tensors)
            return dict.fromkeys(maker[storage] for storage in made if storage in maker)

        def add(name: str, cost: float, outputs: Sequence[Output], reads: Iterable[int]) -> None:
            maker.update((output.tensor, len(nodes)) for output in outputs)
            nodes.append(Node(name, cost, sum(output.size for output in outputs), tuple(reads)))

        for call in program.calls():
            starts.append(len(nodes))
            fresh = [output for output in call.outputs if output.alias is None]
            if call.outputs and not fresh:
                bases = makers(output.tensor for output in call.outputs)
                for base in bases:
                    nodes[base] = nodes[base]._replace(cost=nodes[base].cost + call.cost / len(bases))
                continue
            results = [output for output in fresh if output.tensor in kept]
            others = [output for output in fresh if output.tensor not in kept]
            add(call.name, call.cost, others or results, makers(call.inputs))
            if others and results:
                add(f"{call.name} results", 0.0, results, [len(nodes) - 1])
        starts.append(len(nodes))
        backward = None if program.backward is None else starts[program.backward]
        return OperatorGraph(program.name, tuple(nodes), backward, frozenset(makers(kept)), program.constants)

    @cached_property
    def users(self) -> tuple[tuple[int, ...], ...]:
        """Of each operator those that read it, in program order."""
        users: list[list[int]] = [[] for _ in self.nodes]
        for number, node in enumerate(self.nodes):
            for source in dict.fromkeys(node.inputs):
                users[source].append(number)
        return tuple(map(tuple, users))

    @cached_property
    def forward(self) -> range:
        """The operators of the forward pass; all of them if there is no backward pass."""
        return range(len(self.nodes) if self.backward is None else self.backward)

    @property
    def cost(self) -> float:
        """The cost of all operators, each run once."""
        return sum(node.cost for node in self.nodes)

    @property
    def peak(self) -> int:
        """The most bytes live at once if each operator runs once, each value freed after its last use."""
        return self.program.peak

    @cached_property
    def floor(self) -> int:
        """Bytes that no plan can do without; see ``dtr_fx.search.lower_bound``."""
        return lower_bound(self.program).nbytes

    @cached_property
    def program(self) -> Program:
        """The program: each value is released after its last use, and the results are kept at the end."""
        last_reader = [max(users, default=number) for number, users in enumerate(self.users)]
        steps: list[Instruction] = []
        for number, node in enumerate(self.nodes):
            steps.append(Call(node.name, node.inputs, (Output(number, node.size),), node.cost))
            read = sorted({*node.inputs, number} - self.results)
            steps += (Release(value) for value in read if last_reader[value] == number)
        return Program(self.name, (*steps, *map(Keep, sorted(self.results))), self.backward)


def training_chain(layers: int) -> OperatorGraph:
    """A chain of layers f_0 … f_{N-1} and its gradients b_{N-1} … b_0, 2N operators of one byte each.

    A layer costs 1.  A gradient reads its layer's result, the result of the layer behind it and the gradient
    of that one, and costs 2; the first, b_{N-1}, reads its layer's result alone and costs 1.

    >>> chain = training_chain(12)
    >>> len(chain), chain.peak, chain.floor, chain.cost
    (24, 14, 4, 35.0)
    """
    if layers < 1:
        raise ValueError(f"layers is {layers}; it must be at least 1")
    last = layers - 1
    nodes = [Node(f"f{layer}", 1.0, 1, (layer - 1,) if layer else ()) for layer in range(layers)]
    nodes.append(Node(f"b{last}", 1.0, 1, (last,)))
    for layer in reversed(range(last)):
        nodes.append(Node(f"b{layer}", 2.0, 1, (layer, layer + 1, len(nodes) - 1)))
    return OperatorGraph(f"chain of {layers}", tuple(nodes), layers, frozenset({2 * layers - 1}))
