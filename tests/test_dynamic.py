"""Sizes that vary: a plan for each, one compilation for all, and what it costs to find the plan again."""

from __future__ import annotations

import gc
import logging
import tracemalloc
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import dtr_fx
from dtr_fx import InfeasibleBudgetError, Report, measure_peak
from dtr_fx.lab import zoo

FAST = {"planner": "online"}


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*[layer for _ in range(8) for layer in (nn.Linear(32, 32), nn.GELU())])


def compiled(model: nn.Module, *, dynamic: bool | None = None, **options: Any) -> Any:
    torch._dynamo.reset()
    gc.collect()  # plans of models before
    torch._dynamo.utils.counters.clear()
    return torch.compile(model, backend="dtr", dynamic=dynamic, options={**FAST, **options})


def step(model: nn.Module, forward: Any, x: Tensor) -> list[Tensor]:
    model.zero_grad()
    loss = forward(x).square().sum()
    loss.backward()
    return [loss.detach(), *(parameter.grad for parameter in model.parameters())]


def compilations() -> int:
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


@pytest.mark.parametrize(("dynamic", "graphs", "plans"), [(None, 2, 5), (True, 1, 4), (False, 4, 4)])
def test_each_shape_has_its_own_plan(dynamic: bool | None, graphs: int, plans: int) -> None:
    model, reports = mlp(), []
    forward = compiled(model, dynamic=dynamic, budget="80%", on_report=reports.append)
    for rows in (64, 200, 80, 120, 64, 200):
        x = torch.randn(rows, 32)
        assert all(map(torch.equal, step(model, forward, x), step(model, model, x)))
    assert compilations() == graphs
    assert len(reports) == plans  # by default, one more for the first shape when sizes have become symbols
    assert len({report.baseline_peak for report in reports}) == 4
    for report in reports:
        assert report.planned_peak <= report.budget == int(0.8 * report.baseline_peak)
        assert report.recomputes


def traces() -> int:
    return torch._dynamo.utils.counters["aot_autograd"]["total"]


class WithLoss(nn.Module):
    """A model and its loss in one graph."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        loss: Tensor = self.model(x).square().sum()
        return loss


@pytest.mark.parametrize("budget", ["80%", None, 400_000])
def test_sizes_share_a_trace(budget: str | int | None) -> None:
    model, reports = WithLoss(mlp()), []
    forward = compiled(model, dynamic=True, budget=budget, on_report=reports.append)
    constants = sum(parameter.nbytes for parameter in model.parameters())
    for rows in (64, 200, 80, 260, 120, 70):
        x = torch.randn(rows, 32)
        model(x).backward()
        expected = [parameter.grad for parameter in model.parameters()]
        forward(x)  # which traces
        model.zero_grad()
        peak = measure_peak(lambda x=x: forward(x).backward())
        planned = reports[-1].planned_peak
        assert planned - 64 < peak + constants + x.nbytes <= planned <= reports[-1].budget
        assert all(map(torch.equal, expected, (parameter.grad for parameter in model.parameters())))
        model.zero_grad()
    assert len(reports) == 6
    assert traces() == 1


class Checkpointed(nn.Module):
    """Blocks with dropout, of which the user checkpoints each."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Dropout(), nn.Linear(64, 32)) for _ in range(3)
        )

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)
        return x


@pytest.mark.parametrize("budget", [None, "95%"])
def test_checkpointed_blocks_share_a_trace_too(budget: str | None) -> None:
    model, results = Checkpointed(), []
    given: dict[str, Any] = {"options": {"budget": budget, **FAST}}
    for backend, options in (("aot_eager", {}), ("dtr", given)):
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        forward = torch.compile(model, backend=backend, **options)
        for rows in (40, 90, 60, 130):
            torch.manual_seed(rows)
            results.append(step(model, forward, torch.randn(rows, 32)))
    assert traces() == 2  # the first sizes, fixed, and as symbols
    for theirs, ours in zip(results[:4], results[4:]):
        assert all(map(torch.equal, theirs, ours))


