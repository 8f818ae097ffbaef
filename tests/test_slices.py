"""Operators in slices: below the lower bound of the graph as it is, with the same results."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from steps import bits
from torch import Tensor
from torch._functorch.aot_autograd import aot_export_joint_simple
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

import dtr_fx
from dtr_fx import InfeasibleBudgetError, OptionError, Report, measure_peak

pytestmark = pytest.mark.little_effort

WORDS, WIDTH, ROWS = 512, 16, 256


def loss_of_words(x: Tensor, y: Tensor, narrow: Tensor, head: Tensor) -> tuple[Tensor]:
    """A layer, and a loss over more words than it is wide."""
    h = x + F.gelu(x @ narrow)
    return (F.cross_entropy(h @ head.t(), y),)


def loss_in_parts(x: Tensor, y: Tensor, narrow: Tensor, head: Tensor) -> Tensor:
    """Many layers, and a softmax as compilers write it: what it subtracts comes of what it reads."""
    for _ in range(12):
        x = x + F.gelu(x @ narrow)
    scores = x @ head.t()
    scores = scores - scores.amax(1, keepdim=True)
    scores = scores - scores.exp().sum(1, keepdim=True).log()
    return -scores.gather(1, y[:, None]).mean()


def loss_of_images(x: Tensor, y: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor]:
    h = F.conv2d(F.conv2d(x, first, padding=1).relu(), second, padding=1).relu()
    return (F.cross_entropy(h.mean((2, 3)), y),)


@cache
def words(rows: int = ROWS) -> tuple[GraphModule, list[Tensor]]:
    weights = [torch.randn(WIDTH, WIDTH), torch.randn(WORDS, WIDTH)]
    return _joint(loss_of_words, torch.randn(rows, WIDTH), torch.randint(WORDS, (rows,)), weights)


@cache
def images() -> tuple[GraphModule, list[Tensor]]:
    weights = [torch.randn(8, 3, 3, 3), torch.randn(8, 8, 3, 3)]
    return _joint(loss_of_images, torch.randn(16, 3, 24, 24), torch.randint(8, (16,)), weights)


def _joint(loss: Any, x: Tensor, y: Tensor, weights: list[Tensor]) -> tuple[GraphModule, list[Tensor]]:
    given = [x, y, *(weight.requires_grad_() for weight in weights)]
    return aot_export_joint_simple(loss, tuple(given), trace_joint=True), given


def run(gm: GraphModule, inputs: list[Tensor]) -> list[Tensor]:
    """The loss and the gradients."""
    with torch.no_grad():
        made = gm(inputs, [torch.ones(())])
    return [leaf for leaf in torch.utils._pytree.tree_leaves(made) if isinstance(leaf, Tensor)]


def smallest(gm: GraphModule, slices: str) -> int:
    return dtr_fx.smallest_budget(gm, options={"slices": slices, "cache": False})


def planned(gm: GraphModule, budget: float | int, slices: str) -> tuple[GraphModule, Report]:
    return dtr_fx.transform(gm, budget, slices=slices)  # type: ignore[arg-type]


def differ(found: list[Tensor], expected: list[Tensor]) -> float:
    """The largest difference, as a share of the largest number in each tensor."""
    pairs = zip(found, expected)
    return max(float((one - other).abs().max() / other.abs().max()) for one, other in pairs)


@pytest.mark.parametrize("make", [words, images])
@pytest.mark.parametrize("slices", ["exact", "summed"])
def test_a_graph_fits_where_it_did_not(make: Any, slices: str) -> None:
    gm, inputs = make()
    least, whole = smallest(gm, slices), smallest(gm, "off")
    assert least < whole if slices == "summed" else least <= whole
    rewritten, report = planned(gm, least, slices)
    expected, found = run(gm, inputs), run(rewritten, inputs)
    assert differ(found, expected) <= (0 if slices == "exact" else 1e-5)
    if slices == "exact":
        assert list(map(bits, found)) == list(map(bits, expected))
    held = sum(tensor.nbytes for tensor in inputs)
    assert held + measure_peak(lambda: run(rewritten, inputs)) <= least + 64
    assert (report.verdict, report.planned_peak <= least) == ("fits", True)


def test_of_a_large_vocabulary_less_than_half_is_left() -> None:
    gm, _ = words()
    whole = smallest(gm, "off")
    assert smallest(gm, "exact") <= 0.5 * whole
    assert smallest(gm, "summed") <= 0.35 * whole


def test_the_last_slice_may_be_shorter() -> None:
    """251 is a prime number: the equal slices are two, or of two rows."""
    gm, inputs = words(2 * 251)
    least = smallest(gm, "exact")
    rewritten, _ = planned(gm, least, "exact")
    assert least < 0.6 * smallest(gm, "off")
    assert list(map(bits, run(rewritten, inputs))) == list(map(bits, run(gm, inputs)))
    held = sum(tensor.nbytes for tensor in inputs)
    assert held + measure_peak(lambda: run(rewritten, inputs)) <= least + 64


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["GPT2LMHeadModel", "LlamaForCausalLM"])
def test_a_model_of_transformers_fits_in_one_line(kind: str) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    made = getattr(transformers, kind)
    sizes = {"vocab_size": 4096, "hidden_size": 32, "intermediate_size": 64}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 2}
    given = made.config_class(**sizes, pad_token_id=0, use_cache=False)
    model, x = made(given).eval(), torch.randint(1, 4096, (2, 256))
    model.loss_type = "ForCausalLM" if kind.startswith("GPT2") else model.loss_type
    model(input_ids=x, labels=x).loss.backward()
    expected = [weight.grad for weight in model.parameters() if weight.grad is not None]
    model.zero_grad()
    with pytest.raises(InfeasibleBudgetError) as error:
        _compiled(model, "1%", "off")(x)
    smallest = error.value.sliced["exact"]
    assert smallest < 0.6 * error.value.smallest
    _compiled(model, smallest, "exact")(x).backward()
    found = [weight.grad for weight in model.parameters() if weight.grad is not None]
    assert list(map(bits, found)) == list(map(bits, expected))


def _compiled(model: Any, budget: int | str, slices: str) -> Any:
    torch.compiler.reset()
    options = {"budget": budget, "slices": slices, "executor": "eager", "cache": False}
    return torch.compile(lambda x: model(input_ids=x, labels=x).loss, backend="dtr", options=options)


def test_a_region_takes_in_what_lies_between_its_operators() -> None:
    weights = [torch.randn(WIDTH, WIDTH), torch.randn(WORDS, WIDTH)]
    given = torch.randn(ROWS, WIDTH), torch.randint(WORDS, (ROWS,)), *weights
    gm = make_fx(loss_in_parts, tracing_mode="fake")(*given)
    assert smallest(gm, "summed") <= 0.2 * smallest(gm, "off")


def test_the_report_says_what_runs_in_slices_and_whether_results_may_differ() -> None:
    gm, _ = words()
    exact = planned(gm, smallest(gm, "exact"), "exact")[1]
    assert exact.slices
    assert all(region.exact and region.slices > 1 for region in exact.slices)
    assert "in slices" in exact.summary()
    assert "another order" not in exact.summary()
    summed = planned(gm, smallest(gm, "summed"), "summed")[1]
    assert not all(region.exact for region in summed.slices)
    assert "sums in another order" in summed.summary()
    assert any("last bits may differ" in str(region) for region in summed.slices)
    assert Report.from_json(summed.to_json()) == summed


def test_with_room_nothing_is_sliced() -> None:
    gm, _ = words()
    assert planned(gm, 1.0, "summed")[1].slices == ()
    assert planned(gm, smallest(gm, "off"), "off")[1].slices == ()


def test_an_error_names_the_budgets_that_slices_make_work() -> None:
    gm, _ = words()
    with pytest.raises(InfeasibleBudgetError) as off:
        planned(gm, 0.05, "off")
    assert list(off.value.sliced) == ["exact", "summed"]
    assert off.value.smallest > off.value.sliced["exact"] > off.value.sliced["summed"]
    for slices, budget in off.value.sliced.items():
        assert f"but with slices={slices!r}: {budget} bytes" in str(off.value)
        assert planned(gm, budget, slices)[1].verdict == "fits"
    with pytest.raises(InfeasibleBudgetError) as summed:
        planned(gm, 0.05, "summed")
    assert "with slices=" not in str(summed.value)


def test_a_cut_is_none_of_the_option() -> None:
    with pytest.raises(OptionError, match="did you mean 'summed'"):
        planned(words()[0], 0.5, "sumed")


def test_regions_are_recomputed_and_dropped_like_operators() -> None:
    gm, inputs = words()
    budgets = sorted({smallest(gm, "summed"), int(1.2 * smallest(gm, "summed"))})
    for budget in budgets:
        rewritten, report = planned(gm, budget, "summed")
        assert report.planned_peak <= budget
        assert differ(run(rewritten, inputs), run(gm, inputs)) <= 1e-5
