"""PyTorch's own test modules, unchanged and with dtr in place of its backends and partition functions.

Needs the sources of these tests.  What asks for a GPU for the name of its device alone runs on the CPU.  A
test counts against dtr if it passes unchanged and fails with dtr; ``ASIDE`` names those that ask for the
inner workings of something else, each with what it asks for.

    python tests/pytorch_suites.py --tests pytorch/test
    python tests/pytorch_suites.py --tests pytorch/test --suite test_activation_checkpointing -k selective
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import os
import subprocess
import sys
import tempfile
import traceback
import unittest
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FunctionType
from typing import Any

if __name__ == "__main__":
    os.environ |= {"OMP_NUM_THREADS": "1", "DTR_DEBUG": "1", "PYTORCH_PRINT_REPRO_ON_FAILURE": "0"}

import torch
from functorch.compile import default_partition, min_cut_rematerialization_partition
from torch._dynamo.backends import registry
from torch.testing._internal import common_device_type, triton_utils
from torch.testing._internal.common_utils import TestCase

import dtr_fx
from dtr_fx import InfeasibleBudgetError
from dtr_fx.compiler.backend import dtr
from dtr_fx.planning.planning import copy_of

ROADS = ("unchanged", "none", "smallest")
KINDS = ("passed", "skipped", "fails unchanged", "aside", "fails with dtr")


@dataclass(frozen=True)
class Suite:
    """A test module; of the classes whose names start as in ``sampled``, only every so many tests run."""

    path: str
    sampled: dict[str, int] = field(default_factory=dict)


SUITES = {
    Path(suite.path).stem: suite
    for suite in (
        Suite("dynamo/test_activation_checkpointing.py"),
        Suite("dynamo/test_fwd_loss_bwd.py"),
        Suite("dynamo/test_backends.py"),
        Suite("functorch/test_aotdispatch.py", {"TestEagerFusion": 151}),
    )
}
ASIDE = {
    "checkpoint_random_op": "the name of a dropout that runs again, which is dtr's own operator",
    "parametrization_partition_fn1": "duplicates, which default_partition leaves and dtr merges",
    "must_save_tensor_that_has_backward_hook": "what a pass of Inductor is given",
    "backend_recompilation": "an option of Inductor",
    "buffer_copied_in_graph": "the text of a graph by default_partition",
    "input_data_and_metadata_mutation": "the text of a graph by default_partition",
    "dynamic_output_aliases_input_view_meta_replay": "how Inductor makes a view of a size that varies",
    "TestPartitioning.test_min_cut": "how many sizes min-cut saves, and the text of its graphs",
    "TestPartitioning.test_custom": "the text of a graph by min-cut",
    "TestPartitioning.test_default_partitioner_output": "how many sizes default_partition saves",
    "nested_tensor_tangent": "a nested tensor as an input, which dtr refuses with an error of its own",
}


def substitute(road: str) -> None:
    """Put dtr where PyTorch's backends and partition functions are, in all modules imported so far."""
    at_smallest = road == "smallest"
    for name in ("aot_eager", "aot_eager_decomp_partition", "aot_eager_default_partitioner", "inductor"):
        ours = functools.partial(_compile_at_smallest if at_smallest else _compile)
        ours._tags = registry.lookup_backend(name)._tags
        registry._COMPILER_FNS[name] = ours
    compile_as_named = torch.compile

    @functools.wraps(compile_as_named)
    def compile_with_dtr(*args: Any, backend: Any = "inductor", **kwargs: Any) -> Any:
        if backend == "inductor":  # it does not come from the registry
            kwargs.update(mode=None, options=None)
            backend = "aot_eager"
        return compile_as_named(*args, backend=backend, **kwargs)

    torch.compile = compile_with_dtr
    partition = _partition_at_smallest if at_smallest else dtr_fx.partition_fn()
    for theirs in (default_partition, min_cut_rematerialization_partition):
        _replace_everywhere(theirs, functools.wraps(theirs)(functools.partial(partition)))


def _replace_everywhere(old: Any, new: Any) -> None:
    """In modules' names, and in the defaults of their functions; PyTorch's partitioners call each other."""
    for module in list(sys.modules.values()):
        if module.__name__.startswith(("dtr_fx", "torch._functorch.partitioners", "__main__")):
            continue
        for name, value in list(vars(module).items()):
            if value is old:
                setattr(module, name, new)
            elif isinstance(value, FunctionType) and old in (value.__defaults__ or ()):
                value.__defaults__ = tuple(new if it is old else it for it in value.__defaults__)


def _compile(gm: Any, inputs: Any, **_: Any) -> Callable[..., Any]:
    compiled = dtr(gm, inputs, options={"executor": "eager"})
    compiled._boxed_call = True  # which test_backends asks of every backend, and nothing reads
    return compiled


def _compile_at_smallest(gm: Any, inputs: Any, **_: Any) -> Callable[..., Any]:
    def compiled_for(budget: int) -> Callable[..., Any]:
        return dtr(gm, inputs, options={"budget": budget, "executor": "eager", "plan_seconds": 0.02})

    compiled = compiled_for(1)

    def run(*args: Any) -> Any:
        nonlocal compiled
        try:
            return compiled(*args)
        except InfeasibleBudgetError as error:
            compiled = compiled_for(error.smallest)
            return compiled(*args)

    run._boxed_call = True
    return run


def _partition_at_smallest(joint: Any, inputs: Any, **facts: Any) -> Any:
    budget = 1
    try:
        return dtr_fx.partition_fn(budget, plan_seconds=0.02)(copy_of(joint), inputs, **facts)
    except InfeasibleBudgetError as error:
        budget = error.smallest
    return dtr_fx.partition_fn(budget, plan_seconds=0.02)(joint, inputs, **facts)