class Noisy(nn.Module):
    """A step that writes buffers, draws, and takes one tensor twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))
        self.norm = nn.BatchNorm1d(32)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        kept = []
        for layer in self.layers:
            x = nn.functional.gelu(self.norm(layer(x))) + torch.tensor([0.5])
            kept.append(nn.functional.dropout(x, 0.1, self.training).cos())
        for each in kept:
            x = x + each
        return (x + y).square().mean()


@pytest.mark.parametrize(("evaluates", "budget"), [(False, 570 * 2**10), (True, 240 * 2**10)])
def test_a_longer_batch_has_a_plan_of_its_own_and_no_trace(evaluates: bool, budget: int) -> None:
    torch.manual_seed(0)
    model, results, plans = Noisy().train(not evaluates), [], []
    state = {name: value.clone() for name, value in model.state_dict().items()}
    options = {"budget": budget, "on_report": plans.append, **FAST}
    for backend, given in (("aot_eager", {}), ("dtr", {"options": options})):
        torch._dynamo.reset()
        model.load_state_dict(state)
        forward = torch.compile(model, backend=backend, dynamic=True, **given)
        for rows in (64, 300, 90, 350):
            torch.manual_seed(rows)
            x = torch.randn(rows, 32)
            with torch.set_grad_enabled(not evaluates):
                loss = forward(x, x)
            if not evaluates:
                loss.backward()
            gradients = [parameter.grad for parameter in model.parameters() if not evaluates]
            results.append([loss.detach(), *gradients, *(buffer.clone() for buffer in model.buffers())])
            model.zero_grad()
            if rows == 64:
                traced = traces()
    assert traces() == traced
    for theirs, ours in zip(results[:4], results[4:], strict=True):
        assert all(map(torch.equal, theirs, ours))
    assert all(plan.planned_peak <= budget for plan in plans)
    assert len({plan.recomputes for plan in plans}) > 1


@torch.library.custom_op("dtr_fx_test_dynamic::half", mutates_args=())
def half(x: Tensor) -> Tensor:
    return x / 2


@half.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


def _half_backward(context: Any, gradient: Tensor) -> Tensor:
    return gradient / 2 if gradient.shape[0] < 100 else gradient * 0.5 + 0.0 * gradient.sum()


half.register_autograd(_half_backward)


def test_a_size_that_the_backward_pass_branches_on_is_traced_anew() -> None:
    class Halving(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return half(super().forward(x).sin())

    model = Halving(8, 8)
    forward = compiled(model, dynamic=True, budget="100%")
    for rows in (20, 30, 120, 25, 300, 99, 100):
        x = torch.randn(rows, 8)
        assert all(map(torch.equal, step(model, forward, x), step(model, model, x)))
    assert traces() == 2


def test_a_size_that_the_user_marks() -> None:
    model, reports = mlp(), []
    forward = compiled(model, budget="80%", on_report=reports.append)
    for rows in (64, 200, 80):
        x = torch.randn(rows, 32)
        torch._dynamo.mark_dynamic(x, 0)
        assert all(map(torch.equal, step(model, forward, x), step(model, model, x)))
    assert compilations() == 1
    assert len(reports) == 3


def test_the_same_sizes_in_another_layout_have_a_plan_of_their_own() -> None:
    model = nn.Linear(8, 8)
    forward = compiled(model, dynamic=True)
    for rows in (6, 7):
        plain = torch.randn(rows, 8)
        strided = torch.randn(rows, 16)[:, ::2]
        for x in (plain, strided, plain):
            assert all(map(torch.equal, step(model, forward, x), step(model, model, x)))


def test_floats_that_vary_need_no_plan_of_their_own() -> None:
    layer = nn.Linear(8, 8)
    reports: list[Report] = []

    def scaled(x: Tensor, temperature: float) -> Tensor:
        return (layer(x).sin() * temperature).cos()

    forward = compiled(scaled, on_report=reports.append)
    for temperature in (0.5, 0.6, 0.7, 0.8):
        x = torch.randn(6, 8, requires_grad=True)
        ours = torch.autograd.grad(forward(x, temperature).sum(), x)
        assert torch.equal(*ours, *torch.autograd.grad(scaled(x, temperature).sum(), x))
    assert len(reports) == 2


def test_sizes_share_a_trace_beside_a_float_that_the_graph_depends_on() -> None:
    def scaled(x: Tensor, share: float) -> Tensor:
        return torch.nn.functional.dropout(x.sin(), share).cos()

    forward = compiled(scaled, dynamic=True, budget="100%")
    for rows, share in ((6, 0.5), (9, 0.5), (12, 0.5), (9, 0.25), (20, 0.25)):
        x = torch.randn(rows, 8, requires_grad=True)
        losses = []
        for function in (forward, scaled):
            torch.manual_seed(rows)
            losses.append(function(x, share).sum())
        ours, theirs = (torch.autograd.grad(loss, x) for loss in losses)
        assert torch.equal(*ours, *theirs)
    assert traces() < 5


def test_a_shape_that_does_not_fit_leaves_the_others_working() -> None:
    model = mlp()
    forward = compiled(model, dynamic=True, budget=350_000)
    for _ in range(2):
        for rows in (64, 128, 2000, 100):
            x = torch.randn(rows, 32)
            if rows == 2000:
                with pytest.raises(InfeasibleBudgetError) as caught:
                    forward(x)
                assert caught.value.asked == 350_000 < caught.value.smallest
            else:
                assert all(map(torch.equal, step(model, forward, x), step(model, model, x)))
    assert compilations() == 1


def test_the_last_plans_used_are_kept() -> None:
    model, reports = mlp(), []
    forward = compiled(model, dynamic=True, plans_kept=2, on_report=reports.append)
    made = []
    for rows in (10, 20, 10, 30, 10, 20):
        forward(torch.randn(rows, 32))
        made.append(len(reports))
    assert made == [1, 2, 2, 3, 3, 4]
    kept = [plan for plan in dtr_fx.plans() if any(report in reports for report in plan.reports)]
    assert [list(plan.sizes.values()) for plan in kept] == [[10], [20]]


def test_what_is_alive_is_listed_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    model = mlp()
    forward = compiled(model)
    before = {id(plan) for plan in dtr_fx.plans()}  # what tests before have left in Dynamo
    with caplog.at_level(logging.INFO, logger="dtr_fx.compiler.dispatch"):
        for rows in (10, 20, 30):
            step(model, forward, torch.randn(rows, 32))
    told = [record.getMessage() for record in caplog.records if record.name == "dtr_fx.compiler.dispatch"]
    static, first, second = told
    assert "[0/0] all sizes fixed: fits: peak" in static
    assert "[0/1]" in first
    assert "size mismatch at index 0. expected 10, actual 20" in first
    assert "20 → 30" in second
    alive = [plan for plan in dtr_fx.plans() if id(plan) not in before]
    assert sorted(told) == sorted(map(str, alive))
    del alive
    del forward
    torch._dynamo.reset()
    gc.collect()
    assert {id(plan) for plan in dtr_fx.plans()} <= before


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    model = mlp()
    forward = compiled(model, dynamic=True)
    for rows in (10, 20):
        step(model, forward, torch.randn(rows, 32))
    assert capfd.readouterr() == ("", "")


def test_a_known_shape_is_looked_up() -> None:
    reports: list[dtr_fx.Report] = []
    forward = compiled(nn.Linear(2, 2), dynamic=True, budget=10**6, on_report=reports.append)
    for _ in range(3):
        for rows in (3, 4, 5):
            forward(torch.randn(rows, 2))
    assert len(reports) == 3


@pytest.mark.slow
def test_random_shapes_leave_nothing_behind_beyond_the_plans_kept(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="dtr_fx")  # pytest keeps each record, and with it a plan
    model = nn.Sequential(nn.Linear(8, 8), nn.GELU())
    forward = compiled(model, dynamic=True, plans_kept=3, budget=10**6)
    sizes = torch.randint(2, 16, (100,), generator=torch.Generator().manual_seed(0)).tolist()
    held = []
    for number, rows in enumerate(sizes):
        if number == 60:  # what torch keeps of the last compilations and of each size is there by now
            tracemalloc.start()
        step(model, forward, torch.randn(rows, 8))
        if number in (75, 99):
            held.append(_held())
    tracemalloc.stop()
    before, after = held
    assert after.objects < before.objects + 250
    # Torch keeps timings of each compilation, and tracemalloc the name of each file.
    assert after.python < before.python + 100_000
    assert after.tensors == before.tensors


class Held(NamedTuple):
    """Objects, and bytes of Python's and of tensors."""

    objects: int
    python: int
    tensors: int


