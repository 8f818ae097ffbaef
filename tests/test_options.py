import copy
import logging
import math
import os
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist

import dtr_fx
from dtr_fx.costs import machine
from dtr_fx.errors import DTRError, InfeasibleBudgetError, OptionError
from dtr_fx.planning.options import Budget, Options, parse_budget, resolve_budget
from dtr_fx.runtime import HEURISTICS

CPU = torch.device("cpu")
MiB = 2**20


@pytest.mark.parametrize(
    ("value", "spec"),
    [
        (0.6, Budget("fraction", 0.6)),
        (1.0, Budget("fraction", 1.0)),
        ("60%", Budget("fraction", 0.6)),
        ("0.6", Budget("fraction", 0.6)),
        (np.float32(0.5), Budget("fraction", 0.5)),
        (1, Budget("bytes", 1)),  # an int is bytes, even this one
        (np.int64(100), Budget("bytes", 100)),
        ("1000", Budget("bytes", 1000)),
        ("8GiB", Budget("bytes", 8 * 2**30)),
        ("8GB", Budget("bytes", 8 * 10**9)),
        ("auto", Budget("auto", 0)),
    ],
)
def test_accepted_budgets(value: object, spec: Budget) -> None:
    assert parse_budget(value) == Options(budget=value).budget == spec


@pytest.mark.parametrize("value", ["60%", "0.6", 0.6, "8GiB", 2**30, "auto"])
def test_a_budget_knows_what_was_asked_for(value: object) -> None:
    options = Options(budget=value)
    assert options.budget.asked == str(value)
    assert replace(options, planner="online").budget is options.budget


def test_an_overhead_and_a_report_are_understood_once(tmp_path: Path) -> None:
    options = Options(max_overhead="150%", report=str(tmp_path / "plans.json"))
    assert (options.max_overhead, options.report) == (1.5, tmp_path / "plans.json")
    assert replace(options, planner="online").max_overhead == 1.5
    with pytest.raises(OptionError, match="if that is meant"):
        Options(max_overhead=1.5)


@pytest.mark.parametrize(
    "value",
    [
        True,
        False,
        [1],
        "",
        "Gb",
        "8 gigs",
        "Auto",
        "60 percent",
        "60",
        math.nan,
        math.inf,
        "nan",
        0,
        0.0,
        "0%",
        "0.4B",
        -1,
        -0.5,
        "-8GiB",
        1.5,
        8e9,
        "120%",
        2**70 * 1.0,
    ],
)
def test_rejected_budgets_name_the_value_and_what_to_write(value: object) -> None:
    with pytest.raises(OptionError) as error:
        parse_budget(value)
    message = str(error.value)
    assert "\n" not in message
    assert "budget=" in message
    for form in ("0.6", "'60%'", "'8GiB'", "'8GB'", "'auto'"):
        assert form in message


def test_a_few_bytes_in_text_ask_whether_a_share_was_meant() -> None:
    with pytest.raises(OptionError, match="write '60%' for a share, '60B' if bytes are meant"):
        parse_budget("60")
    assert parse_budget("60B").value == 60


@pytest.mark.parametrize("value", [1.5, "120%"])
def test_a_fraction_above_one_says_what_it_is_a_fraction_of(value: object) -> None:
    with pytest.raises(OptionError, match="of the graph's own peak"):
        parse_budget(value)


def test_fractions_and_bytes_resolve_to_bytes() -> None:
    assert resolve_budget(parse_budget("60%"), 1000, CPU) == 600
    assert resolve_budget(parse_budget(1.0), 12345, CPU) == 12345
    assert resolve_budget(parse_budget("1MiB"), 1000, CPU) == MiB
    assert resolve_budget(parse_budget(0.29), 100, CPU) == 29  # 0.29 * 100 is below 29 in floating point


def test_a_fraction_never_resolves_to_more_than_the_share_asked_for() -> None:
    assert resolve_budget(parse_budget(0.5), 1001, CPU) == 500


