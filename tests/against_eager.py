"""Cases run in eager, then under dtr at its smallest budget, half way up and at 100%: the same to the bit.

Where a result differs from eager's, ``aot_eager_default_partitioner`` is the reference; what both it and dtr
refuse is PyTorch's.  A sweep over many cases keeps a log, and goes on where it stopped.
"""

from __future__ import annotations

import contextlib
import json
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch._dynamo.utils import counters

from dtr_fx import InfeasibleBudgetError, Report, WrittenTensorError

REFERENCE = "aot_eager_default_partitioner"


@dataclass
class Run:
    """What a case left behind, by name, what was planned for it, and the peak of a step above its inputs."""

    results: dict[str, Any]
    measured: int | None = None
    reports: list[Report] = field(default_factory=list)
    warned: bool = False
    uncompiled: bool = False


@dataclass(frozen=True)
class Case:
    """``run`` runs it with a compiler of its model; ``budgets`` are those beside the smallest one.

    Where it is ``dynamic``, all sizes are symbols to Dynamo.
    """

    run: Callable[[Callable[[Any], Any]], Run]
    budgets: tuple[str, ...] = ("100%",)
    planner: str = "online"
    dynamic: bool | None = None


@dataclass(frozen=True)
class Outcome:
    """How a case went: ``"equal"``, ``"failed"``, ``"absent"``, or ``"refused"`` by PyTorch, too.

    ``budgets`` are those that were run, ``notes`` what else was seen.
    """

    verdict: str
    detail: str = ""
    budgets: tuple[Any, ...] = ()
    notes: tuple[str, ...] = ()


class Absent(Exception):
    """There is no such case: an operator has fewer samples."""


class Failure(Exception):
    """Not as the reference; or, if it ``is_refusal``, an error that the reference raises as well."""

    def __init__(self, detail: str, *, is_refusal: bool = False) -> None:
        super().__init__(detail)
        self.is_refusal = is_refusal


def check(case: Case) -> Outcome:
    try:
        checker = Checker(case)
    except Absent:
        return Outcome("absent")
    except Exception as error:
        return Outcome("refused", f"eager: {type(error).__name__}: {error}")
    try:
        checker.run_all()
    except Failure as failure:
        verdict = "refused" if failure.is_refusal else "failed"
        return Outcome(verdict, str(failure), tuple(checker.budgets), tuple(+checker.notes))
    return Outcome("equal", "", tuple(checker.budgets), tuple(+checker.notes))


class Checker:
    """Holds a case against its references, of which the second is run when it is needed."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.expected = case.run(lambda model: model).results
        self.notes: Counter[str] = Counter()
        self.budgets: list[Any] = []
        self.peak = 0
        self.uncompiled = False  # so that reports are not of all that is measured; not told at 100%
        self._second: dict[str, Any] | Exception | None = None

    def run_all(self) -> None:
        smallest = self._smallest()
        if smallest is not None and smallest < self.peak and "middle" in self.case.budgets:
            # What several forward passes hold together is divided anew at each budget.
            with contextlib.suppress(InfeasibleBudgetError):
                self._at((smallest + self.peak) // 2)
        if "100%" in self.case.budgets:
            self._at("100%")

    def _smallest(self) -> int | None:
        """The smallest budget that works, as the errors name it, once it was run."""
        budget = 1
        for _ in range(6):
            try:
                run = self._at(budget)
            except InfeasibleBudgetError as error:
                budget, self.peak = max(error.smallest, budget + 1), error.baseline_peak
            else:
                self.notes["nothing planned"] += not run.reports
                return budget
        self.notes["no smallest budget"] += 1
        return None

    def _at(self, budget: Any) -> Run:
        try:
            run = run_compiled(self.case, "dtr", budget=budget, planner=self.case.planner, plan_seconds=0.02)
        except InfeasibleBudgetError as error:
            if budget == "100%":
                raise Failure(f"{budget}: {error}") from None
            raise
        except WrittenTensorError as error:
            # The caller writes what this plan relies on, and was warned.
            self.notes["written"] += 1
            if error.safe_budget <= (budget if isinstance(budget, int) else 0) or budget == "100%":
                raise Failure(f"{budget}: {error}") from None
            return self._at(error.safe_budget)
        except Failure:
            raise
        except Exception as error:
            raise Failure(
                f"{budget}: {type(error).__name__}: {error}", is_refusal=isinstance(self.second, Exception)
            ) from error
        self.budgets.append(budget)
        self.uncompiled |= run.uncompiled
        self._judge(run, budget)
        return run

    def _judge(self, run: Run, budget: Any) -> None:
        names = differing(run.results, self.expected)
        if names:
            self.notes["differs from eager"] += 1
            if isinstance(self.second, Exception) or differing(run.results, self.second):
                raise Failure(f"{budget}: {', '.join(names)}")
        self.notes["recomputes"] += any(report.recomputes for report in run.reports)
        for report in run.reports:
            if report.relied and not run.warned:
                raise Failure(f"{budget}: no warning of {report.relied[0]}")
        if run.measured is not None and len(run.reports) == 1 and not self.uncompiled:
            self.notes["measured"] += 1
            [report] = run.reports
            room = report.budget - report.constants
            if report.verdict == "fits" and run.measured > room:
                raise Failure(f"{budget}: measured {run.measured} bytes of {room}; {report.summary()}")

    @property
    def second(self) -> Any:
        """The results of PyTorch's default partitioner, or how it failed."""
        if self._second is None:
            try:
                self._second = run_compiled(self.case, REFERENCE).results
            except Exception as error:
                self._second = error
        return self._second


