"""Custom functions and hooks that the models of ``random_models`` are made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn


class Scale(torch.autograd.Function):
    """Saves its input and its output."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.sin() * 2
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        x, y = ctx.saved_tensors
        return grad * x.cos() * 2 + y * 0.01


class Dirty(torch.autograd.Function):
    """Writes its input, which is its output, and saves it as it was."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x.clone())
        x.sin_()
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grad * x.cos()


class Parted(torch.autograd.Function):
    """Two outputs, of which one has no gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        signs = x.sign()
        ctx.mark_non_differentiable(signs)
        ctx.save_for_backward(signs)
        return x.abs(), signs

    @staticmethod
    def backward(ctx: Any, grad: Tensor, _: Tensor) -> Tensor:
        (signs,) = ctx.saved_tensors
        return grad * signs


class Part(nn.Module):
    """Three layers, each added to what it reads."""

    def __init__(self, width: int, activation: Callable[[Tensor], Tensor] = nn.functional.gelu) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(3))
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + self.activation(layer(x)).sin()
        return x


class Noise(torch.autograd.Function):
    """Draws in the forward pass, and draws again in the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        mask = torch.rand_like(x)
        ctx.save_for_backward(x, mask)
        return x * mask

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        x, mask = ctx.saved_tensors
        return grad * mask + torch.randn_like(x) * x * 0.01


class AsItIs(torch.autograd.Function):
    """Returns a view of its input and clips the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad.clamp(-0.1, 0.1)


def double(value: Any, *_: Any) -> Any:
    """A hook of a tensor, or of a saved tensor."""
    return value * 2


def copied(value: Tensor) -> Tensor:
    """With the strides as they are, also of what is expanded: with others, kernels round otherwise."""
    shape = value.shape
    for dim, stride in enumerate(value.stride()):
        value = value if stride else value.narrow(dim, 0, min(1, value.shape[dim]))
    made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype).copy_(value)
    return made.expand(shape)


def after_forward(module: Any, inputs: Any, output: Tensor) -> Tensor:
    return output * 1.1


def before_forward(module: Any, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return (inputs[0] + 0.1, *inputs[1:])


def after_backward(module: Any, given: tuple[Tensor, ...], taken: tuple[Tensor, ...]) -> tuple[Any, ...]:
    return tuple(None if grad is None else grad * 0.5 for grad in given)


def after_accumulation(parameter: Tensor) -> None:
    parameter.grad.mul_(0.5)
