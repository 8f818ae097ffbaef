"""The live interpreter: within its budget while it decides, and the same again when it repeats."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule, symbolic_trace
from torch.fx.experimental.proxy_tensor import make_fx

import dtr_fx
from dtr_fx import DTRInterpreter, InfeasibleBudgetError, measure_peak
from dtr_fx.lab import zoo

pytestmark = pytest.mark.little_effort


def training_step() -> tuple[GraphModule, list[Tensor]]:
    """Loss and gradients of a small GPT with dropout, as one graph."""
    torch.manual_seed(0)
    model, batch = zoo.gpt(layers=2, width=64, length=32)
    names = [name for name, _ in model.named_parameters()]
    parameters = [parameter.detach() for parameter in model.parameters()]

    def step(*given: Tensor) -> list[Tensor]:
        state = {name: value.detach().requires_grad_() for name, value in zip(names, given)}
        loss = torch.func.functional_call(model, state, tuple(given[len(names) :]))
        return [loss, *torch.autograd.grad(loss, list(state.values()))]

    inputs = [*parameters, *batch]
    return make_fx(step)(*inputs), inputs


@pytest.mark.parametrize("budget", ["100%", "80%", "65%"])
def test_a_training_step(budget: str) -> None:
    gm, inputs = training_step()
    with torch.no_grad():
        torch.manual_seed(1)
        expected = gm(*inputs)
        after = torch.get_rng_state()
    interpreter = DTRInterpreter(gm, budget)
    held = sum(x.nbytes for x in inputs)
    for _ in range(2):  # live, then from the rewritten graph
        outputs: list[Tensor] = []
        torch.manual_seed(1)
        peak = measure_peak(lambda outputs=outputs: outputs.extend(interpreter.run(*inputs)))
        assert all(map(torch.equal, outputs, expected))
        assert torch.equal(torch.get_rng_state(), after)
        report = interpreter.report
        assert report is not None
        assert report.planned_peak <= report.budget
        assert peak + held <= 1.02 * report.budget
    assert report.recomputes > 0 or budget == "100%"


def test_the_second_run_repeats_what_the_first_decided() -> None:
    gm, inputs = training_step()
    interpreter = DTRInterpreter(gm, "60%")
    interpreter.run(*inputs)
    report = interpreter.report
    interpreter.run(*inputs)
    assert interpreter.report is report


def test_costs_are_measured() -> None:
    def f(x: Tensor) -> Tensor:
        return (x @ x @ x).sin().sum()

    interpreter = DTRInterpreter(symbolic_trace(f))
    interpreter.run(torch.randn(600, 600))
    assert interpreter.report is not None
    costs = {event.origin: event.cost for event in interpreter.report.events}
    assert len(set(costs.values())) == len(costs)  # no two take the same time
    assert min(costs.values()) > 0


def test_other_shapes_are_run_live_again() -> None:
    gm = symbolic_trace(nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8)))
    interpreter = DTRInterpreter(gm)
    for rows in (4, 9):
        x = torch.randn(rows, 8)
        assert torch.equal(interpreter.run(x), gm(x))
    assert interpreter.report is not None
    assert interpreter.report.constants >= 9 * 8 * 4


def test_writes_and_tuples() -> None:
    def f(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        a = (x * 2).sin()
        y.add_(a)
        values, places = (a + y).max(dim=1)
        first, second = (a * y).split(8, dim=1)
        return values + places, (first.cos() * second.t().sum(0)[:, None]).sum(1)

    x, y = torch.randn(16, 16), torch.randn(16, 16)
    expected = f(x, y.clone())
    for budget in ("100%", "97.1%"):
        given = y.clone()
        assert all(map(torch.equal, DTRInterpreter(symbolic_trace(f), budget).run(x, given), expected))
        assert not torch.equal(given, y)


def test_what_does_not_fit_is_told_with_a_budget_that_does() -> None:
    gm, inputs = training_step()
    with pytest.raises(InfeasibleBudgetError) as caught:
        DTRInterpreter(gm, 10_000).run(*inputs)
    assert isinstance(caught.value, dtr_fx.DTRError)
    assert caught.value.smallest > caught.value.lower_bound > 10_000
