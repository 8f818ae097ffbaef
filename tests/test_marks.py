"""What ``torch.utils.checkpoint`` marks is obeyed, and without options no step takes more memory."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

import dtr_fx
from dtr_fx.report import Report

pytestmark = pytest.mark.little_effort

aten = torch.ops.aten


class Blocks(nn.Module):
    def __init__(self, **marks: Any) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Dropout(0.1), nn.Linear(64, 32)) for _ in range(3)
        )
        self.marks = marks

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = (
                x
                + (checkpoint(block, x, use_reentrant=False, **self.marks) if self.marks else block(x)).sin()
            )
        return x.square().sum()


class WithHead(Blocks):
    """Marks all but its head, of which PyTorch's partitioner recomputes some."""

    def __init__(self) -> None:
        super().__init__(preserve_rng_state=True)
        self.head = nn.Linear(32, 256)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False)
        x = x * (x.square().mean(1, keepdim=True) + 1).rsqrt()
        return self.head(x.sin() + x.cos()).log_softmax(1).square().mean()


ALL = {"preserve_rng_state": True}


def selective(policy: Callable[[Any], CheckpointPolicy]) -> dict[str, Any]:
    def choose(_: Any, operator: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        return policy(operator)

    return {"context_fn": functools.partial(create_selective_checkpoint_contexts, choose)}


def step(model: nn.Module, backend: str, **options: Any) -> tuple[list[Tensor], Report | None]:
    torch._dynamo.reset()
    reports: list[Report] = []
    given = (
        {"options": {"on_report": reports.append, "plan_seconds": 0.05, **options}}
        if backend == "dtr"
        else {}
    )
    model.zero_grad()
    torch.manual_seed(1)
    loss = torch.compile(model, backend=backend, **given)(torch.linspace(-1, 1, 256 * 32).view(256, 32))
    loss.backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    return [loss.detach(), *gradients], reports[0] if reports else None


def recomputed(report: Report) -> set[str]:
    return {event.origin for event in report.events if event.kind == "recompute"}


@pytest.mark.parametrize("options", [{}, {"budget": "90%"}, {"budget": "1GiB"}])
def test_no_plan_takes_more_than_the_users_checkpoints(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    marked, plain = Blocks(**ALL), Blocks()
    plain.load_state_dict(marked.state_dict())
    expected, _ = step(marked, "aot_eager_default_partitioner")
    found, report = step(marked, "dtr", **options)
    for ours, theirs in zip(found, expected):
        assert torch.equal(ours, theirs)
    _, unmarked = step(plain, "dtr", budget="100%")
    assert report.planned_peak <= report.budget < 0.8 * unmarked.planned_peak


def test_a_share_is_of_the_peak_with_the_marks() -> None:
    marked = Blocks(**ALL)
    _, whole = step(marked, "dtr", budget="100%")
    _, most = step(marked, "dtr", budget="90%")
    assert most.budget == int(0.9 * whole.budget)


@pytest.mark.parametrize("budget", ["100%", "90%"])
def test_what_must_be_saved_is_not_recomputed(budget: str) -> None:
    def policy(operator: Any) -> CheckpointPolicy:
        return (
            CheckpointPolicy.MUST_SAVE
            if operator == aten.addmm.default
            else CheckpointPolicy.PREFER_RECOMPUTE
        )

    _, report = step(Blocks(**selective(policy)), "dtr", budget=budget)
    assert recomputed(report)
    assert not any(name.startswith("addmm") for name in recomputed(report))


def test_what_must_be_recomputed_is_saved_by_no_plan() -> None:
    def policy(operator: Any) -> CheckpointPolicy:
        must = operator == aten.native_dropout.default
        return CheckpointPolicy.MUST_RECOMPUTE if must else CheckpointPolicy.PREFER_SAVE

    _, report = step(Blocks(**selective(policy)), "dtr", budget="1GiB")
    assert len([name for name in recomputed(report) if name.startswith("native_dropout")]) == 3


def test_a_policy_that_no_plan_keeps_is_an_error() -> None:
    def policy(_: Any) -> CheckpointPolicy:
        return CheckpointPolicy.MUST_SAVE

    with pytest.raises(dtr_fx.InfeasibleBudgetError):
        step(Blocks(**selective(policy)), "dtr", budget="60%")


class Twins(nn.Module):
    """A chain of two operators of one cost, of which a policy prefers to recompute one."""

    def __init__(self, preferred: Any) -> None:
        super().__init__()

        def policy(operator: Any) -> CheckpointPolicy:
            is_preferred = operator == preferred
            return CheckpointPolicy.PREFER_RECOMPUTE if is_preferred else CheckpointPolicy.PREFER_SAVE

        self.weight = nn.Parameter(torch.randn(4096))
        self.marks = selective(policy)

    def region(self, x: Tensor) -> Tensor:
        return x.sin().cos().sin().cos().sin().cos()

    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.region, x * self.weight, use_reentrant=False, **self.marks).sum()


def test_between_equals_what_is_preferred_is_recomputed() -> None:
    for preferred, other in (("sin", "cos"), ("cos", "sin")):
        torch._dynamo.reset()
        reports: list[Report] = []
        options = {"budget": "90%", "on_report": reports.append, "plan_seconds": 0.05}
        model = Twins(getattr(aten, preferred).default)
        torch.compile(model, backend="dtr", options=options)(torch.randn(4096)).backward()
        names = {name.partition("_")[0] for name in recomputed(reports[0])}
        assert preferred in names
        assert other not in names


@pytest.mark.parametrize("make", [Blocks, lambda: Blocks(**ALL), WithHead])
def test_without_options_no_step_takes_more_than_pytorch(make: Callable[[], nn.Module]) -> None:
    x = torch.randn(2048, 32)
    model = make()

    def peak(run: Callable[[Tensor], Tensor]) -> int:
        run(x).backward()
        model.zero_grad()
        measured = dtr_fx.measure_peak(lambda: run(x).backward(), device="cpu")
        model.zero_grad()
        return measured

    torch._dynamo.reset()
    ours = peak(torch.compile(model, backend="dtr"))
    torch._dynamo.reset()
    theirs = peak(torch.compile(model, backend="aot_eager"))
    assert ours <= 1.01 * min(theirs, peak(model))


def test_a_marked_result_is_not_saved() -> None:
    """The caller may let it go: the backward pass makes its own, and what is read on the way to it."""

    def region(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        first = (x @ weight).sigmoid()
        return first, first.view(-1).exp()

    def run(backend: str) -> tuple[list[Tensor], int]:
        torch._dynamo.reset()
        saved: list[Tensor] = []
        inputs = [torch.linspace(-1, 1, 64 * 8).view(64, 8), torch.linspace(0, 1, 8 * 32).view(8, 32)]
        x, weight = (given.requires_grad_() for given in inputs)
        compiled = torch.compile(
            lambda x, weight: checkpoint(region, x, weight, use_reentrant=False), backend=backend
        )
        with torch.autograd.graph.saved_tensors_hooks(
            lambda tensor: (saved.append(tensor), tensor)[1], lambda tensor: tensor
        ):
            first, second = compiled(x, weight)
        (first.square().sum() + second.sin().sum()).backward()
        return [first, second, x.grad, weight.grad], sum(tensor.nbytes for tensor in saved)

    found, nbytes = run("dtr")
    expected, _ = run("aot_eager_default_partitioner")
    assert nbytes == 4 * (64 * 8 + 8 * 32)
    assert all(map(torch.equal, found, expected))


def test_the_backward_pass_may_view_what_is_made_of_a_marked_result() -> None:
    def region(x: Tensor) -> tuple[Tensor, Tensor]:
        first = x.sigmoid()
        return first, first.exp()

    def function(x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        first, second = checkpoint(region, x, use_reentrant=False)
        return first, second @ weight  # whose gradient is of the transposed second

    def run(backend: str) -> list[Tensor]:
        torch._dynamo.reset()
        inputs = [torch.linspace(-1, 1, 64 * 8).view(64, 8), torch.linspace(0, 1, 8 * 32).view(8, 32)]
        x, weight = (given.requires_grad_() for given in inputs)
        first, product = torch.compile(function, backend=backend)(x, weight)
        (first.square().sum() + product.sin().sum()).backward()
        return [first, product, x.grad, weight.grad]

    assert all(map(torch.equal, run("dtr"), run("aot_eager_default_partitioner")))


@pytest.mark.parametrize("hooked", [False, True])
def test_the_end_of_a_region_with_a_hook_is_saved(hooked: bool) -> None:
    def region(x: Tensor) -> Tensor:
        end = x.sin().square()
        if hooked:
            end.register_hook(lambda gradient: 3 * gradient)
        return end

    def function(x: Tensor) -> Tensor:
        return checkpoint(region, x * 2, use_reentrant=False).cos().sum()

    reports: list[Report] = []
    with torch._dynamo.config.patch(compiled_autograd=True):  # else a hook is a function of its own
        torch._dynamo.reset()
        compiled = torch.compile(function, backend="dtr", options={"on_report": reports.append})
        compiled(torch.randn(64, requires_grad=True))
    assert ("pow_1" not in recomputed(reports[0])) == hooked