def test_auto_is_the_available_memory_and_what_the_graph_holds_by_now(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dtr_fx.costs.machine.free_memory", lambda device: 100)
    assert resolve_budget(parse_budget("auto"), 1, CPU) == 100
    assert resolve_budget(parse_budget("auto"), 1, CPU, already_held=30) == 130


def test_auto_reads_what_linux_says_is_available(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:  200 kB\nMemFree:  10 kB\nMemAvailable:  100 kB\n")
    monkeypatch.setattr(machine, "_MEMINFO", meminfo)
    assert resolve_budget(parse_budget("auto"), 1, CPU) == 100 * 1024


def test_auto_is_this_ranks_part_of_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemAvailable:  100 kB\n")
    monkeypatch.setattr(machine, "_MEMINFO", meminfo)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert resolve_budget(parse_budget("auto"), 1, CPU) == 100 * 1024  # no job of several ranks
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        assert resolve_budget(parse_budget("auto"), 1, CPU) == 25 * 1024
    finally:
        dist.destroy_process_group()


def test_auto_says_so_where_the_system_does_not_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(name: str) -> int:
        raise ValueError(name)

    monkeypatch.setattr(os, "sysconf", unknown)
    monkeypatch.setattr(machine, "_MEMINFO", tmp_path / "nothing")
    with pytest.raises(OptionError, match="write the bytes"):
        resolve_budget(parse_budget("auto"), 1, CPU)
    with pytest.raises(OptionError, match="meta"):
        resolve_budget(parse_budget("auto"), 1, torch.device("meta"))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_auto_on_cuda_counts_what_the_allocator_keeps_unused() -> None:
    device = torch.device("cuda")
    held = torch.empty(64 * MiB, dtype=torch.uint8, device=device)
    with_it = resolve_budget(parse_budget("auto"), 1, device)
    del held
    assert resolve_budget(parse_budget("auto"), 1, device) >= with_it + 0.95 * 64 * MiB


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs CUDA")
def test_auto_on_cuda_counts_the_limit_of_the_process() -> None:
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(0.1)
    try:
        assert resolve_budget(parse_budget("auto"), 1, torch.device("cuda")) <= 0.1 * total
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)


def test_options_from_a_mapping() -> None:
    reports: list[object] = []
    options = Options.from_mapping({"budget": "60%", "heuristic": "lru", "on_report": reports.append})
    assert (options.budget, options.heuristic, options.costs) == (Budget("fraction", 0.6), "lru", "auto")
    assert Options.from_mapping(None) == Options.from_mapping({}) == Options()


def test_an_unknown_option_is_told_the_nearest_one() -> None:
    with pytest.raises(OptionError, match=r"'buget'; did you mean 'budget'\?"):
        Options.from_mapping({"buget": 0.6})
    with pytest.raises(OptionError, match=r"'budget', 'max_overhead', 'heuristic', .*'on_report'"):
        Options.from_mapping({"zzz": 0.6})


def test_options_are_checked_when_they_are_made() -> None:
    with pytest.raises(OptionError, match="'8GiB'"):
        Options(budget="8 gigs")
    with pytest.raises(OptionError, match="did you mean 'dtr-eq'"):
        Options(heuristic="dtr-eg")
    with pytest.raises(OptionError, match="heuristic=3"):
        Options(heuristic=3)
    with pytest.raises(OptionError, match="on_report"):
        Options(on_report="print")  # type: ignore[arg-type]
    with pytest.raises(OptionError, match="did you mean 'inductor'"):
        Options(executor="inducter")  # type: ignore[arg-type]


def test_a_heuristic_is_a_name_an_object_or_a_function() -> None:
    for heuristic in (*HEURISTICS, *HEURISTICS.values(), lambda s, m, c: c / m):
        assert Options(heuristic=heuristic).heuristic is heuristic


def infeasible(**changes: object) -> InfeasibleBudgetError:
    fields = {
        "asked": 12 * MiB,
        "smallest": 18 * MiB + 77,
        "lower_bound": 17 * MiB,
        "baseline_peak": 40 * MiB,
        "operator": "mm_3",
        "source": "model.py:12, x = self.fc(x)",
        "pinned": {"input": MiB, "parameter": 10 * MiB, "output": 0},
    }
    return InfeasibleBudgetError(**(fields | changes))  # type: ignore[arg-type]


def test_an_infeasible_budget_says_everything_that_helps() -> None:
    lines = dict(line.strip().split(": ", 1) for line in str(infeasible()).splitlines()[1:])
    message = str(infeasible())
    assert f"{12 * MiB} bytes = 12.0 MiB = 30.0% of its peak" in message.splitlines()[0]
    assert lines["smallest budget that works"] == f"{18 * MiB + 77} bytes = 18.0 MiB = 45.0% of its peak"
    assert lines["lower bound for any plan"] == f"{17 * MiB} bytes = 17.0 MiB = 42.5% of its peak"
    assert lines["operator that needs it"] == "mm_3 (model.py:12, x = self.fc(x))"
    assert lines["pinned then"] == "parameter 10.0 MiB, input 1.00 MiB"
    assert f"budget={18 * MiB + 77}" in lines["try"]


def test_the_percent_that_is_advised_works() -> None:
    error = infeasible()
    percent = str(error).split('(or "')[1].split('"')[0]
    assert resolve_budget(parse_budget(percent), error.baseline_peak, CPU) >= error.smallest


def test_the_advice_depends_on_what_fills_the_memory() -> None:
    assert "smaller model" in str(infeasible())
    assert "smaller batch" in str(infeasible(pinned={"parameter": MiB}))


def test_an_infeasible_budget_of_an_empty_graph_can_be_shown() -> None:
    assert "nothing" in str(infeasible(baseline_peak=0, smallest=0, pinned={}, source=""))


def test_an_infeasible_budget_is_an_error_that_travels() -> None:
    error = infeasible()
    assert isinstance(error, DTRError)
    assert isinstance(error, ValueError)
    for twin in (pickle.loads(pickle.dumps(error)), copy.copy(error)):
        assert (str(twin), twin.smallest) == (str(error), error.smallest)


@pytest.mark.parametrize("origin", ["DTR_BUDGET", "dtr_fx.config.budget"])
def test_a_default_from_outside_holds_where_no_limit_is_given(
    origin: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    torch._dynamo.reset()
    if origin == "DTR_BUDGET":
        monkeypatch.setenv("DTR_BUDGET", "90%")
        monkeypatch.setenv("DTR_PLANNER", "online")
    else:
        monkeypatch.setattr(dtr_fx.config, "budget", "90%")
        monkeypatch.setattr(dtr_fx.config, "planner", "online")
        monkeypatch.setenv("DTR_BUDGET", "10B")  # the program goes first
    x, reports = torch.randn(64, 64, requires_grad=True), []

    def wavy(x: torch.Tensor) -> torch.Tensor:
        for _ in range(8):
            x = x.sin()
        return x.sum()

    def budget_of(**given: object) -> str:
        torch._dynamo.reset()
        options = {"on_report": reports.append, **given}
        torch.compile(wavy, backend="dtr", options=options)(x)
        return reports[-1].asked

    with caplog.at_level(logging.INFO, logger="dtr_fx"):
        assert budget_of() == f"90% ({origin})"
    assert f"90% ({origin}) = " in caplog.text
    assert budget_of(budget="95%") == "95%"
    assert budget_of(max_overhead="50%") == "overhead of at most 50.0%"


def test_a_default_that_is_not_understood_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    torch._dynamo.reset()
    monkeypatch.setenv("DTR_BUDGET", "60")
    with pytest.raises(OptionError, match="DTR_BUDGET: budget='60'"):
        torch.compile(torch.sin, backend="dtr")(torch.ones(4))