def test_sizes_without_end_leave_no_more_than_some_results_of_operators(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dtr_fx.compiler.dynamo._MOST_RESULTS", 100)
    layer = nn.Linear(8, 8)
    forward = compiled(layer, dynamic=True, plans_kept=1)
    known = []
    for rows in range(2, 32):
        step(layer, forward, torch.randn(rows, 8))
        known.append(FakeTensorMode.cache_info().size)
    assert max(known[1:]) < 200


def _held() -> Held:
    gc.collect()
    everything = gc.get_objects()
    tensors = (
        value for value in everything if issubclass(type(value), Tensor) and type(value) is not FakeTensor
    )
    storages = (tensor.untyped_storage() for tensor in tensors)
    sizes = {storage._cdata: storage.nbytes() for storage in storages}
    return Held(len(everything), tracemalloc.get_traced_memory()[0], sum(sizes.values()))


@pytest.mark.slow
def test_a_gpt_on_sequences_of_many_lengths() -> None:
    torch.manual_seed(0)
    model, (tokens, targets) = zoo.gpt(layers=2, length=64)
    lengths = [64, 17, 50]
    reports: list[Report] = []
    budget = 10_000_000
    forward = compiled(model, budget=budget, on_report=reports.append)
    constants = sum(parameter.nbytes for parameter in model.parameters())
    for length in (*lengths, *lengths):
        batch = tokens[:, :length].contiguous(), targets[:, :length].contiguous()
        model.zero_grad()
        torch.manual_seed(length)
        peak = measure_peak(lambda batch=batch: forward(*batch).backward())
        assert peak + constants + sum(x.nbytes for x in batch) <= budget
    assert compilations() == 2
    assert len(reports) == len(lengths) + 1  # the first length, fixed and as one of many
    assert max(report.baseline_peak for report in reports) > 1.3 * budget


def test_a_new_shape_under_a_profiler() -> None:
    """Operators are measured under a profile, of which there can be but one."""
    model = nn.Sequential(nn.Conv1d(3, 5, 3), nn.GELU())
    forward = compiled(model, dynamic=True)
    for length in (20, 30):
        x = torch.randn(2, 3, length)
        with torch.profiler.profile(profile_memory=True) as profiler:
            ours = step(model, forward, x)
        assert all(map(torch.equal, ours, step(model, model, x)))
        assert any(event.key == "aten::gelu_backward" for event in profiler.key_averages())


def test_reports_say_which_size_changed() -> None:
    reports: list[Report] = []
    forward = compiled(mlp(), on_report=reports.append, dynamic=True)
    for rows in (10, 20):
        forward(torch.randn(rows, 32)).sum().backward()
    assert reports[0].trigger == ""
    assert reports[1].trigger.endswith("10 → 20")
