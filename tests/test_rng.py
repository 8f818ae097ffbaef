"""Recomputed randomness draws what it drew first, however often, and leaves the generator as it was.

The reference is the same step under ``aot_eager``, which does not know of dtr.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from steps import bits
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, symbolic_trace
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel

import dtr_fx
from dtr_fx import InfeasibleBudgetError, Report
from dtr_fx.passes import rng

pytestmark = pytest.mark.little_effort

WIDTH = 32
ROWS = 2048
NEEDS_CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, NEEDS_CUDA])]

Noise = Callable[[Tensor], Tensor]


@pytest.fixture(autouse=True)
def reproducible(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """On CUDA, kernels that add in the same order each time; without them no two runs agree."""
    if "device" not in request.fixturenames or request.getfixturevalue("device") == "cpu":
        yield
        return
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    with sdpa_kernel(SDPBackend.MATH):
        yield
    torch.use_deterministic_algorithms(False)


def attention(x: Tensor) -> Tensor:
    heads = x.view(ROWS // 32, 4, 32, WIDTH // 4)
    return F.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.3).reshape(x.shape)


NOISES: dict[str, Noise] = {
    "dropout": lambda x: F.dropout(x, 0.3),
    "rand_like": lambda x: x * torch.rand_like(x),
    "randn_like": lambda x: x + torch.randn_like(x),
    "bernoulli": lambda x: x * torch.bernoulli(x.detach().sigmoid()),
    "randperm": lambda x: x[torch.randperm(len(x), device=x.device)] * x,
    "attention with dropout": attention,
    "feature dropout": lambda x: F.dropout2d(x.view(-1, 4, 8, 8), 0.3).view(x.shape),
    "alpha dropout": lambda x: F.alpha_dropout(x, 0.3, training=True),
    "rrelu": lambda x: F.rrelu(x, training=True),
    "gumbel softmax": lambda x: F.gumbel_softmax(x, dim=1) * x,
    "normal": lambda x: x * torch.normal(x.detach(), 1.0),
    "multinomial": lambda x: x * x.gather(1, torch.multinomial(x.detach().sigmoid(), 1)),
}


FEW = ("dropout", "randperm", "normal")


class Noisy(nn.Module):
    """Linear layers with noise between them."""

    def __init__(self, noise: Noise) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(5))
        self.noise = noise

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = self.noise(layer(x).tanh()).sin()
        return x.square().mean()


class OneMask(nn.Module):
    """A mask that is drawn once and read by every layer."""

    def __init__(self, draw: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(8))
        self.draw = draw

    def forward(self, x: Tensor) -> Tensor:
        mask = self.draw(x)
        for layer in self.layers:
            x = (layer(x * mask).tanh().sin() + x).cos()
        return x.square().mean()


@dataclass(frozen=True)
class Step:
    """What one training step leaves behind, to the bit, and the plans behind it."""

    loss: Any
    gradients: list[Any]
    generators: list[Any]
    reports: list[Report]

    @property
    def left_behind(self) -> tuple[Any, ...]:
        return self.loss, self.gradients, self.generators

    @property
    def replays(self) -> Counter[str]:
        """How often each random operator was recomputed; it is the one computed after its state was saved."""
        counted: Counter[str] = Counter()
        for report in self.reports:
            computed = [event.name for event in report.events if event.kind == "compute"]
            random = {after for name, after in pairwise(computed) if name.startswith("save_state")}
            recomputed = (event.origin for event in report.events if event.kind == "recompute")
            counted.update(origin for origin in recomputed if origin in random)
        return counted


def step(
    make: Callable[[], nn.Module],
    device: str,
    budget: float | int | None = None,
    **chosen: Any,
) -> Step:
    """A step from seed 0, by dtr under a budget or else by aot_eager; the second, after compilation."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    model = make().to(device)
    x = torch.randn(ROWS, WIDTH, device=device)
    reports: list[Report] = []
    if budget is None:
        compiled = torch.compile(model, backend="aot_eager")
    else:
        options = {"budget": budget, "plan_seconds": 0.1, "on_report": reports.append, **chosen}
        compiled = torch.compile(model, backend="dtr", options=options)
    compiled(x).backward()
    model.zero_grad()
    torch.manual_seed(1)
    loss = compiled(x)
    loss.backward()
    return Step(
        bits(loss.cpu()),
        [bits(parameter.grad.cpu()) for parameter in model.parameters()],
        generators(),
        reports,
    )


