"""A plan for an operator log (Appendix C.6), as the report that a graph's plan has."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import torch

from dtr_fx.errors import InfeasibleBudgetError, OptionError
from dtr_fx.inspect.views import Report
from dtr_fx.planning.options import Options, resolve_budget
from dtr_fx.planning.planner import Infeasible, Planner
from dtr_fx.planning.reporting import make_report, storage_stats
from dtr_fx.planning.watched import choices_of
from dtr_fx.report import KINDS, Choice, Event, Point, StorageStats
from dtr_fx.runtime import Plan, Program, Step, resolve
from dtr_fx.runtime import steps as kinds
from dtr_fx.runtime.caching_allocator import Block, CachingAllocator
from dtr_fx.runtime.program import Constant, Keep
from dtr_fx.search import Policy, run_policy

_NANOSECOND = 1e-9


class LogPlanning:
    """Plans for what a log recorded."""

    def __init__(self, program: Program, options: Options) -> None:
        self.program = program
        self.planner = Planner(program, options)
        self._options = options

    def report(self) -> Report:
        """The plan for the budget of the options.

        Raises ``OptionError`` if the budget is ``"auto"``: a log runs on no device; ``InfeasibleBudgetError``
        if no plan fits.
        """
        program, spec = self.program, self._options.budget
        if self._options.count == "reserved":
            raise OptionError("count='reserved': budgets of logs are of allocated bytes; leave it out")
        if spec.kind == "auto":
            raise OptionError("budget='auto': a log runs on no device; write a share of its peak, or bytes")
        budget = resolve_budget(spec, program.peak, torch.device("cpu"))
        as_it_is = run_policy(program, math.inf, Policy(resolve(self._options.heuristic))).plan
        plan = None if budget >= program.peak else self._plan(budget)
        found = _Steps(program, plan or as_it_is)
        return make_report(
            need=self.planner.need,
            plan=plan,
            budget=budget,
            asked=spec.asked,
            base_cost=program.cost * _NANOSECOND,
            constants=program.constants,
            device="the log's device",
            before=_Steps(program, as_it_is).points,
            after=found.points,
            events=found.events,
            storages=found.storages(),
            model=program.name,
            options=self._options.others,
            reserved_peak=found.allocator.reserved,
            choices=self._choices(plan, found),
        )

    def _choices(self, plan: Plan | None, found: _Steps) -> tuple[Choice, ...]:
        """Those that concern the value of the option ``watch``."""
        value, origins = self._options.watch, dict(enumerate(found.origins))
        if value is None or plan is None:
            return ()
        return choices_of(self.planner, plan, value, found.names, origins, found.events)

    def _plan(self, budget: int) -> Plan:
        try:
            return self.planner.plan(budget)
        except Infeasible as infeasible:
            need = self.planner.need
            raise InfeasibleBudgetError(
                asked=budget,
                smallest=min(infeasible.smallest, self.program.peak),
                lower_bound=need.nbytes,
                baseline_peak=self.program.peak,
                operator=_origins(self.program)[need.call],
                source="",
                pinned={"parameter or input": self.program.constants},
            ) from None


def _origins(program: Program) -> list[str]:
    """A name for each call, as an FX graph would number them: ``mm``, ``mm_1``."""
    count: Counter[str] = Counter()
    return [_numbered(call.name.rpartition("::")[2], count) for call in program.calls()]


def _numbered(name: str, count: Counter[str]) -> str:
    """The name, told apart by a number from those that ``count`` has."""
    count[name] += 1
    return f"{name}_{count[name] - 1}" if count[name] > 1 else name


class _Steps:
    """The steps of a plan, as the events and the memory timeline of a report."""

    def __init__(self, program: Program, plan: Plan) -> None:
        self._program = program
        self._calls = list(program.calls())
        kept = (step.tensor for step in program.instructions if isinstance(step, Keep))
        self._kept = {program.storages[tensor] for tensor in kept}
        self._constants = [step.tensor for step in program.instructions if isinstance(step, Constant)]
        self._position_of = {tensor: position for position, tensor in enumerate(program.sizes)}
        self._made_by = {output.tensor: op for op, call in enumerate(self._calls) for output in call.outputs}
        self.origins = _origins(program)
        self.names = self._names()
        self._parts = dict.fromkeys(KINDS, 0) | {"parameter": program.constants}
        self._resident: dict[int, str] = {}
        self._blocks: dict[int, Block] = {}
        self.allocator = CachingAllocator.as_configured()
        self._kinds: dict[int, str] = {}  # when first made
        self._maker = {tensor: self.names[tensor] for tensor in self._constants}
        self._recomputes: Counter[str] = Counter()
        self._done = 0
        self.events: list[Event] = []
        self.points: list[Point] = []
        for tensor in self._constants:
            self._allocate(tensor)
        self._read(plan)

    def storages(self) -> tuple[StorageStats, ...]:
        described = (
            (self.names[tensor], self._kinds.get(tensor, "parameter"), size, tensor in self._kept)
            for tensor, size in self._program.sizes.items()
        )
        return storage_stats(described, self.events)

    def _lasting(self, tensor: int) -> str:
        return "output" if tensor in self._kept else "activation"

    def _names(self) -> list[str]:
        count: Counter[str] = Counter()
        names = {tensor: _numbered("constant", count) for tensor in self._constants}
        for call, origin in zip(self._calls, self.origins):
            for number, output in enumerate(call.outputs):
                names[output.tensor] = origin if len(call.outputs) == 1 else f"{origin}.{number}"
        return [names[tensor] for tensor in sorted(names)]

    def _read(self, plan: Plan) -> None:
        waiting: list[int] = []  # recomputes, until the call is known that they are for
        for step in plan.steps:
            if step.kind in (kinds.DROP, kinds.BANISH):
                self._free(step)
                continue
            self._run_call(step)
            if step.kind == kinds.RECOMPUTE:
                waiting.append(len(self.events) - 1)
            else:
                for at in waiting:
                    self.events[at] = replace(self.events[at], reason=f"for {self.events[-1].name}")
                waiting = []

    def _run_call(self, step: Step) -> None:
        call, origin = self._calls[step.op], self.origins[step.op]
        is_first = step.kind == kinds.COMPUTE
        name = origin if is_first else _numbered(f"{origin}_recompute", self._recomputes)
        used = (self._position_of[self._program.storages[tensor]] for tensor in call.inputs)
        fresh = [output for output in call.outputs if output.alias is None]
        for output in fresh:
            if output.tensor not in self._resident:
                kind = self._kind(output.tensor) if is_first else "recomputed"
                self._resident[output.tensor] = kind
                self._kinds.setdefault(output.tensor, kind)
                self._parts[kind] += self._program.sizes[output.tensor]
                self._allocate(output.tensor)
        temporary = self._parts["temporary"] = step.live - sum(self._parts.values())
        if temporary:
            self.allocator.free(self.allocator.malloc(temporary))
        self.points.append(Point(step.live, name, tuple(self._parts.values())))
        self._parts["temporary"] = 0
        self.events.append(
            Event(
                kind=step.kind,
                name=name,
                origin=origin,
                phase=self._phase(),
                nbytes=sum(output.size for output in fresh),
                cost=call.cost * _NANOSECOND,
                live=step.live,
                storages=tuple(self._position_of[output.tensor] for output in fresh),
                uses=tuple(dict.fromkeys(used)),
                reads=tuple(dict.fromkeys(self._maker[tensor] for tensor in call.inputs)),
                target=call.name,
            )
        )
        self._maker.update((output.tensor, name) for output in call.outputs)
        self._done += is_first

    def _allocate(self, tensor: int) -> None:
        if self._program.sizes[tensor]:
            self._blocks[tensor] = self.allocator.malloc(self._program.sizes[tensor])

    def _free(self, step: Step) -> None:
        tensor = step.storage
        kind = self._resident.pop(tensor, None)
        if kind is not None:
            self._parts[kind] -= self._program.sizes[tensor]
            if tensor in self._blocks:
                self.allocator.free(self._blocks.pop(tensor))
        if step.again is None:
            return
        self.events.append(
            Event(
                kind=kinds.DROP,
                name=f"drop_{self._maker[tensor]}",
                origin=self.names[tensor],
                phase=self._phase(),
                nbytes=self._program.sizes[tensor],
                cost=0.0,
                live=step.live,
                reason=step.reason,
                again=step.again * _NANOSECOND,
                away=None if step.away is None else step.away * _NANOSECOND,
                score=step.score if step.score is not None and math.isfinite(step.score) else None,
                storages=(self._position_of[tensor],),
                reads=(self._maker[tensor],),
                target=self._calls[self._made_by[tensor]].name,
            )
        )

    def _kind(self, tensor: int) -> str:
        return "gradient" if self._phase() == "backward" else self._lasting(tensor)

    def _phase(self) -> str:
        backward = self._program.backward
        return "" if backward is None else "forward" if self._done < backward else "backward"
