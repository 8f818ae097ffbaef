"""The outcome of a plan, as data: the one thing that logs, the command line and pictures are views of."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from dtr_fx.units import (
    format_bytes,
    format_count,
    format_percent,
    format_seconds,
    format_source,
    parse_bytes,
)

_Self = TypeVar("_Self", bound="Report")

# Of the JSON form, docs/json.md: raised when a field goes, or means something else than before.
SCHEMA = 1

# What live bytes are.  Activations are made by the forward pass, gradients by the backward pass, if they are
# not recomputed; outputs are what the forward pass returns; what an operator takes for itself is temporary.
# The optimizer has its state, and in a whole step what it computes of it.
# A storage is of one of them, too, or a saved rng state, a kept copy (both are activations), or unused.
KINDS = ("parameter", "optimizer", "input", "activation", "recomputed", "gradient", "output", "temporary")


@dataclass(frozen=True)
class Event:
    """One step of the rewritten graph, in execution order.

    ``kind`` is ``"compute"``, ``"recompute"``, ``"drop"``, ``"banish"``, ``"offload"``, ``"reload"`` or
    ``"wait"`` (until a copy has ended).  ``name`` is the node in the rewritten graph, ``origin`` the node of
    the original graph that it stands for, or the storage that a drop gives up: ``native_dropout:1`` is the
    second of an operator's outputs.  ``nbytes`` are the bytes that the step allocates (compute, recompute) or
    frees (drop, banish), ``cost`` its seconds, ``live`` the bytes live while it runs.  ``reason`` says why a
    drop or a recompute happened, ``score`` is the heuristic's score of the dropped storage, ``source`` the
    user's line.  A copy out or back takes ``transfer`` seconds beside what is computed.  Of a drop, ``again``
    are the seconds to make the storage again, ``away`` those of compute until then.  ``storages`` are the
    positions, in ``Report.storages``, of what the step makes or frees, ``uses`` those of what it reads;
    ``reads`` names the events and inputs that this comes from.  ``target`` is the operator
    (``aten.mm.default``), ``module`` the path of the module that called it.
    """

    kind: str
    name: str
    origin: str
    phase: str
    nbytes: int
    cost: float
    live: int
    reason: str = ""
    score: float | None = None
    source: str = ""
    storages: tuple[int, ...] = ()
    uses: tuple[int, ...] = ()
    reads: tuple[str, ...] = ()
    target: str = ""
    module: str = ""
    again: float | None = None
    away: float | None = None
    transfer: float = 0.0


@dataclass(frozen=True)
class Point:
    """The bytes live while one operator runs: one point of a memory timeline.

    ``parts`` are the live bytes by kind, in the order of ``KINDS``; their sum is ``live``.
    """

    live: int
    name: str
    parts: tuple[int, ...] = ()


@dataclass(frozen=True)
class StorageStats:
    """The drops and recomputes of one storage, named after the node that its drops name.

    ``kind`` is that of its bytes when they are first made, one of ``KINDS``; or rng state or kept copy, which
    are activations; or unused, an input that nothing reads, and that is not counted.  What ``stays`` is there
    at the end of the step.
    """

    name: str
    kind: str
    nbytes: int
    drops: int
    recomputes: int
    recompute_cost: float
    stays: bool = False


@dataclass(frozen=True)
class Choice:
    """One time that room was made while the storage that was asked about could have gone.

    ``at`` is the position in ``Report.events`` of the operator that needed the room.  ``score`` is what the
    heuristic gave the storage, None while an operator that waits was reading it, and ``rank`` its place among
    the ``candidates``: 1 for the lowest score, which goes.  ``chosen`` is what went.
    """

    at: int
    score: float | None
    rank: int
    candidates: int
    chosen: str
    chosen_score: float | None


@dataclass(frozen=True)
class Relied:
    """A tensor of the caller's that the backward pass recomputes from: it must not be written before.

    ``kind`` is ``"input"``, ``"parameter"`` or ``"output"``, ``position`` its place in the call, ``source``
    the user's line.  No plan for ``safe_budget`` bytes recomputes from it; it is None where the plan saves as
    little as it can, as under ``strict`` the first plans for several graphs do at any budget.
    """

    kind: str
    position: int
    name: str
    source: str
    safe_budget: int | None

    def __str__(self) -> str:
        safe = self.safe_budget
        out = (
            "under strict the first step does so at any budget"
            if safe is None
            else f"from a budget of {format_bytes(safe)} on no plan does"
        )
        return (
            f"the {self.kind} {self.name}{format_source(self.source)} must not be written before the "
            f"backward pass, which recomputes from it; {out}"
        )


@dataclass(frozen=True)
class HintStats:
    """What came of a hint: ``what`` was asked for the modules, region or tensor that ``pattern`` names.

    It marked so many ``operators``.  Of what they make ``nbytes`` would wait for the backward pass if nothing
    ran again, and ``held`` do under the plan; ``seconds`` are those of their recomputes, and ``most`` are the
    most bytes of theirs that are there at once.
    """

    pattern: str
    what: str
    operators: int
    nbytes: int
    held: int
    seconds: float
    most: int = 0

    def __str__(self) -> str:
        again = f", recomputes of {format_seconds(self.seconds)}" if self.seconds else ""
        if self.what.startswith("budget"):
            again = f", at most {format_bytes(self.most)} at once{again}"
        return (
            f"{self.what} {self.pattern}: {format_count(self.operators, 'operator')}, "
            f"{format_bytes(self.nbytes)} → {format_bytes(self.held)} between the passes{again}"
        )


@dataclass(frozen=True)
class SliceStats:
    """A region of so many ``operators`` that runs as the operator ``name``, in so many ``slices``.

    It is ``exact`` if its results are those of the whole; else sums may be added up in another order.
    ``source`` is the user's line of the operator that it was found from.
    """

    name: str
    operators: int
    slices: int
    exact: bool
    source: str

    def __str__(self) -> str:
        order = "" if self.exact else ", sums in another order: the last bits may differ"
        operators = format_count(self.operators, "operator")
        return f"{self.name}{format_source(self.source)}: {operators} in {self.slices} slices{order}"


@dataclass(frozen=True)
class Report:
    """The outcome of one plan.  Sizes are bytes, costs seconds.

    ``baseline_peak`` is the peak of the graph as it was, ``planned_peak`` of the rewritten one, as the verify
    pass derives it from the emitted graph; both count inputs and parameters.  ``lower_bound`` is the largest,
    over operators, of constants + outputs pinned by then + the operator's own inputs and outputs: no plan can
    do with less.  ``trigger`` says why the graph was traced, where a model is traced several times: the shape
    or guard that changed.  ``heuristic`` names who chose what to drop: a heuristic, ``"search"``, or
    ``"none"`` where the graph is left as it is.  ``choices`` are those that concerned the value named by the
    option ``watch``.  ``budget`` is the one in force, ``asked`` what the user wrote for it (``"60%"``).
    ``refused`` counts the orders of the search that the runtime could not carry out.  ``relied`` are the
    caller's tensors that must not be written between the passes, ``relied_parameters`` the parameters.
    ``unconstrained_peak`` is what a share is of, the peak of the graph as it was or as the user's checkpoints
    have it, and ``unconstrained_saved`` what it then saves for its backward pass.  ``hints`` are those of the
    option ``policy``, and those in the code, ``slices`` the regions that run slice by slice.  Of a plan that
    computes more than five forward passes again, ``sane_from`` is a budget from which none does.  ``model``
    is what was planned as the caller names it, ``options`` are those that are not the defaults, and ``torch``
    is its version.  ``reserved_peak`` is what PyTorch's CUDA caching allocator would reserve for the
    rewritten graph, 0 where that is not known.  ``offload`` names where storages may be moved to, and how
    fast that is; ``outside_peak`` are the most bytes that are there at once.  ``least_overhead`` is what no
    plan is below that fits the budget by recomputes alone; it is None beside slices, or an ``offload``.
    ``costs`` says by what operators have their seconds, ``"profile"``, ``"roofline"`` or ``"given"``;
    ``step_before`` and ``step_after`` are the seconds that a step of the graph as it was and of the rewritten
    one takes on the device; None unless they are measured, by a profile in the eager executor.
    """

    budget: int
    baseline_peak: int
    planned_peak: int
    lower_bound: int
    constants: int
    base_cost: float
    total_cost: float
    heuristic: str
    device: str
    events: tuple[Event, ...]
    before: tuple[Point, ...]
    after: tuple[Point, ...]
    storages: tuple[StorageStats, ...]
    seconds: dict[str, float]
    trigger: str = ""
    choices: tuple[Choice, ...] = ()
    asked: str = ""
    refused: int = 0
    relied: tuple[Relied, ...] = ()
    relied_parameters: tuple[Relied, ...] = ()
    unconstrained_peak: int = 0
    unconstrained_saved: int = 0
    hints: tuple[HintStats, ...] = ()
    sane_from: int | None = None
    model: str = ""
    options: str = ""
    torch: str = ""
    slices: tuple[SliceStats, ...] = ()
    reserved_peak: int = 0
    offload: str = ""
    outside_peak: int = 0
    least_overhead: float | None = None
    costs: str = ""
    step_before: float | None = None
    step_after: float | None = None

    @property
    def verdict(self) -> str:
        """``"fits"``, ``"over budget"``, or ``"left as it is"`` where no plan reaches the budget."""
        if self._counted <= self.budget:
            return "fits"
        return "left as it is" if self.heuristic == "none" else "over budget"

    @property
    def budget_text(self) -> str:
        """The budget in force, beside what was asked for where that is no such number of bytes."""
        in_force = format_bytes(self.budget)
        asked = _bytes_in(self.asked)
        if not self.asked or asked == self.budget:
            return in_force
        return f"{self.asked} = {in_force}" if asked is None else f"{in_force} of {self.asked}"

    @property
    def overhead(self) -> float:
        """Extra compute over base compute: 0.1 is 10% more."""
        return (self.total_cost - self.base_cost) / self.base_cost if self.base_cost else 0.0

    @property
    def above_least(self) -> float | None:
        """By which share, at most, the step takes more compute than it could within the budget."""
        least = self.least_overhead
        return None if least is None else max(0.0, (1 + self.overhead) / (1 + least) - 1)

    @property
    def drops(self) -> int:
        return sum(event.kind == "drop" for event in self.events)

    @property
    def recomputes(self) -> int:
        return sum(event.kind == "recompute" for event in self.events)

    @property
    def waited(self) -> float:
        """Seconds in which compute waits for copies out and back."""
        return sum(event.cost for event in self.events if event.kind == "wait")

    def summary(self) -> str:
        """One line: the verdict, peak before and after, budget, drops, recomputes, moved bytes, overhead."""
        verdict = self.verdict
        if verdict == "left as it is":
            return f"{verdict}: peak {format_bytes(self.baseline_peak)}, no plan reaches {self.budget_text}"
        if verdict == "over budget":
            verdict = f"OVER BUDGET by {format_bytes(self._counted - self.budget)}"
        return (
            f"{verdict}: peak {format_bytes(self.baseline_peak)} → {format_bytes(self.planned_peak)}, "
            f"{self._reserved}budget {self.budget_text}, {format_count(self.drops, 'drop')}, "
            f"{format_count(self.recomputes, 'recompute')}, {self._moved}{self._sliced}"
            f"overhead {format_percent(self.overhead)}"
        )

    @property
    def counts_reserved(self) -> bool:
        """True if the budget is of reserved bytes."""
        return "count=reserved" in self.options.split()

    @property
    def _counted(self) -> int:
        return self.reserved_peak if self.counts_reserved else self.planned_peak

    @property
    def _reserved(self) -> str:
        return f"{format_bytes(self.reserved_peak)} reserved, " if self.counts_reserved else ""

    @property
    def _moved(self) -> str:
        return f"{format_bytes(self.outside_peak)} moved out, " if self.outside_peak else ""

    @property
    def _sliced(self) -> str:
        if not self.slices:
            return ""
        order = "" if all(region.exact for region in self.slices) else " (sums in another order)"
        return f"{format_count(len(self.slices), 'region')} in slices{order}, "

    @property
    def caution(self) -> str:
        """Words, to stand behind others, on a plan that costs out of all proportion; else none."""
        if self.sane_from is None:
            return ""
        return f"; more than 5 forward passes again, at most 5 from {format_bytes(self.sane_from)} on"

    def to_data(self) -> dict[str, Any]:
        """All fields, the verdict, the number of the schema and the kinds of bytes, for ``json.dumps``."""
        return {"schema": SCHEMA, **asdict(self), "verdict": self.verdict, "kinds": list(KINDS)}

    def to_json(self) -> str:
        return json.dumps(self.to_data())

    @classmethod
    def from_json(cls: type[_Self], text: str) -> _Self:
        """The report that ``to_json`` wrote; ValueError for any other text."""
        return cls.from_data(json.loads(text))

    @classmethod
    def from_data(cls: type[_Self], data: Any) -> _Self:
        """The report of ``to_data``, or of what an earlier version wrote, where that has all we need."""
        if not isinstance(data, dict) or "events" not in data:
            raise ValueError("no report of dtr_fx")
        schema = data.get("schema", 0)  # there was none before it was numbered
        if not isinstance(schema, int) or schema > SCHEMA:
            raise ValueError(
                f"a report of schema {schema} is from a newer dtr_fx; this one reads schemas up to {SCHEMA}"
            )
        fields = {key: value for key, value in data.items() if key not in _FOLLOWS}
        try:
            for key, item in _PARTS.items():
                fields[key] = tuple(item(**_with_tuples(entry)) for entry in fields[key])
            return cls(**fields)
        except (TypeError, KeyError, AttributeError):
            what = "is from an older dtr_fx: make it anew" if schema < SCHEMA else "is damaged"
            raise ValueError(f"a report of schema {schema} {what}") from None


_FOLLOWS = ("schema", "verdict", "kinds")  # from the other fields, or from the version
_PARTS = {
    "events": Event,
    "before": Point,
    "after": Point,
    "storages": StorageStats,
    "choices": Choice,
    "relied": Relied,
    "relied_parameters": Relied,
    "hints": HintStats,
    "slices": SliceStats,
}


def _bytes_in(asked: str) -> int | None:
    """The bytes that a user wrote; None for a share or ``"auto"``."""
    try:
        return int(asked) if asked.isdecimal() else parse_bytes(asked)
    except ValueError:
        return None


def _with_tuples(entry: dict[str, Any]) -> dict[str, Any]:
    """JSON knows lists only."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in entry.items()}
