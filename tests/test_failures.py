"""After a failure in the middle the next step is right, and nothing of the failed one stays."""

from __future__ import annotations

import _thread
import contextlib
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import growth
import pytest
import torch
from model_parts import Part
from operator_logs import write_chain
from steps import plans_beside
from torch import Tensor, nn
from torch.nn import functional as F

import dtr_fx
from dtr_fx.cli import main
from dtr_fx.torch_private import any_profiler_runs, compile_lock, dynamo_config, functorch_config

pytestmark = pytest.mark.little_effort

ROWS, WIDTH = 256, 32
OPTIONS = [{"budget": "75%"}, {"budget": "400KiB"}]

_raised_by: dict[str, type[BaseException]] = {}


def _raise_if_asked(name: str) -> None:
    if name in _raised_by:
        raise _raised_by[name]("of the test")


@torch.library.custom_op("dtr_fx_failures::double", mutates_args=())
def double(x: Tensor) -> Tensor:
    _raise_if_asked("operator in forward")
    return 2 * x


@torch.library.custom_op("dtr_fx_failures::double_backward", mutates_args=())
def double_backward(gradient: Tensor) -> Tensor:
    _raise_if_asked("operator in backward")
    return 2 * gradient


double.register_fake(torch.empty_like)
double_backward.register_fake(torch.empty_like)
double.register_autograd(lambda _, gradient: double_backward(gradient))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = F.dropout(F.gelu(layer(double(x))).sin(), 0.1)
        return x


@pytest.fixture(autouse=True)
def _nothing_raises() -> Iterator[None]:
    torch._dynamo.reset()
    gc.collect()
    yield
    _raised_by.clear()


def compiled(backend: str = "dtr", **options: Any) -> tuple[nn.Module, Callable[[Tensor], Tensor]]:
    torch.manual_seed(0)
    model = Model()
    given = {"options": {"plan_seconds": 0.02, **options}} if backend == "dtr" else {}
    return model, torch.compile(model, backend=backend, **given)


def step(model: nn.Module, forward: Callable[[Tensor], Tensor], rows: int = ROWS) -> list[Tensor]:
    """The gradients of a step."""
    torch.manual_seed(1)
    model.zero_grad()
    y = forward(torch.ones(rows, WIDTH))
    if "hook of a tensor" in _raised_by:
        y.register_hook(lambda _: _raise_if_asked("hook of a tensor"))
    y.square().mean().backward()
    return [parameter.grad for parameter in model.parameters()]


def step_of_aot_eager(rows: int = ROWS) -> list[Tensor]:
    return step(*compiled("aot_eager"), rows)


def fail(
    model: nn.Module, forward: Callable[[Tensor], Tensor], where: str, error: type[BaseException]
) -> None:
    hooks = {
        "hook of a module": model.register_forward_hook,
        "hook of a parameter": model.layers[2].weight.register_hook,
    }
    handle = hooks[where](lambda *_: _raise_if_asked(where)) if where in hooks else contextlib.nullcontext()
    _raised_by[where] = error
    with handle, pytest.raises(error, match="of the test"):
        step(model, forward)
    _raised_by.clear()
    model.zero_grad()


def tensor_bytes() -> int:
    gc.collect()
    return sum(each.nbytes for each in gc.get_objects() if type(each) in (Tensor, nn.Parameter))


def surroundings() -> dict[str, Any]:
    """What a compilation changes for its time."""
    free: list[bool] = []

    def ask() -> None:
        free.append(compile_lock.acquire(blocking=False))
        if free[0]:
            compile_lock.release()

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    return {
        "settings": [config.get_config_copy() for config in (dynamo_config, functorch_config)],
        "environment": dict(os.environ),
        "collector": gc.isenabled(),
        "gradients": torch.is_grad_enabled(),
        "modes": torch._C._len_torch_dispatch_stack(),
        "tracing": torch._guards.TracingContext.try_get(),
        "profiler": any_profiler_runs(),
        "lock is free": free,
    }


WHERE = {
    "operator in forward": KeyboardInterrupt,
    "operator in backward": KeyboardInterrupt,
    "hook of a tensor": LookupError,
    "hook of a parameter": KeyboardInterrupt,
    "hook of a module": LookupError,
}


def left_after_failures(expected: list[Tensor], backend: str, **options: Any) -> dict[str, int]:
    """Bytes of tensors that each failure adds; all else is as before, and the next step is right."""
    model, forward = compiled(backend, **options)
    step(model, forward)
    added = {}
    for where, error in WHERE.items():
        model.zero_grad()
        before, around = tensor_bytes(), surroundings()
        fail(model, forward, where, error)
        added[where] = tensor_bytes() - before
        assert surroundings() == around, where
        assert all(map(torch.equal, step(model, forward), expected)), where
    return added