def smallest_budget(make: Callable[[], nn.Module], device: str, **chosen: Any) -> int:
    with pytest.raises(InfeasibleBudgetError) as caught:
        step(make, device, 1, **chosen)
    return caught.value.smallest


def generators() -> list[Any]:
    states = [torch.get_rng_state()]
    if torch.cuda.is_available():
        states.append(torch.cuda.get_rng_state())
    return [bits(state) for state in states]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "noise", [pytest.param(noise, marks=[pytest.mark.slow] * (noise not in FEW)) for noise in NOISES]
)
def test_gradients_are_those_of_one_draw(noise: str, device: str) -> None:
    def make() -> nn.Module:
        return Noisy(NOISES[noise])

    expected = step(make, device)
    # The search avoids replays where it can.
    chosen = {"planner": "online", "heuristic": "lru"}
    smallest = smallest_budget(make, device, **chosen)
    whole = step(make, device, 1.0)
    (peak,) = [report.baseline_peak for report in whole.reports]
    assert whole.left_behind == expected.left_behind
    replays: Counter[str] = Counter()
    for budget in (smallest, (smallest + peak) // 2):
        found = step(make, device, budget, **chosen)
        assert found.left_behind == expected.left_behind
        replays += found.replays
    assert replays.total() > 0


@pytest.mark.parametrize("device", DEVICES)
def test_noise_drawn_anew_would_be_noticed(device: str) -> None:
    """The gradients do depend on the draws: another seed, other gradients."""
    torch.manual_seed(0)
    model = Noisy(NOISES["dropout"]).to(device)
    x = torch.randn(ROWS, WIDTH, device=device)
    gradients = []
    for seed in (1, 1, 2):
        model.zero_grad()
        torch.manual_seed(seed)
        model(x).backward()
        gradients.append([bits(parameter.grad.cpu()) for parameter in model.parameters()])
    assert gradients[0] == gradients[1] != gradients[2]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "draw",
    [
        pytest.param(
            lambda x: torch.bernoulli(torch.full_like(x, 0.5)), id="bernoulli", marks=pytest.mark.slow
        ),
        pytest.param(lambda x: torch.rand_like(x), id="rand_like", marks=pytest.mark.slow),
        pytest.param(lambda x: F.dropout(torch.ones_like(x), 0.5), id="dropout"),
    ],
)
def test_one_mask_recomputed_again_and_again(draw: Callable[[Tensor], Tensor], device: str) -> None:
    def make() -> nn.Module:
        return OneMask(draw)

    online = {"planner": "online", "heuristic": "lru"}
    found = step(make, device, smallest_budget(make, device, **online), **online)
    assert found.left_behind == step(make, device).left_behind
    assert max(found.replays.values()) >= 2


# --- transform ----------------------------------------------------------------------------------------------


