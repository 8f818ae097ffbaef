"""Results that the loss does not depend on: no zeros are held for them, and gradients are what they were."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import dtr_fx

pytestmark = pytest.mark.little_effort


class Kept(nn.Module):
    """Gives a loss, what each layer made, and views of that, as a language model its logits and its cache."""

    def __init__(self, between: Callable[[Tensor], Tensor] = torch.sin) -> None:
        super().__init__()
        self.between = between
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))

    def forward(self, x: Tensor) -> tuple[Tensor, ...]:
        made = []
        for layer in self.layers:
            x = self.between(layer(x)).tanh()
            made.append(x)
        return x.square().mean(), *made, x.t(), x[:4]


def step(model: nn.Module, compiled: Any, used: tuple[int, ...]) -> list[Tensor | None]:
    model.zero_grad(set_to_none=True)
    x = torch.linspace(-1, 1, 1024 * 64).view(1024, 64).requires_grad_()
    results = compiled(x)
    sum((results[at].sum() for at in used), torch.zeros(())).backward()
    return [x.grad, *(parameter.grad for parameter in model.parameters())]


def same(one: Tensor | None, other: Tensor | None) -> bool:
    """True of zeros, too, where eager has no gradient: AOTAutograd goes through all of a graph."""
    if one is None or other is None:
        left = one if other is None else other
        return left is None or not left.any()
    return torch.equal(one, other)


@pytest.mark.parametrize("options", [None, {"budget": "80%"}])
def test_gradients_are_the_same_whatever_the_loss_depends_on(options: dict[str, Any] | None) -> None:
    torch.manual_seed(0)
    model = Kept()
    compiled = torch.compile(model, backend="dtr", options=options)
    for used in [*itertools.combinations(range(7), 1), (0, 2), (1, 3, 5), tuple(range(7))]:
        assert all(map(same, step(model, compiled, used), step(model, model, used)))


def test_a_loss_beside_other_results_takes_no_more_than_in_eager() -> None:
    model, x = Kept(torch.nn.functional.relu), torch.randn(1024, 64)

    def peak(compiled: Any) -> int:
        def run() -> Any:
            results = compiled(x)
            results[0].backward()
            return results

        run()
        model.zero_grad(set_to_none=True)
        found = dtr_fx.measure_peak(run, device="cpu")
        model.zero_grad(set_to_none=True)
        return found

    eager = peak(model)
    assert (
        peak(torch.compile(model, backend="dtr"))
        <= eager + 4096
        < peak(torch.compile(model, backend="aot_eager"))
    )


def test_a_backward_pass_again_and_of_another_result() -> None:
    torch.manual_seed(0)
    model, x = Kept(), torch.randn(8, 64)
    gradients = []
    for compiled in (model, torch.compile(model, backend="dtr")):
        model.zero_grad(set_to_none=True)
        results = compiled(x)
        results[0].backward(retain_graph=True)
        results[2].sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert all(map(same, *gradients))


def test_inputs_of_other_compiled_steps_and_written_ones() -> None:
    """A step hands on what another made, and writes its input: each backward pass has its own."""

    def first(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sin(), x.cos().exp()

    def second(h: Tensor, other: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h.mul_(2)
        return h.square().sum(), other, h.tanh()

    gradients = []
    for compile_ in (lambda each: each, lambda each: torch.compile(each, backend="dtr")):
        x = torch.linspace(0, 1, 256).requires_grad_()
        h, other = compile_(first)(x)
        loss, _, _ = compile_(second)(h, other)
        loss.backward()
        gradients.append(x.grad)
    assert torch.equal(*gradients)


def test_compiled_autograd_takes_the_zeros() -> None:
    torch.manual_seed(0)
    model, x = Kept(), torch.randn(8, 64)
    compiled = torch.compile(model, backend="dtr")
    gradients = []
    for is_compiled in (False, True):
        model.zero_grad(set_to_none=True)
        with torch._dynamo.config.patch(compiled_autograd=is_compiled):
            torch.compile(lambda: compiled(x)[0].backward(), backend="eager")()
        gradients.append([parameter.grad for parameter in model.parameters()])
    assert all(map(same, *gradients))
