"""A plan for an operator log (Appendix C.6), as the report that a graph's plan has."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch

from dtr_fx.errors import InfeasibleBudgetError, OptionError
from dtr_fx.planning.choices import choices
from dtr_fx.planning.options import Options, resolve_budget
from dtr_fx.planning.planner import Infeasible, Planner
from dtr_fx.planning.reporting import storage_stats
from dtr_fx.report import KINDS, Event, Point, Report, StorageStats
from dtr_fx.runtime import events as kinds
from dtr_fx.runtime import resolve
from dtr_fx.runtime.program import Constant, Keep, Program
from dtr_fx.search import Policy, Run, run_policy

_NANOSECOND = 1e-9


class LogPlanning:
    """Plans for what a log recorded; ``bound`` are the bytes that none can do without."""

    def __init__(self, program: Program, options: Options) -> None:
        self.program = program
        self._options = options
        self._needs = _needs(program)
        self.bound = max(self._needs, default=0)
        self.planner = Planner(lambda: program, options, self.bound)

    def report(self) -> Report:
        """The plan for the budget of the options.

        Raises
        ------
        OptionError
            The budget is ``"auto"``: a log runs on no device.
        InfeasibleBudgetError
            No plan fits.
        """
        budget = self._budget()
        as_it_is = run_policy(self.program, math.inf, Policy(resolve(self._options.heuristic)))
        run = as_it_is if budget >= self.program.peak else self._plan(budget)
        return self._report(budget, as_it_is, run)

    def _budget(self) -> int:
        spec = self._options.budget
        if spec.kind == "auto":
            raise OptionError("budget='auto': a log runs on no device; write a share of its peak, or bytes")
        return resolve_budget(spec, self.program.peak, torch.device("cpu"))

    def _plan(self, budget: int) -> Run:
        try:
            return self.planner.plan(budget)
        except Infeasible as infeasible:
            call = self._needs.index(self.bound)
            raise InfeasibleBudgetError(
                asked=budget,
                smallest=min(infeasible.smallest, self.program.peak),
                lower_bound=self.bound,
                baseline_peak=self.program.peak,
                operator=_origins(self.program)[call],
                source="",
                pinned={"parameter or input": self.program.constants},
            ) from None

    def _report(self, budget: int, as_it_is: Run, run: Run) -> Report:
        program, told = self.program, _Told(self.program, run)
        report = Report(
            budget=budget,
            baseline_peak=program.peak,
            planned_peak=max(point.live for point in told.points),
            lower_bound=self.bound,
            constants=program.constants,
            base_cost=program.cost * _NANOSECOND,
            total_cost=sum(event.cost for event in told.events),
            heuristic="none" if run is as_it_is else run.decided_by,
            device="the log's device",
            events=tuple(told.events),
            before=tuple(_Told(program, as_it_is).points),
            after=tuple(told.points),
            storages=told.storages(),
            seconds={},
        )
        if self._options.watch is None or run is as_it_is:
            return report
        watched = choices(
            program,
            run,
            self._options.watch,
            names=told.names,
            origins=dict(enumerate(told.origins)),
            events=report.events,
        )
        return replace(report, choices=watched)


def _needs(program: Program) -> list[int]:
    """For each call, the bytes that are there while it runs under any plan: constants, what it touches."""
    sizes = _sizes(program)
    needs = []
    for call in program.calls():
        touched = (*call.inputs, *(output.tensor for output in call.outputs))
        storages = {program.storages[tensor] for tensor in touched}
        needs.append(program.constants + call.workspace + sum(sizes.get(storage, 0) for storage in storages))
    return needs


def _sizes(program: Program) -> dict[int, int]:
    """Bytes of the storages that calls make."""
    outputs = (output for call in program.calls() for output in call.outputs)
    return {output.tensor: output.size for output in outputs if output.alias is None}


def _origins(program: Program) -> list[str]:
    """A name for each call, as an FX graph would number them: ``mm``, ``mm_1``."""
    return list(_numbered(call.name.rpartition("::")[2] for call in program.calls()))


def _numbered(names: Iterable[str]) -> Iterator[str]:
    count: Counter[str] = Counter()
    for name in names:
        yield f"{name}_{count[name]}" if count[name] else name
        count[name] += 1


class _Told:
    """What a run did, as the events and the memory timeline of a report."""

    def __init__(self, program: Program, run: Run) -> None:
        self._program = program
        self._calls = list(program.calls())
        self._sizes = _sizes(program)
        self._tensor_of = {
            tensor.storage.id: number
            for number, tensor in run.tensors.items()
            if program.storages[number] == number
        }
        self._kept = {
            program.storages[step.tensor] for step in program.instructions if isinstance(step, Keep)
        }
        constants = [step.tensor for step in program.instructions if isinstance(step, Constant)]
        self._made_by = {output.tensor: op for op, call in enumerate(self._calls) for output in call.outputs}
        self._position_of = {tensor: i for i, tensor in enumerate([*constants, *self._sizes])}
        self.origins = _origins(program)
        self.names = self._names(constants)
        self._parts = dict.fromkeys(KINDS, 0) | {"parameter": program.constants}
        self._resident: dict[int, str] = {}
        self._maker = {tensor: self.names[tensor] for tensor in constants}
        self._event_names: Counter[str] = Counter()
        self._done = 0
        self.events: list[Event] = []
        self.points: list[Point] = []
        self._tell(run)

    def storages(self) -> tuple[StorageStats, ...]:
        sizes = {step.tensor: step.size for step in self._program.instructions if isinstance(step, Constant)}
        sizes |= self._sizes
        described = (
            (self.names[tensor], self._kind_of_storage(tensor), sizes[tensor]) for tensor in self._position_of
        )
        return storage_stats(described, self.events)

    def _kind_of_storage(self, tensor: int) -> str:
        if tensor not in self._sizes:
            return "parameter"
        return "output" if tensor in self._kept else "activation"

    def _names(self, constants: list[int]) -> list[str]:
        names = dict(zip(constants, _numbered("constant" for _ in constants)))
        for call, origin in zip(self._calls, self.origins):
            for number, output in enumerate(call.outputs):
                names[output.tensor] = origin if len(call.outputs) == 1 else f"{origin}.{number}"
        return [names[tensor] for tensor in sorted(names)]

    # The run

    def _tell(self, run: Run) -> None:
        steps = run.runtime.events
        returning = _returning(steps, self._made_by, self._tensor_of)
        waiting: list[int] = []  # recomputes, until the call is known that they are for
        for number, step in enumerate(steps):
            if step.kind in (kinds.DROP, kinds.BANISH):
                self._free(step, is_shown=number in returning)
                continue
            self._run_call(step)
            if step.kind == kinds.RECOMPUTE:
                waiting.append(len(self.events) - 1)
            else:
                for at in waiting:
                    self.events[at] = replace(self.events[at], reason=f"for {self.events[-1].name}")
                waiting = []

    def _run_call(self, step: kinds.Event) -> None:
        call, origin = self._calls[step.op], self.origins[step.op]
        is_first = step.kind == kinds.COMPUTE
        name = origin if is_first else self._again(origin)
        reads = dict.fromkeys(self._maker[tensor] for tensor in call.inputs)
        used = [self._program.storages[tensor] for tensor in call.inputs]
        fresh = [output for output in call.outputs if output.alias is None]
        for output in fresh:
            if output.tensor not in self._resident:
                self._add(output.tensor, self._kind(output.tensor, is_first=is_first))
        self._parts["temporary"] = step.used - sum(self._parts.values())
        self.points.append(Point(step.used, name, tuple(self._parts.values())))
        self._parts["temporary"] = 0
        self.events.append(
            Event(
                kind=step.kind,
                name=name,
                origin=origin,
                phase=self._phase(),
                nbytes=sum(output.size for output in fresh),
                cost=call.cost * _NANOSECOND,
                live=step.used,
                storages=tuple(self._position_of[output.tensor] for output in fresh),
                uses=tuple(dict.fromkeys(self._position_of[tensor] for tensor in used)),
                reads=tuple(reads),
                target=call.name,
            )
        )
        self._maker.update((output.tensor, name) for output in call.outputs)
        self._done += is_first

    def _free(self, step: kinds.Event, *, is_shown: bool) -> None:
        tensor = self._tensor_of[step.storage]
        kind = self._resident.pop(tensor, None)
        if kind is not None:
            self._parts[kind] -= self._sizes[tensor]
        if not is_shown:
            return
        self.events.append(
            Event(
                kind=kinds.DROP,
                name=f"drop_{self._maker[tensor]}",
                origin=self.names[tensor],
                phase=self._phase(),
                nbytes=self._sizes[tensor],
                cost=0.0,
                live=step.used,
                reason=step.reason,
                score=step.score if step.score is not None and math.isfinite(step.score) else None,
                storages=(self._position_of[tensor],),
                reads=(self._maker[tensor],),
                target=self._calls[self._made_by[tensor]].name,
            )
        )

    def _again(self, origin: str) -> str:
        self._event_names[origin] += 1
        count = self._event_names[origin]
        return f"{origin}_recompute" + (f"_{count - 1}" if count > 1 else "")

    def _add(self, tensor: int, kind: str) -> None:
        self._resident[tensor] = kind
        self._parts[kind] += self._sizes[tensor]

    def _kind(self, tensor: int, *, is_first: bool) -> str:
        if not is_first:
            return "recomputed"
        if self._phase() == "backward":
            return "gradient"
        return "output" if tensor in self._kept else "activation"

    def _phase(self) -> str:
        backward = self._program.backward
        if backward is None:
            return ""
        return "forward" if self._done < backward else "backward"


def _returning(steps: list[kinds.Event], made_by: dict[int, int], tensor_of: dict[int, int]) -> set[int]:
    """The numbers of the drops of what is computed again."""
    last_run: dict[int, int] = {}
    for number, step in enumerate(steps):
        if step.kind in (kinds.COMPUTE, kinds.RECOMPUTE):
            last_run[step.op] = number
    return {
        number
        for number, step in enumerate(steps)
        if step.kind == kinds.DROP and last_run[made_by[tensor_of[step.storage]]] > number
    }
