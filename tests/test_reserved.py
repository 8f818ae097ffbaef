"""What a CUDA card would reserve for a plan, as the report says it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.fx import GraphModule, symbolic_trace

import dtr_fx
from dtr_fx.cli import main
from dtr_fx.inspect.diff import circumstances, render_diff
from dtr_fx.inspect.exports import segments_at_peak
from dtr_fx.lab.log import AliasLine, CallLine, ConstantLine, Line, MemoryLine, write_log
from dtr_fx.passes.liveness import Allocation, allocations, points_of, reserve
from dtr_fx.planning.options import Options
from dtr_fx.planning.transform import readable_copy
from dtr_fx.runtime.caching_allocator import MIB, CachingAllocator

CPU = torch.device("cpu")


def mib(count: float) -> torch.Tensor:
    return torch.ones(int(count * MIB) // 4)


def chain(x: torch.Tensor) -> torch.Tensor:
    a = torch.sin(x)
    b = torch.cos(a)
    c = torch.exp(b)
    return c + a


def with_shapes(x: torch.Tensor) -> GraphModule:
    return readable_copy(symbolic_trace(chain), [x])


def test_a_graph_asks_for_its_storages_in_the_order_in_which_they_live() -> None:
    steps = list(allocations(with_shapes(mib(1)), {"cos": 512}, CPU))
    told = [getattr(step, "kind", getattr(step, "name", "free")) for step in steps]
    makes = "activation sin activation cos activation exp".split()
    assert told == ["input", *makes, "free", "output", "add", "free", "free"]
    assert [point.live / MIB for point in points_of(steps)] == [2, 3 + 512 / MIB, 4, 4]


def test_parameters_lie_before_inputs() -> None:
    """As in a training loop, where the batch comes last; the order in which a graph reads them is another."""
    gm = symbolic_trace(torch.nn.Sequential(torch.nn.Tanh(), torch.nn.Linear(4, 4)))
    found = allocations(readable_copy(gm, [torch.ones(4, 4)]), {}, CPU)
    kinds = [step.kind for step in found if isinstance(step, Allocation)]
    assert kinds[:3] == ["parameter", "parameter", "input"]


@pytest.mark.parametrize(
    ("size", "reserved"),
    [
        (1, 4),  # x, a; b, c in two small segments; the sum where b was
        (2, 20),  # x, a, b, c in one large segment; the sum where b was
        (9, 40),  # x, a; b, c
        (9.5, 40),
        (11, 4 * 12),  # each in a segment of its own; the sum where b was
        (0.25, 2),
    ],
)
def test_what_is_reserved_is_that_on_paper(size: float, reserved: int) -> None:
    _, report = dtr_fx.transform(symbolic_trace(chain), 1.0, example_inputs=[mib(size)])
    assert report.planned_peak == 4 * size * MIB
    assert report.reserved_peak == reserved * MIB


def test_the_settings_are_those_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    def reserved() -> int:
        return dtr_fx.transform(symbolic_trace(chain), 1.0, example_inputs=[mib(11)])[1].reserved_peak // MIB

    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64, expandable_segments:True")
    assert reserved() == 60  # three pages for 44 MiB
    monkeypatch.setenv("PYTORCH_ALLOC_CONF", "expandable_segments:False")
    assert reserved() == 48


def test_a_temporary_is_free_for_the_next_operator() -> None:
    allocator = CachingAllocator()
    reserve(allocations(with_shapes(mib(4)), {"sin": 9 * MIB, "cos": 9 * MIB}, CPU), allocator)
    # x, a and the first 9 MiB are in one segment; with b there are 8 left for the second.
    assert allocator.reserved == 40 * MIB
    assert allocator.peak_allocated == (3 * 4 + 9) * MIB


def test_it_is_said_for_a_cuda_device_alone() -> None:
    _, report = dtr_fx.transform(symbolic_trace(chain), 1.0, example_inputs=[mib(11)])
    assert "reserves" not in render_diff(report)
    on_card = replace(report, device="cuda:0")
    assert "; reserves 48.0 MiB" in circumstances(on_card)
    assert "; reserves 48.0 MiB" in render_diff(on_card, width=200)
    assert dtr_fx.Report.from_json(on_card.to_json()).reserved_peak == 48 * MIB


def test_the_addresses_at_the_peak() -> None:
    """x, a, b and c are 9 MiB each, two in a segment of 20 MiB; b is gone and the sum is there at the end."""
    _, report = dtr_fx.transform(symbolic_trace(chain), 1.0, example_inputs=[mib(9)])
    found = list(segments_at_peak(report))
    told = [(pool, [(name, kind, nbytes // MIB) for name, kind, nbytes in blocks]) for pool, blocks in found]
    kept = "activation"
    assert told == [
        ("large", [("x", "input", 9), ("sin", kept, 9), ("", "", 2)]),
        ("large", [("cos", kept, 9), ("exp", kept, 9), ("", "", 2)]),
    ]


def test_at_the_peak_what_is_allocated_is_the_planned_peak() -> None:
    _, report = dtr_fx.transform(
        symbolic_trace(deep), 60 * MIB, example_inputs=[mib(6)], count="reserved", plan_seconds=0.1
    )
    blocks = [block for _, found in segments_at_peak(report) for block in found]
    assert sum(nbytes for name, _, nbytes in blocks if name) == report.planned_peak
    assert sum(nbytes for _, _, nbytes in blocks) <= report.reserved_peak


def test_a_log_has_it_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A constant of 3 MiB, results of 3 and 15 MiB: 20 MiB, and 16 of its own for the last."""
    lines: list[Line] = [ConstantLine("x"), MemoryLine(3 * MIB, "x")]
    for name, read, size in (("a", "x", 3), ("b", "a", 15)):
        call = CallLine((read,), "f", (name,), 1000)
        lines += [call, MemoryLine(size * MIB, name), AliasLine(-1, name)]
    write_log(tmp_path / "small.log", lines)
    main(["diff", str(tmp_path / "small.log"), "--budget", "100%", "--json"])
    [plan] = json.loads(capsys.readouterr().out)
    assert (plan["planned_peak"] // MIB, plan["reserved_peak"] // MIB) == (21, 36)


def reserving(gm: GraphModule, budget: str | int, **options: Any) -> dtr_fx.Report:
    return dtr_fx.transform(gm, budget, count="reserved", plan_seconds=0.2, **options)[1]


def deep(x: torch.Tensor) -> torch.Tensor:
    """Sixteen sines, all of which the sum reads."""
    found = [x]
    for _ in range(16):
        found.append(torch.sin(found[-1]))
    return sum(found[1:], found[0])  # type: ignore[return-value]


def test_a_budget_of_reserved_bytes_is_kept_where_one_of_allocated_bytes_is_not() -> None:
    """Storages of 6 MiB lie three in a segment of 20 MiB, so that 2 MiB of it are lost."""
    gm, inputs = symbolic_trace(deep), [mib(6)]
    whole = dtr_fx.transform(gm, 1.0, example_inputs=inputs)[1]
    assert whole.planned_peak == 18 * 6 * MIB
    assert whole.reserved_peak == 120 * MIB
    budget = 60 * MIB
    plain = dtr_fx.transform(gm, budget, plan_seconds=0.2, example_inputs=inputs)[1]
    assert plain.planned_peak <= budget < plain.reserved_peak
    report = reserving(gm, budget, example_inputs=inputs)
    assert report.planned_peak <= report.reserved_peak <= budget
    assert "60.0 MiB reserved, budget" in report.summary()


def test_a_share_is_of_what_is_reserved_as_it_is() -> None:
    gm, inputs = symbolic_trace(deep), [mib(6)]
    assert reserving(gm, "50%", example_inputs=inputs).budget == 60 * MIB
    as_it_is = reserving(gm, "100%", example_inputs=inputs)
    assert (as_it_is.budget, as_it_is.recomputes) == (120 * MIB, 0)


def test_the_error_names_reserved_bytes_and_a_budget_that_works() -> None:
    gm, inputs = symbolic_trace(deep), [mib(6)]
    with pytest.raises(dtr_fx.InfeasibleBudgetError, match="reserved bytes") as caught:
        reserving(gm, 19 * MIB, example_inputs=inputs)
    error = caught.value
    assert error.baseline_peak == 120 * MIB
    assert error.smallest % (20 * MIB) == 0
    assert reserving(gm, error.smallest, example_inputs=inputs).reserved_peak <= error.smallest


@pytest.mark.parametrize("origin", ["options", "environment", "config"])
def test_a_training_step_has_a_budget_of_reserved_bytes(origin: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    reports: list[dtr_fx.Report] = []
    model = torch.nn.Sequential(
        *[part for _ in range(4) for part in (torch.nn.Linear(256, 256), torch.nn.Tanh(), torch.nn.Dropout())]
    )
    options: dict[str, Any] = {"budget": "70%", "plan_seconds": 0.1, "on_report": reports.append}
    if origin == "options":
        options["count"] = "reserved"
    elif origin == "environment":
        monkeypatch.setenv("DTR_COUNT", "reserved")
    else:
        monkeypatch.setattr(dtr_fx.config, "count", "reserved")
    torch.compile(model, backend="dtr", options=options)(torch.randn(8192, 256)).sum().backward()
    [report] = reports
    assert report.verdict == "fits"
    assert report.reserved_peak <= report.budget
    assert "count=reserved" in report.options


@pytest.mark.parametrize("more", [{"max_overhead": 0.1}, {"executor": "inductor"}, {"count": "reservd"}])
def test_what_cannot_be_reserved_is_an_option_error(more: dict[str, Any]) -> None:
    with pytest.raises(dtr_fx.OptionError, match="count"):
        Options(**{"count": "reserved", **more})


def test_without_a_budget_a_step_reserves_no_more_than_pytorchs() -> None:
    """Its own peak is then counted in reserved bytes, too: all of it in allocated bytes would be a budget."""

    class Waves(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(256, 256) for _ in range(4))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in self.layers:
                x = layer(x).sin().cos().exp()
            return x.sum()

    def report(count: str) -> dtr_fx.Report:
        torch._dynamo.reset()
        reports: list[dtr_fx.Report] = []
        options = {"count": count, "plan_seconds": 0.1, "costs": "roofline", "on_report": reports.append}
        torch.compile(Waves(), backend="dtr", options=options)(torch.randn(6144, 256)).backward()
        return reports[0]

    allocated, reserved = report("allocated"), report("reserved")
    assert reserved.reserved_peak <= reserved.budget
    assert reserved.budget % (2 * MIB) == 0
    assert reserved.overhead <= allocated.overhead