def test_the_step_after_a_failure_is_right_and_nothing_stays() -> None:
    expected = step_of_aot_eager()
    assert left_after_failures(expected, "dtr", **OPTIONS[0]) == left_after_failures(expected, "aot_eager")


@pytest.mark.parametrize(
    ("options", "error"), [*zip(OPTIONS, (LookupError, KeyboardInterrupt))], ids=["share", "bytes"]
)
def test_a_first_step_that_fails_leaves_one_that_does_not(
    options: dict[str, Any], error: type[BaseException]
) -> None:
    expected = step_of_aot_eager()
    # An error of an operator that is run for the sake of its workspace is not one of the step.
    for where in ("operator in backward", "hook of a module"):
        torch._dynamo.reset()
        model, forward = compiled(**options)
        before = surroundings()
        fail(model, forward, where, error)
        assert surroundings() == before, where
        assert all(map(torch.equal, step(model, forward), expected)), where


@pytest.mark.parametrize("options", OPTIONS, ids=["share", "bytes"])
def test_an_interrupted_plan_leaves_the_next_one_whole(options: dict[str, Any]) -> None:
    """Interrupted while a workspace is measured, costs are asked for, and a plan is reported."""
    rows = ROWS + 1 + OPTIONS.index(options)  # a workspace is measured once
    expected = step_of_aot_eager(rows)

    def costs(_: Any) -> float:
        _raise_if_asked("costs")
        return 1.0

    model, forward = compiled(costs=costs, on_report=lambda _: _raise_if_asked("on_report"), **options)
    before, earlier = surroundings(), dtr_fx.plans()
    for where in ("operator in forward", "costs", "on_report"):
        _raised_by[where] = KeyboardInterrupt
        with pytest.raises(KeyboardInterrupt, match="of the test"):
            step(model, forward, rows)
        _raised_by.clear()
        assert surroundings() == before, where
        assert not plans_beside(earlier)
    assert all(map(torch.equal, step(model, forward, rows), expected))


def test_what_a_failed_plan_was_traced_with_is_forgotten() -> None:
    model, forward = compiled(budget="75%", costs=lambda _: 1 / 0)
    sizes = []
    for _ in range(3):
        with pytest.raises(dtr_fx.OptionError):
            step(model, forward)
        sizes.append(len(torch.fx.graph_module._loader.eval_cache))
    assert sizes[1] == sizes[2]


def test_an_option_that_is_refused_holds_no_tensor() -> None:
    def refused() -> weakref.ref[Tensor]:
        _, forward = compiled(budgt="75%")
        x = torch.ones(ROWS, WIDTH)
        with contextlib.suppress(dtr_fx.OptionError):
            forward(x)
        return weakref.ref(x)

    assert refused()() is None


# --- one budget for two models -----------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["user's code", "hook", "backward"])
def test_a_failed_step_costs_the_models_that_share_its_budget_nothing_for_long(where: str) -> None:
    """While it is held the other model recomputes; when it is gone, both are soon trained as before."""
    reports: list[dtr_fx.Report] = []
    earlier = dtr_fx.plans()
    torch.manual_seed(0)
    models, x = [Part(WIDTH), Part(WIDTH, F.silu)], torch.randn(ROWS, WIDTH)
    options = {"budget": "100%", "planner": "online", "on_report": reports.append}
    for model in models:
        torch.compile(model, backend="dtr", options=dict(options))(x)
    options["budget"] = int(1.3 * max(report.baseline_peak for report in reports))
    forwards = [torch.compile(model, backend="dtr", options=options) for model in models]

    def train() -> None:
        reports.clear()
        for forward in forwards:
            forward(x).sum().backward()

    def raises(_: Tensor) -> None:
        raise LookupError

    train()
    y = forwards[0](x)
    if where == "hook":
        y.register_hook(raises)
    elif where == "backward":
        y.grad_fn.register_prehook(raises)
    with contextlib.suppress(LookupError):
        if where != "user's code":
            y.sum().backward()
    forwards[1](x).sum().backward()
    assert reports[-1].recomputes > 0
    del y
    train()
    train()
    assert [plan.reports[0].recomputes for plan in plans_beside(earlier)] == [0, 0, 0, 0]
    train()
    assert not reports


# --- threads and processes ---------------------------------------------------------------------------------


def test_threads_may_transform_at_once() -> None:
    """Workspaces are measured under a profiler, of which a process has one."""
    gm = torch.fx.symbolic_trace(lambda x: F.cosine_similarity(x, x.flip(0), 1) + x.sort(1)[0].sum())

    def peak(rows: int) -> int:
        return dtr_fx.transform(gm, 1.0, example_inputs=[torch.ones(rows, 8)])[1].baseline_peak

    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(peak, range(300, 308)))
    assert together == [peak(rows) for rows in range(300, 308)]