def run_compiled(case: Case, backend: str, **options: Any) -> Run:
    torch._dynamo.reset()
    counters.clear()
    reports: list[Report] = []
    given = {"options": {**options, "on_report": reports.append}} if backend == "dtr" else {}
    with _warnings() as warned:
        try:
            run = case.run(lambda model: torch.compile(model, backend=backend, dynamic=case.dynamic, **given))
        except WrittenTensorError as error:
            if not warned["must not be written"] and error.kind != "parameter":
                raise Failure(f"without a warning: {error}") from error
            raise
    run.reports, run.warned = reports, bool(warned["must not be written"])
    run.uncompiled = bool(warned["not in force"] or counters["graph_break"])
    return run


def differing(ours: dict[str, Any], theirs: dict[str, Any]) -> list[str]:
    return [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]


@contextlib.contextmanager
def _warnings() -> Iterator[Counter[str]]:
    """How often it is warned of what must not be written, and of what is not compiled."""
    found: Counter[str] = Counter()

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            message = record.getMessage()
            found.update(text for text in ("must not be written", "not in force") if text in message)

    handler, log = Handler(logging.WARNING), logging.getLogger("dtr_fx")
    log.addHandler(handler)
    try:
        yield found
    finally:
        log.removeHandler(handler)


# --- the long run ------------------------------------------------------------------------------------------


def sweep(cases: Iterable[tuple[str, Callable[[], Case]]], path: Path) -> None:
    """Check what the log does not have yet; a case that ended the process is there as ``"started"``."""
    torch._logging.set_logs(all=logging.ERROR)
    lines = path.read_text().splitlines() if path.exists() else []
    done = {record["case"]: record for record in map(json.loads, lines)}
    with path.open("a") as log:
        for name, make in cases:
            if name in done:
                continue
            print(json.dumps({"case": name, "verdict": "started"}), file=log, flush=True)
            done[name] = _record(name, make)
            print(json.dumps(done[name]), file=log, flush=True)
            verdicts = Counter(record["verdict"] for record in done.values())
            print(f"\r{name}: {dict(verdicts)}\033[K", end="", file=sys.stderr, flush=True)
            if done[name]["verdict"] == "failed":
                print(f"\n{name}: {done[name]['detail'][:400]}", file=sys.stderr, flush=True)
    print(f"\n{dict(Counter(record['verdict'] for record in done.values()))}")


def _record(name: str, make: Callable[[], Case]) -> dict[str, Any]:
    start = time.perf_counter()
    try:
        outcome = check(make())
    except Absent:
        outcome = Outcome("absent")
    except Exception as error:
        outcome = Outcome("failed", f"{type(error).__name__}: {error}")
    return {"case": name, **vars(outcome), "seconds": round(time.perf_counter() - start, 2)}
