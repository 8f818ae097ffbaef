"""A user's functions that raise, or return nonsense: one error that names them, and nothing stays."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from steps import plans_beside
from torch import Tensor, nn

import dtr_fx
from dtr_fx import DTRError, OptionError
from dtr_fx.runtime import Heuristic

pytestmark = pytest.mark.little_effort

QUICK = {"plan_seconds": 0.02}


def layers() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    made = [layer for _ in range(4) for layer in (nn.Linear(32, 32), nn.GELU())]
    return nn.Sequential(*made), torch.randn(256, 32)


def step(**options: Any) -> list[Tensor]:
    """The gradients of a step."""
    torch._dynamo.reset()
    model, x = layers()
    torch.compile(model, backend="dtr", options={**QUICK, **options})(x).sum().backward()
    return [parameter.grad for parameter in model.parameters()]


def bad(*_: Any) -> Any:
    raise ZeroDivisionError("it is mine")


def returns(value: object) -> Callable[..., Any]:
    def mine(*_: Any) -> Any:
        return value

    return mine


NONSENSE = [bad, *map(returns, (None, "much", math.nan))]


@pytest.mark.parametrize("costs", [*NONSENSE, *map(returns, (-1.0, math.inf, True, torch.ones(2)))])
def test_costs_that_are_no_seconds_are_one_error(costs: Callable[..., Any]) -> None:
    with pytest.raises(
        OptionError, match=r"costs.*(bad.* raised ZeroDivisionError: it is mine|mine.* says)"
    ) as told:
        step(budget="60%", costs=costs)
    assert isinstance(told.value.__cause__, ZeroDivisionError) == (costs is bad)
    assert "node" in str(told.value) or costs is bad


@pytest.mark.parametrize("value", [None, "much", -1.0, math.nan])
def test_costs_in_a_mapping_are_checked_too(value: Any) -> None:
    with pytest.raises(OptionError, match=r"says .* for the node addmm"):
        step(budget="60%", costs={torch.ops.aten.addmm.default: value})


@pytest.mark.parametrize("score", [*NONSENSE, returns(np.ones(1000))])
@pytest.mark.parametrize("as_object", [False, True])
def test_scores_that_are_no_numbers_are_one_error(score: Callable[..., Any], as_object: bool) -> None:
    heuristic = Heuristic("mine", lambda: score) if as_object else score
    with pytest.raises(OptionError, match=r"heuristic '(mine|bad)'") as told:
        step(budget="60%", heuristic=heuristic, planner="online")
    assert isinstance(told.value.__cause__, ZeroDivisionError) == (score is bad)


def test_a_heuristic_that_cannot_be_made_is_an_error() -> None:
    with pytest.raises(OptionError, match=r"heuristic 'own'.*bad.* raised"):
        step(budget="60%", heuristic=Heuristic("own", bad), planner="online")


def test_nothing_of_a_plan_that_failed_stays() -> None:
    """The same compiled function works as soon as its callables do, and as one that never failed."""
    answers: dict[str, Any] = {"seconds": None}
    model, x = layers()
    earlier = dtr_fx.plans()
    compiled = torch.compile(
        model, backend="dtr", options={**QUICK, "budget": "60%", "costs": lambda node: answers["seconds"]}
    )
    for _ in range(2):
        with pytest.raises(DTRError, match="costs"):
            compiled(x)
        assert not plans_beside(earlier)
    answers["seconds"] = 1.0
    compiled(x).sum().backward()
    found = [parameter.grad for parameter in model.parameters()]
    wanted = step(budget="60%", costs=lambda node: 1.0)
    assert all(map(torch.equal, found, wanted))


def test_transform_leaves_the_graph_as_it_was() -> None:
    gm = torch.fx.symbolic_trace(lambda x: x.sin().cos().exp().sum() + x.sin().sum())
    before = gm.code
    with pytest.raises(OptionError, match="costs"):
        dtr_fx.transform(gm, 0.6, costs=bad, example_inputs=[torch.ones(1024)])
    assert gm.code == before
    assert not any("val" in node.meta for node in gm.graph.nodes)


def test_an_error_of_the_model_is_the_models() -> None:
    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x.sin()
            raise LookupError("of the model")
            return y

    torch._dynamo.reset()
    with pytest.raises(LookupError, match=r"^of the model") as told:
        torch.compile(Broken(), backend="dtr", options={"budget": "60%"})(torch.ones(8, requires_grad=True))
    assert any(str(entry.path) == __file__ for entry in told.traceback[1:])


@pytest.mark.parametrize(
    "options",
    [
        {"budget": "1%"},
        {"budget": 1},
        {"budgt": 1},
        {"budget": "60%", "costs": bad},
        {"budget": "1%", "executor": "inductor"},
    ],
)
def test_what_we_raise_through_compile_is_a_dtr_error(options: dict[str, Any]) -> None:
    with pytest.raises(DTRError):
        step(**options)


def test_an_on_report_that_raises_is_one_error_and_leaves_no_plan() -> None:
    earlier = dtr_fx.plans()
    with pytest.raises(OptionError, match=r"on_report: .*bad.* raised ZeroDivisionError: it is mine") as told:
        step(budget="60%", on_report=bad)
    assert isinstance(told.value.__cause__, ZeroDivisionError)
    assert not plans_beside(earlier)