_COMPILE_AT_ONCE = """
import sys, threading
import torch

sys.setswitchinterval(1e-6)
start, found = threading.Barrier(4), []

def compile_one():
    start.wait()
    found.append(torch.compile(torch.nn.Linear(4, 4), backend="dtr"))

threads = [threading.Thread(target=compile_one) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(found) == 4
assert "dtr" in torch._dynamo.list_backends()
found[0](torch.ones(2, 4)).sum().backward()
"""


def test_the_first_compilations_of_threads_may_coincide() -> None:
    """PyTorch loads the backend in each of them, and refuses one that is registered."""
    subprocess.run([sys.executable, "-c", _COMPILE_AT_ONCE], check=True, timeout=120)


@pytest.mark.parametrize("options", OPTIONS, ids=["share", "bytes"])
def test_a_thread_trains_while_the_steps_of_another_fail(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    model, failing = (
        nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(WIDTH, WIDTH), nn.GELU())))
        for _ in range(2)
    )
    expected = step(model, model)
    given = {"plan_seconds": 0.02, **options}
    forward, fails = (torch.compile(each, backend="dtr", options=given) for each in (model, failing))

    def fail_again_and_again() -> None:
        for number in range(20):
            loss = fails(torch.ones(ROWS + number % 3, WIDTH)).square().mean()
            loss.register_hook(lambda _: _raise_if_asked("loss"))
            with pytest.raises(LookupError, match="of the test"):
                loss.backward()

    _raised_by["loss"] = LookupError
    with ThreadPoolExecutor(1) as other:
        end = other.submit(fail_again_and_again)
        for _ in range(20):
            assert all(map(torch.equal, step(model, forward), expected))
        end.result()


def _steps_in_a_child(model: nn.Module, forward: Any, expected: list[Tensor], found: Any) -> None:
    known = all(map(torch.equal, step(model, forward), expected))
    step(model, forward, ROWS + 2)
    torch._dynamo.reset()
    again = all(map(torch.equal, step(*compiled(budget="75%")), expected))
    found.put((known, again))


def test_a_forked_child_runs_what_is_compiled_and_compiles() -> None:
    expected = step_of_aot_eager()
    model, forward = compiled(**OPTIONS[1])
    step(model, forward)
    fork = multiprocessing.get_context("fork")
    found = fork.SimpleQueue()
    child = fork.Process(target=_steps_in_a_child, args=(model, forward, expected, found))
    child.start()
    child.join()
    assert child.exitcode == 0
    assert found.get() == (True, True)
    assert all(map(torch.equal, step(model, forward), expected))


# --- Ctrl-C in a command -----------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["smallest", "show", "sweep"])
def test_a_command_can_be_interrupted(command: str, tmp_path: Path, capsys) -> None:
    log, before = write_chain(tmp_path / "chain.log", 400), surroundings()
    given = {
        "smallest": [str(log)],
        "show": [str(log), "--budget", "3%"],
        "sweep": ["zoo:mlp", "--no-rivals"],
    }
    # A shell has the processes that it starts in the background ignore Ctrl-C.
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    interrupt = threading.Timer(3.0 if command == "sweep" else 0.3, _thread.interrupt_main)
    interrupt.start()
    try:
        assert main([command, *given[command], "--plan-seconds", "60"]) == 130
    finally:
        interrupt.cancel()
        interrupt.join()
        signal.signal(signal.SIGINT, handler)
    assert surroundings() == before
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.splitlines()[-1] == "dtr-fx: interrupted"


def test_an_interrupt_that_is_swallowed_comes_again(tmp_path: Path, capsys) -> None:
    source = tmp_path / "net.py"
    source.write_text(
        "import _thread\nimport time\n\n\ndef make():\n"
        "    try:\n        _thread.interrupt_main()\n        time.sleep(60)\n"
        "    except KeyboardInterrupt:\n        print('swallowed')\n    time.sleep(60)\n"
    )
    handler = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        assert main(["show", f"{source}:make", "--budget", "60%"]) == 130
    finally:
        signal.signal(signal.SIGINT, handler)
    assert capsys.readouterr().out == "swallowed\n"


# --- growth ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "count"),
    [
        pytest.param(growth.steps, 300, id="steps"),
        pytest.param(partial(growth.compilations, sizes=1), 12, id="compilations", marks=pytest.mark.slow),
    ],
)
def test_no_growth_beyond_that_of_aot_eager(make: Callable[[str], Callable[[int], None]], count: int) -> None:
    ours, theirs = (growth.growth(make, backend, count) for backend in ("dtr", "aot_eager"))
    more = growth.excess(ours, theirs)
    assert not {"objects", "tensors"} & set(more), (ours, theirs)