class Log(unittest.TestResult):
    """Writes a line for each test as it starts, and one as it ends."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def _write(self, test: Any, outcome: str, error: str = "") -> None:
        with self._path.open("a") as file:
            file.write(json.dumps([test.id().partition(".")[2], outcome, error]) + "\n")

    def startTest(self, test: Any) -> None:
        super().startTest(test)
        self._write(test, "crashed", "the process ended")

    def addSuccess(self, test: Any) -> None:
        self._write(test, "passed")

    addUnexpectedSuccess = addSuccess

    def addExpectedFailure(self, test: Any, err: Any) -> None:
        self._write(test, "passed")

    def addSkip(self, test: Any, reason: str) -> None:
        self._write(test, "skipped", reason)

    def addError(self, test: Any, err: Any) -> None:
        lines = f"{err[0].__name__}: {err[1]}".splitlines()
        where = traceback.extract_tb(err[2])[-1]
        shown = " ... ".join(line[:150] for line in dict.fromkeys((lines[0], lines[-1])))
        self._write(test, "failed", f"{shown} ({Path(where.filename).name}:{where.lineno})")

    addFailure = addError

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            self.addError(test, err)


def run_here(source: Path, road: str, pattern: str, sampled: dict[str, int], log: Path) -> None:
    """Run the tests of a module whose names hold the pattern and that the log does not know yet."""
    for name in ("requires_cuda_and_triton", "requires_gpu_and_triton"):
        setattr(triton_utils, name, lambda test: test)
    by_device = common_device_type.instantiate_device_type_tests
    common_device_type.instantiate_device_type_tests = lambda test, scope, **_: by_device(
        test, scope, only_for="cpu"
    )
    if road != "unchanged":
        substitute(road)
    sys.path[:0] = [str(source.parent), str(source.parent.parent)]
    module = importlib.import_module(source.stem)
    if road == "smallest":  # there the plan decides what is recomputed: results count
        vars(module).update(count_ops=lambda gm, *_, **__: gm)
        TestCase.assertExpectedInline = lambda *_, **__: None
    known = read_log(log)
    tests = unittest.TestSuite()
    for name, case in sorted(vars(module).items()):
        if (
            isinstance(case, type)
            and issubclass(case, unittest.TestCase)
            and case.__module__ == module.__name__
        ):
            step = next((every for start, every in sampled.items() if name.startswith(start)), 1)
            names = unittest.defaultTestLoader.getTestCaseNames(case)[::step]
            tests.addTests(case(it) for it in names if pattern in it and f"{name}.{it}" not in known)
    tests.run(Log(log))


def read_log(path: Path) -> dict[str, tuple[str, str]]:
    """How each test ended, and its error."""
    ended: dict[str, tuple[str, str]] = {}
    for name, outcome, error in map(json.loads, path.read_text().splitlines()):
        before = ended.get(name, ("crashed", ""))
        ended[name] = (outcome, error) if before[0] in ("crashed", "passed") else before
    return ended


def run_suite(suite: Suite, road: str, tests: Path, pattern: str, log: Path) -> dict[str, tuple[str, str]]:
    """Run a module in a process of its own; where that dies the next one goes on after the test at fault."""
    log.write_text("")
    command = [sys.executable, __file__, "--tests", tests, "--suite", Path(suite.path).stem, "-k", pattern]
    while True:
        size = log.stat().st_size
        ended = subprocess.run([*command, "--here", road, log], capture_output=True, text=True)
        if ended.returncode == 0:
            return read_log(log)
        if log.stat().st_size == size:  # not in a test
            raise SystemExit(ended.stderr)


def compare(name: str, suite: Suite, roads: Sequence[str], arguments: argparse.Namespace, logs: Path) -> int:
    """Print a line of the table for each road, and what fails with dtr only; how many those are."""
    ended = {
        road: run_suite(suite, road, arguments.tests, arguments.k, logs / f"{name}.{road}.jsonl")
        for road in ("unchanged", *roads)
    }
    before = ended.pop("unchanged")
    count = 0
    for road, after in ended.items():
        kinds: Counter[str] = Counter()
        ours = []
        for test, (outcome, _) in before.items():
            if outcome != "passed":
                kinds["skipped" if outcome == "skipped" else "fails unchanged"] += 1
            elif after[test][0] == "passed":
                kinds["passed"] += 1
            elif any(part in test for part in ASIDE):
                kinds["aside"] += 1
            else:
                kinds["fails with dtr"] += 1
                ours.append(f"    {test}: {after[test][1]}")
        print(f"{name:32}{road:10}{len(before):6}", *(f"{kinds[kind]:16}" for kind in KINDS), flush=True)
        print(*ours, sep="\n", end="\n" if ours else "", flush=True)
        count += len(ours)
    return count


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tests", type=Path, required=True, help="PyTorch's folder test/")
    parser.add_argument("--suite", choices=SUITES, action="append")
    parser.add_argument("--budget", choices=ROADS[1:], action="append")
    parser.add_argument("-k", default="", help="tests whose names hold this")
    parser.add_argument("--here", nargs=2, metavar=("ROAD", "LOG"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    chosen = {name: SUITES[name] for name in arguments.suite or SUITES}
    if arguments.here:
        [suite] = chosen.values()
        road, log = arguments.here
        return run_here(arguments.tests / suite.path, road, arguments.k, suite.sampled, Path(log))
    print(f"{'suite':32}{'budget':10}{'tests':>6}", *(f"{kind:>16}" for kind in KINDS))
    with tempfile.TemporaryDirectory() as folder:
        counts = [
            compare(name, suite, arguments.budget or ROADS[1:], arguments, Path(folder))
            for name, suite in chosen.items()
        ]
    sys.exit(int(any(counts)))


if __name__ == "__main__":
    main()
