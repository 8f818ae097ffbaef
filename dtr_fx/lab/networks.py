"""Synthetic networks: training steps, forward and backward, of known shape."""

from __future__ import annotations

import random
from collections.abc import Container, Iterator, Sequence
from itertools import count
from typing import NamedTuple

from dtr_fx.runtime.program import Call, Instruction, Keep, Output, Program, Release

_SUM_COST = 1.0


class Layer(NamedTuple):
    """A forward operator: ``parents`` are the numbers of the operators whose outputs it reads."""

    name: str
    parents: tuple[int, ...]
    cost: float = 1.0
    size: int = 1


def training_step(name: str, layers: Sequence[Layer], *, backward_cost: float = 2.0) -> Program:
    """The forward pass over ``layers``, in which parents come first, and the backward pass of them all.

    The gradient operator of f reads what f read and the gradient of f's output, and returns a gradient for
    each input of f, at ``backward_cost`` times its cost.  Where a value has several readers, their gradients
    are added up as they come, a sum for 1.  Every tensor is released after its last use.

    Outputs that no operator reads are the network's own: the backward pass starts from them and reads neither
    them nor a gradient of them.  The gradient operator of an operator without inputs returns the gradient of
    its parameters, which is kept from then on.

    >>> step = training_step("pair", [Layer("f", ()), Layer("g", (0,))])
    >>> [(call.name, call.inputs, call.outputs[0].tensor) for call in step.calls()]
    [('f', (), 0), ('g', (0,), 1), ('g backward', (0,), 2), ('f backward', (2,), 3)]
    """
    if not layers:
        raise ValueError("a network needs at least one layer")
    if backward_cost < 0:
        raise ValueError(f"backward_cost is {backward_cost}; it must not be negative")
    forward = []
    for number, (operator, parents, cost, size) in enumerate(layers):
        if not all(0 <= parent < number for parent in parents):
            raise ValueError(f"layer {number} reads {parents}; parents must come before it")
        if cost < 0 or size < 0:
            raise ValueError(f"layer {number} has cost {cost} and size {size}; neither may be negative")
        forward.append(Call(operator, parents, (Output(number, size),), float(cost)))
    backward, results = _backward(layers, backward_cost)
    return Program(name, tuple(_released([*forward, *backward], results)), backward=len(forward))


def _backward(layers: Sequence[Layer], backward_cost: float) -> tuple[list[Call], set[int]]:
    """The calls of the backward pass, and the gradients of parameters among their outputs."""
    calls: list[Call] = []
    results: set[int] = set()
    gradients: dict[int, int] = {}
    fresh = count(len(layers))

    def emit(name: str, inputs: tuple[int, ...], like: Sequence[int], cost: float) -> tuple[int, ...]:
        outputs = tuple(Output(next(fresh), layers[number].size) for number in like)
        calls.append(Call(name, inputs, outputs, cost))
        return tuple(output.tensor for output in outputs)

    for number in reversed(range(len(layers))):
        layer = layers[number]
        inputs = (*layer.parents, gradients[number]) if number in gradients else layer.parents
        of = tuple(dict.fromkeys(layer.parents)) or (number,)
        made = emit(f"{layer.name} backward", inputs, of, backward_cost * layer.cost)
        if not layer.parents:
            results.update(made)
            continue
        for parent, gradient in zip(of, made):
            if parent in gradients:
                [gradient] = emit("sum", (gradients[parent], gradient), [parent], _SUM_COST)
            gradients[parent] = gradient
    return calls, results


def _released(calls: Sequence[Call], results: Container[int]) -> Iterator[Instruction]:
    """The calls; after its last use each tensor is released, or kept if it is a result."""
    last: dict[int, int] = {}
    for number, call in enumerate(calls):
        last.update(dict.fromkeys(_touched(call), number))
    for number, call in enumerate(calls):
        yield call
        for tensor in _touched(call):
            if last[tensor] == number:
                yield Keep(tensor) if tensor in results else Release(tensor)


def _touched(call: Call) -> list[int]:
    """The call's tensors, newest first: a gradient is released before the values it was computed from."""
    return sorted({*call.inputs, *(output.tensor for output in call.outputs)}, reverse=True)


def linear(n: int) -> Program:
    """The linear feedforward network of Theorem 3.1 and Appendix A: ``n`` unit operators each way.

        t_1 = f_1()          t̂_N = f̂_N(t_{N-1})
        t_i = f_i(t_{i-1})   t̂_i = f̂_i(t_{i-1}, t̂_{i+1})   t̂_1 = f̂_1(t̂_2)

    >>> linear(100).cost, linear(100).peak
    (200.0, 100)
    """
    _at_least(1, n=n)
    layers = [Layer("f1", ()), *(Layer(f"f{number + 1}", (number - 1,)) for number in range(1, n))]
    return training_step(f"linear({n})", layers, backward_cost=1.0)


def residual(n: int) -> Program:
    """A chain of ``n`` residual blocks x → g(x, f(x)), every tensor of 1 byte; f costs 4 and g 1."""
    _at_least(1, n=n)
    layers = [Layer("input", ())]
    for block in range(n):
        layers += [Layer(f"f{block}", (2 * block,), cost=4), Layer(f"g{block}", (2 * block, 2 * block + 1))]
    return training_step(f"residual({n})", layers)


def unet(depth: int) -> Program:
    """A U-shaped network: ``depth`` levels down and up again, each joined by a skip to its other side.

    A level down halves tensors, to 1 byte at the bottom; convolutions cost 4, resampling costs 1.
    """
    _at_least(1, depth=depth)
    layers = [Layer("input", (), size=2**depth)]

    def add(name: str, *skip: int, cost: float = 1.0, size: int = 1) -> None:
        layers.append(Layer(name, (len(layers) - 1, *skip), cost, size))

    for level in range(depth):
        size = 2 ** (depth - level)
        add(f"down{level}", cost=4, size=size)  # number 2 · level + 1
        add(f"pool{level}", size=size // 2)
    add("bottom", cost=4)
    for level in reversed(range(depth)):
        size = 2 ** (depth - level)
        add(f"upsample{level}", size=size)
        add(f"up{level}", 2 * level + 1, cost=4, size=size)
    return training_step(f"unet({depth})", layers)


def tree(depth: int) -> Program:
    """A binary tree over 2^``depth`` leaves, reduced from left to right; costs and sizes are 1."""
    _at_least(0, depth=depth)
    layers: list[Layer] = []

    def reduce(level: int) -> int:
        parents = (reduce(level - 1), reduce(level - 1)) if level else ()
        layers.append(Layer("cell" if level else "leaf", parents))
        return len(layers) - 1

    reduce(depth)
    return training_step(f"tree({depth})", layers)


def random_dag(n: int, seed: int = 0, *, fan_in: int = 3) -> Program:
    """``n`` operators that read up to ``fan_in`` of those before them, with costs and sizes from 1 to 10."""
    _at_least(1, n=n, fan_in=fan_in)
    dice = random.Random(seed)
    layers = [
        Layer(
            f"f{number}",
            tuple(dice.sample(range(number), min(dice.randint(0, fan_in), number))),
            cost=dice.randint(1, 10),
            size=dice.randint(1, 10),
        )
        for number in range(n)
    ]
    return training_step(f"random_dag({n}, {seed})", layers)


def _at_least(least: int, **arguments: int) -> None:
    for name, value in arguments.items():
        if value < least:
            raise ValueError(f"{name} is {value}; it must be at least {least}")
