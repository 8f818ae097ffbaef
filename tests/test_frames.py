"""What Dynamo leaves uncompiled under a budget is said aloud, and recurrent modules are compiled."""

import copy
import inspect
import logging

import pytest
import torch
from torch import Tensor, nn

import dtr_fx
from dtr_fx.errors import UncompiledError

pytestmark = pytest.mark.little_effort

UNDER = {"budget": "100%", "plan_seconds": 0.02}
TIGHT = {"max_overhead": "10%", "plan_seconds": 0.02}


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.cells, self.head = kind(8, 8, batch_first=True), nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.cells(x)[0]).sum()


class BreakInLoop(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(2):
            x = self.layer(x).relu()
            torch._dynamo.graph_break()
        return x.sum()


class BreakOnce(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = x.cos()
        torch._dynamo.graph_break()
        return x.exp()


class Disabled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.layer.forward = torch.compiler.disable(self.layer.forward)  # type: ignore[method-assign]

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x.sin()).sum()


class BreakInSequence(nn.Module):
    def __init__(self, *others: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(BreakOnce(), *others)

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x.sin()).sum()


class SelectsByValue(nn.Module):
    """How much is selected is known when the step runs, so Dynamo breaks the graph there."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x).tanh()
        return h.masked_select(h > 0).sin().sum()


@pytest.fixture(autouse=True)
def _afresh() -> None:
    torch._dynamo.reset()


def line_of(function: object, text: str) -> int:
    lines, first = inspect.getsourcelines(function)  # type: ignore[arg-type]
    return first + next(number for number, line in enumerate(lines) if text in line)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM, nn.RNN])
def test_a_recurrent_module_is_planned(kind: type[nn.RNNBase]) -> None:
    torch.manual_seed(0)
    model, x, reports = Recurrent(kind), torch.randn(4, 5, 8), []
    model(x).backward()
    expected = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    compiled = torch.compile(
        model, backend="dtr", options={**TIGHT, "on_report": reports.append, "strict": True}
    )
    compiled(x).backward()
    assert len(reports) == 1
    assert reports[0].planned_peak < reports[0].baseline_peak
    torch.testing.assert_close([parameter.grad for parameter in model.parameters()], expected)


@pytest.mark.parametrize("batch_first", [False, True])
@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM, nn.RNN])
def test_between_the_layers_of_a_recurrent_module_is_its_dropout(
    kind: type[nn.RNNBase], batch_first: bool
) -> None:
    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cells = kind(8, 8, 2, dropout=0.5, bidirectional=batch_first, batch_first=batch_first)

        def forward(self, x: Tensor) -> Tensor:
            return self.cells(x)[0].square().sum()

    torch.manual_seed(0)
    model, x = Deep(), torch.randn(3, 3, 8)
    options = {"budget": "1GiB", "planner": "online", "strict": True}
    compiled = torch.compile(model, backend="dtr", options=options)
    for seed in (1, 2):
        found = []
        for function in (model, compiled):
            torch.manual_seed(seed)
            model.zero_grad()
            loss = function(x)
            loss.backward()
            found.append([loss.detach(), *(parameter.grad for parameter in model.parameters())])
        torch.testing.assert_close(*found)


def test_other_backends_trace_recurrent_modules_as_before() -> None:
    called = []  # from torch 2.15 on, what comes after the module

    def backend(gm, _):
        called.extend(str(node.target) for node in gm.graph.nodes)
        return gm

    torch.compile(Recurrent(nn.GRU), backend=backend)(torch.randn(4, 5, 8))
    assert not any("gru" in name for name in called)


def places() -> list[tuple[nn.Module, str, int]]:
    return [
        (BreakInLoop(), "graph_break", line_of(BreakInLoop.forward, "graph_break")),
        (Disabled(), "torch.compiler.disable", line_of(Disabled.forward, "self.layer(")),
        # Dynamo compiles no code of torch.nn by itself: the linear layer runs in eager.
        (
            BreakInSequence(nn.Linear(8, 8)),
            "nn/modules/container.py",
            line_of(BreakInSequence.forward, "self.layers("),
        ),
        (SelectsByValue(), "aten.masked_select", line_of(SelectsByValue.forward, "masked_select")),
    ]


def test_what_a_container_calls_is_compiled(caplog: pytest.LogCaptureFixture) -> None:
    compiled = torch.compile(BreakInSequence(BreakOnce()), backend="dtr", options=UNDER)
    compiled(torch.randn(4, 8, requires_grad=True)).backward()
    assert not warnings_of(caplog)


@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_a_skipped_frame_is_told_once_with_reason_and_line(at: int, caplog: pytest.LogCaptureFixture) -> None:
    model, reason, line = places()[at]
    compiled = torch.compile(model, backend="dtr", options=TIGHT)
    for _ in range(2):
        compiled(torch.randn(4, 8)).backward()
    [said] = warnings_of(caplog)
    assert "(overhead of at most 10.0%) is not in force" in said
    assert reason in said
    assert f"test_frames.py:{line})" in said


@pytest.mark.parametrize("at", [0, 1, 2, 3])
def test_strict_makes_it_an_error_each_time(at: int) -> None:
    model, reason, _ = places()[at]
    compiled = torch.compile(model, backend="dtr", options={**TIGHT, "strict": True})
    for _ in range(2):
        with pytest.raises(dtr_fx.DTRError, match=reason) as caught:
            compiled(torch.randn(4, 8))
        assert isinstance(caught.value, UncompiledError)


def test_without_a_limit_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    torch.compile(BreakInLoop(), backend="dtr", options=UNDER)(torch.randn(4, 8)).backward()
    assert not warnings_of(caplog)


def test_what_is_no_longer_compiled_after_too_many_recompilations_is_told(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def step(x: Tensor, name: str) -> Tensor:
        return x.sin().sin().sum() if name else x.sum()

    compiled = torch.compile(step, backend="dtr", options=TIGHT)
    with torch._dynamo.config.patch(recompile_limit=1):
        for name in "ab":
            compiled(torch.randn(8, requires_grad=True), name).backward()
    [said] = [said for said in warnings_of(caplog) if "in force" in said]
    assert "recompile limit" in said


class CopiesATensor(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return (x.sin() * copy.deepcopy(x.detach())).sum()


class DifferentiatesInside(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x.sin()
        [slope] = torch.autograd.grad(y.sum(), x, retain_graph=True)
        return (y * slope).sum()


@pytest.mark.parametrize(
    ("model", "name"),
    [
        pytest.param(
            CopiesATensor(),
            "copy.deepcopy",
            marks=pytest.mark.skipif(
                torch.__version__ < "2.13",
                reason="Dynamo gives no reason of its own for a deepcopy before 2.13",
            ),
        ),
        (DifferentiatesInside(), "torch.autograd.grad"),
    ],
)
def test_an_operator_between_two_graphs_is_told(
    model: nn.Module, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """If there are two: with ``trace_autograd_ops`` Dynamo traces the second."""
    torch._dynamo.utils.counters.clear()  # of other tests
    compiled = torch.compile(model, backend="dtr", options=TIGHT)
    compiled(torch.randn(4, 8, requires_grad=True)).backward()
    said = [said for said in warnings_of(caplog) if f"not in force in the operator {name}" in said]
    assert len(said) == bool(torch._dynamo.utils.counters["graph_break"])


class Quantizes(nn.Module):
    """What fake quantization gives is saved for the backward pass; whether it is on is a tensor's value."""

    def __init__(self) -> None:
        super().__init__()
        self.quantize = torch.ao.quantization.FakeQuantize()

    def forward(self, x: Tensor) -> Tensor:
        return self.quantize(x.sin()).cos().sum()


class Packs(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x.sin(), torch.tensor([8, 4, 2, 1]), batch_first=True)
        return packed.data.cos().sum()


class Compares(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x.sin()
        return y.cos().sum() if torch.allclose(y, x) else y.exp().sum()


class Asserts(nn.Module):
    """A function of torch's own, which Dynamo compiles nothing of, branches on a value."""

    def forward(self, x: Tensor) -> Tensor:
        y = x.sin()
        torch.testing.assert_close(y, y)
        return y.cos().sum()


READING = [
    (Quantizes(), "the function FakeQuantize.forward"),
    (Packs(), "the function pack_padded_sequence"),
    (Compares(), "the operator aten.allclose.default"),
    (Asserts(), "the call of torch/testing/_comparison.py"),
]


@pytest.mark.parametrize(("model", "name"), READING)
def test_a_function_that_reads_values_between_two_graphs_is_told(
    model: nn.Module, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    x = torch.randn(4, 8, requires_grad=True)
    compiled = torch.compile(model, backend="dtr", options=TIGHT)
    for _ in range(2):
        compiled(x).backward()
    [said] = [said for said in warnings_of(caplog) if "not in force" in said]
    assert name in said
    assert "test_frames.py" in said
    torch._dynamo.reset()
    with pytest.raises(UncompiledError, match=name):
        torch.compile(model, backend="dtr", options={**TIGHT, "strict": True})(x)


def branches(y: Tensor) -> Tensor:
    return y.sin() if y.sum() > 0 else y.cos()


def test_what_reads_values_and_is_compiled_in_parts_is_not_told(caplog: pytest.LogCaptureFixture) -> None:
    """A user's own function is compiled by itself, up to where it branches and from there on."""

    def forward(x: Tensor) -> Tensor:
        y = x.exp()
        return branches(y / y.max().item()).exp().sum() * torch.equal(x, y).real

    compiled = torch.compile(forward, backend="dtr", options={**TIGHT, "strict": True})
    compiled(torch.randn(4, 8, requires_grad=True))
    assert not [said for said in warnings_of(caplog) if "not in force" in said]


def test_going_backward_inside_is_no_reason_to_refuse() -> None:
    """The check that no parameter was written, which a plan recomputes from, is none of its functions."""
    first, second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(x: Tensor) -> Tensor:
        loss = second(first(x).sin().tanh()).exp().sum()
        loss.backward()
        return loss.detach()

    compiled = torch.compile(forward, backend="dtr", options={"budget": "85%", "strict": True})
    compiled(torch.randn(256, 8, requires_grad=True))


class AsksForValues(nn.Module):
    """Dynamo traces it, AOTAutograd does not: the backward pass asks for values."""

    def forward(self, x: Tensor) -> Tensor:
        u, s, _ = torch.linalg.svd(torch.complex(x, x.sin()))
        return u.abs().sum() + s.sum()


def test_a_graph_without_a_trace_runs_as_it_is_and_is_told(caplog: pytest.LogCaptureFixture) -> None:
    model, x = AsksForValues(), torch.randn(4, 4, requires_grad=True)
    [expected] = torch.autograd.grad(model(x), x)
    compiled = torch.compile(model, backend="dtr", options=TIGHT)
    for _ in range(2):
        [found] = torch.autograd.grad(compiled(x), x)
        assert torch.equal(found, expected)
    [said] = [said for said in warnings_of(caplog) if "not in force" in said]
    assert "DataDependentOutputException" in said
    assert "test_frames.py:" in said
    torch._dynamo.reset()
    strict = torch.compile(model, backend="dtr", options={**TIGHT, "strict": True})
    with pytest.raises(UncompiledError, match="allclose"):
        strict(x)