def phases(draw: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A program that draws once and reads the draw in four phases, each of which needs all the memory."""

    def run(x: Tensor) -> Tensor:
        noise = draw(x)
        total = x.sum()
        for number in range(4):
            a = (x + number).sin()
            b = a.cos()
            c = b.exp()
            d = (a * b * c * x).sum()
            total = total + d + (noise * noise.exp()).sum() + torch.rand_like(x).sum()
        return total

    return run


DRAWS: dict[str, Callable[[Tensor], Tensor]] = {
    "rand_like": torch.rand_like,
    "method": lambda x: x.bernoulli(0.5),
    "randperm": lambda x: torch.randperm(x.numel()).view_as(x),
    "normal": lambda x: torch.normal(x, 1.0),
}


@pytest.mark.parametrize("draw", DRAWS)
def test_a_draw_in_a_graph_of_aten_operators(draw: str) -> None:
    x = torch.rand(512, 512)
    check_replays(make_fx(phases(DRAWS[draw]))(x), x, None)


@pytest.mark.parametrize("draw", [*DRAWS, "dropout"])
def test_a_draw_in_a_graph_of_functions(draw: str) -> None:
    x = torch.rand(512, 512)
    check_replays(symbolic_trace(phases(DRAWS.get(draw, F.dropout))), x, [x])


def test_a_draw_of_a_module() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.noise = nn.Dropout(0.5)

        def forward(self, x: Tensor) -> Tensor:
            return phases(self.noise)(x)

    x = torch.rand(512, 512)
    check_replays(symbolic_trace(Model()), x, [x])


def check_replays(gm: GraphModule, x: Tensor, example: list[Tensor] | None) -> None:
    with pytest.raises(InfeasibleBudgetError) as caught:
        dtr_fx.transform(gm, 1, example_inputs=example)
    rewritten, report = dtr_fx.transform(gm, caught.value.smallest, example_inputs=example)
    assert max(Step(None, [], [], [report]).replays.values()) >= 2
    results = []
    for graph in (gm, rewritten, rewritten):
        torch.manual_seed(7)
        results.append((bits(graph(x)), generators()))
    assert results[0] == results[1] == results[2]


def test_an_operator_with_a_generator_of_its_own_runs_once() -> None:
    root = nn.Module()
    root.generator = torch.Generator()
    graph = Graph()
    x = graph.placeholder("x")
    noise = graph.call_function(torch.bernoulli, (x,), {"generator": graph.get_attr("generator")})
    values = [noise]
    for _ in range(5):
        values.append(graph.call_method("sin", (values[-1],)))
    total = graph.call_method("sum", (values[-1],))
    for value in reversed(values):
        total = graph.call_function(torch.add, (total, graph.call_method("sum", (value,))))
    graph.output(total)
    gm = GraphModule(root, graph)
    x = torch.rand(512, 512)
    with pytest.raises(InfeasibleBudgetError) as caught:
        dtr_fx.transform(gm, 1, planner="online", example_inputs=[x])
    smallest = caught.value.smallest
    rewritten, report = dtr_fx.transform(gm, smallest, planner="online", example_inputs=[x])
    assert report.recomputes > 0
    results = []
    for graph_module in (gm, rewritten):
        root.generator.manual_seed(3)
        torch.manual_seed(3)
        results.append((bits(graph_module(x)), bits(root.generator.get_state()), generators()))
    assert results[0] == results[1]


# --- the replay itself --------------------------------------------------------------------------------------


def attend(x: Tensor) -> Tensor:
    heads = x.view(2, 5, 10, 16)
    return F.scaled_dot_product_attention(heads, heads, heads, dropout_p=0.5)


REPLAYED: dict[str, tuple[Any, Callable[[Tensor], Any]]] = {
    "operator": (torch.ops.aten.rand_like.default, torch.rand_like),
    "operator with two results": (torch.ops.aten.native_dropout.default, lambda x: F.dropout(x, 0.5)),
    "function": ("torch:bernoulli", torch.bernoulli),
    "function of Python": ("torch.nn.functional:dropout", F.dropout),
    "function of one's own": (attend, attend),
    "method": (".bernoulli", torch.bernoulli),
    "module": (nn.Dropout(0.5), F.dropout),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("target", REPLAYED)
def test_replays_draw_the_same_and_leave_the_generator_alone(target: str, device: str) -> None:
    called, direct = REPLAYED[target]
    x = torch.rand(1600, device=device)
    arguments = (0.5, True) if target == "operator with two results" else ()
    torch.manual_seed(0)
    state = rng.save_state(device)
    first = direct(x)
    for number in range(5):
        torch.rand(number, device=device)  # the program goes on drawing between replays
        before = generators()
        again = rng.replay(state, device, called, x, *arguments)
        assert torch.equal(again[0] if isinstance(again, tuple) else again, first)
        assert generators() == before


def test_a_replay_that_fails_leaves_the_generator_alone() -> None:
    torch.manual_seed(0)
    state = rng.save_state("cpu")
    torch.rand(3)
    before = generators()
    with pytest.raises(RuntimeError):
        rng.replay(state, "cpu", torch.ops.aten.bernoulli.default, torch.full((3,), math.pi))
    assert generators() == before


def test_without_a_budget_a_step_in_which_no_draw_can_be_repeated_is_left_as_it_is() -> None:
    """A recompute would need a saved state of the generator, which is larger than all else."""

    def run(function: Callable[..., Any]) -> list[Tensor]:
        torch.manual_seed(0)
        x = torch.linspace(-2, -1, 16, requires_grad=True)
        changed, noise = function(x.clone())
        (changed * noise).sum().backward()
        return [changed, noise, x.grad]

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        noise = torch.ones_like(x)
        torch.ops.aten.rrelu_with_noise_(x, noise, 0.2, 0.8, True)
        return x, noise

    torch._dynamo.reset()
    assert all(map(torch.equal, run(torch.compile(function, backend="dtr")), run(function)))
