"""The options of the backend, and the several forms of a budget.

Torch is imported when it is needed: what is wrong with an option is told at once.
"""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast

from dtr_fx.errors import OptionError, did_you_mean
from dtr_fx.inspect.views import Report
from dtr_fx.planning.defaults import defaults
from dtr_fx.runtime.heuristics import HEURISTICS, resolve
from dtr_fx.units import format_bytes, format_percent, parse_bytes, parse_percent

if TYPE_CHECKING:
    import torch

    from dtr_fx.passes.hints import Hint
    from dtr_fx.tiers.tier import Tier

_FORMS = (
    "write a fraction of the graph's own peak (0.6 or '60%'), bytes (an int, '8GiB' or '8GB'), "
    "or 'auto' for what the device has free"
)
# The caching allocator takes memory in blocks of 2 MiB and more, and what lies between them is lost.
_USABLE = 0.95
# What shapes a plan, beside its limit and hints.
_SHAPING = ("heuristic", "costs", "planner", "plan_seconds", "executor", "slices", "offload", "count")
_NAMES = {
    "planner": ("search", "online"),
    "executor": ("eager", "inductor", None),
    "slices": ("exact", "summed", "off"),
    "count": ("allocated", "reserved"),
}

_Parsed = TypeVar("_Parsed")


@dataclass(frozen=True)
class Others:
    """The other graphs of a step beside one of them, in bytes.

    They hold ``held`` by now, and would hold ``unconstrained`` without a budget; ``peak`` is the peak that
    the step would then have, as far as it is known.  ``largest`` is the peak of the largest step so far, and
    the graph ``is_part`` of a step if more of it is seen to come.
    """

    held: int = 0
    unconstrained: int = 0
    peak: int = 0
    largest: int = 0
    is_part: bool = False

    @property
    def are_known(self) -> bool:
        """True if there are some, as far as is known."""
        return bool(self.held or self.unconstrained or self.peak)

    @property
    def of_largest_step(self) -> Others:
        """As they are to a graph without a backward pass, whose share is of the largest step so far."""
        return replace(self, peak=max(self.peak, self.largest))


@dataclass(frozen=True)
class Budget:
    """A budget before there is a graph: ``value`` is a fraction in (0, 1], bytes, or for ``"auto"`` what
    is free, 0 if that is still to be asked for.

    If there is ``"none"``, the peak is not to be above that of PyTorch's own partition.

    Of a budget that graphs share, this one has what the ``others`` leave, and may leave ``saved`` bytes from
    its forward to its backward pass, inputs and outputs apart.  ``asked`` is what the user wrote.
    """

    kind: Literal["fraction", "bytes", "auto", "none"]
    value: float
    saved: int | None = None
    others: Others = Others()
    asked: str = field(default="", compare=False)


_AS_IT_IS = Budget("fraction", 1.0, asked="100%")
# What a curve has plans for.
PERCENTS = tuple(f"{percent}%" for percent in range(95, 0, -5))
_NONE = Budget("none", 1.0, asked="PyTorch's own peak")


def parse_budget(value: object) -> Budget:
    """Understand a budget, before there is a graph to apply it to.

    A float in (0, 1] or ``"60%"`` is a fraction of the graph's own unconstrained peak; an int, ``"8GiB"``,
    ``"512MiB"``, ``"100KiB"`` (binary), ``"8GB"``, ``"512MB"``, ``"100KB"`` (decimal) or ``"123B"`` is bytes;
    ``"auto"`` what the device has free, on a GPU 95% of it.  A number in a string, as a command line gives
    it, means what the number means: ``"0.6"`` is a fraction, ``"100000"`` bytes.  All else is an OptionError.

    >>> parse_budget("60%").value
    0.6
    >>> parse_budget("512MiB").value
    536870912
    """
    if value is None:
        return _NONE
    if isinstance(value, Budget):
        return value
    if isinstance(value, str):
        return _from_text(value)
    if isinstance(value, bool):
        raise _rejected(value, "a bool is no budget")
    if isinstance(value, numbers.Integral):
        return _checked(int(value), value)
    if isinstance(value, numbers.Real):
        return _checked(float(value), value)
    raise _rejected(value, f"{type(value).__name__} is no budget")


def resolve_budget(
    budget: Budget, baseline_peak: int, device: torch.device | None = None, *, already_held: int = 0
) -> int:
    """The budget in bytes for one graph that has ``baseline_peak`` bytes, constants included, as it is.

    ``already_held`` are bytes of its inputs and parameters that are on the device by now: a budget counts
    them, the device's free memory no longer does, so ``"auto"`` adds them.  It is an OptionError on a device,
    by default the CPU, that does not tell its free memory.  A share is of the step, if other graphs hold
    memory beside this one.
    """
    if budget.kind == "auto":
        import torch

        from dtr_fx.costs.machine import free_memory

        device = device or torch.device("cpu")
        free = int(budget.value) or free_memory(device)
        if free is None:
            raise OptionError(f"budget='auto': {device.type} does not tell its free memory; write the bytes")
        return (int(_USABLE * free) if device.type == "cuda" else free) + already_held
    others = budget.others
    if budget.kind == "bytes":
        return max(1, int(budget.value) - others.held)
    step = max(others.peak, baseline_peak + others.unconstrained)
    # The fraction as written: in binary 0.29 * 100 is 28.999999999999996.
    return max(1, int(Decimal(str(budget.value)) * step) - others.held)


class _Overhead(float):
    """An overhead that was understood: ``"150%"`` may be above 1."""


def _parse_overhead(value: object) -> float | None:
    if value is None or isinstance(value, _Overhead):
        return value
    try:
        share = parse_percent(value) if isinstance(value, str) and "%" in value else float(value)  # type: ignore[arg-type]
    except (ValueError, TypeError):
        share = math.nan
    if isinstance(value, bool) or not 0 <= share < math.inf:
        raise OptionError(f"max_overhead={value!r}: write a share of the graph's own compute, 0.1 or '10%'")
    if share > 1 and "%" not in str(value):
        raise OptionError(
            f"max_overhead={value!r} is {share:.0%} more compute: if that is meant, write '{share:.0%}'"
        )
    return _Overhead(share)


def _parse_offload(given: object) -> Tier | None:
    if given is None:
        return None
    # Only here: an option that few give.
    from dtr_fx.tiers.forms import parse_tier

    return parse_tier(given)


def _parse_policy(given: object) -> tuple[Hint, ...]:
    if not given:
        return ()
    # Hints are marks of torch's, which options without them need not wait for.
    from dtr_fx.passes.policy import parse_policy

    return parse_policy(given)


def _parse_report(report: object) -> Path | None:
    """Said before anything is traced: a step that is compiled in vain can take minutes."""
    if report is None:
        return None
    if not isinstance(report, (str, os.PathLike)) or Path(report).suffix not in (".html", ".json"):
        raise OptionError(f"report={report!r}: name a file by what it is to be, .html or .json")
    if Path(report).is_dir() or not Path(report).parent.is_dir():
        raise OptionError(f"report={report!r}: it is a folder, or there is none that it could lie in")
    return Path(report)


def _parse_cache(folder: object) -> str | bool | None:
    if folder is None or isinstance(folder, bool):
        return folder
    if not isinstance(folder, (str, os.PathLike)) or Path(folder).is_file():
        raise OptionError(f"cache={folder!r}: name a folder, or write False to keep no plans")
    return os.fspath(folder)


def _is_positive(value: Any, kinds: type | tuple[type, ...]) -> bool:
    number: Any = value  # which no check narrows
    return isinstance(value, kinds) and not isinstance(value, bool) and 0 < number < math.inf


def _from_text(text: str) -> Budget:
    if text.strip() == "auto":
        return Budget("auto", 0, asked=text)
    for number in (int, float):
        try:
            plain = number(text)
        except ValueError:
            continue
        if isinstance(plain, int) and 0 < plain <= 100:
            why = f"{plain} bytes hold no graph; write '{plain}%' for a share, '{plain}B' if bytes are meant"
            raise _rejected(text, why)
        return replace(parse_budget(plain), asked=text)
    try:
        size = parse_percent(text) if "%" in text else parse_bytes(text)
    except ValueError as error:
        raise _rejected(text, str(error)) from None
    return _checked(size, text)


def _checked(size: float, given: object) -> Budget:
    """An int is bytes, a float a fraction."""
    if isinstance(size, int):
        if size < 1:
            raise _rejected(given, "a budget is at least one byte")
        return Budget("bytes", size, asked=str(given))
    if math.isnan(size):
        raise _rejected(given, "not a number")
    if size <= 0:
        raise _rejected(given, "a fraction is above 0")
    if size > 1:
        raise _rejected(given, "a fraction is of the graph's own peak, so at most 1 (100%); bytes are an int")
    return Budget("fraction", size, asked=str(given))


def _rejected(given: object, why: str) -> OptionError:
    return OptionError(f"budget={given!r}: {why}; {_FORMS}")


class _Option(Generic[_Parsed]):
    """A field that takes what a user writes and holds what it means."""

    def __init__(self, parse: Callable[[object], _Parsed], default: object) -> None:
        self._parse, self._default = parse, parse(default)

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, options: object | None, owner: type | None = None) -> _Parsed:
        return self._default if options is None else cast(_Parsed, vars(options)[self._name])

    def __set__(self, options: object, value: object) -> None:
        vars(options)[self._name] = self._parse(value)


@dataclass(frozen=True)
class Options:
    """The options of ``torch.compile(model, backend="dtr", options={...})``; OptionError for any other value.

    - ``budget``: see ``parse_budget``; by default a step takes no more than without ``dtr``.
    - ``max_overhead``: instead of a budget, the least memory whose extra compute is at most this share of the
      graph's own, 0.1 or ``"10%"``.
    - ``heuristic``: what is dropped first: a name in ``dtr_fx.runtime.HEURISTICS``, a ``Heuristic``, or a
      function ``score(s, m, c)`` of staleness (seconds), size (bytes) and cost (seconds), over arrays.
    - ``costs``: the seconds of each operator: ``"roofline"``, ``"profile"`` (each is timed), a function from
      a node to seconds, or a mapping from node names or targets.  ``"auto"`` is the profile where that takes
      about a second, on a CPU, and stays in the ``cache``, else the roofline.
    - ``planner``: ``"search"`` makes many passes, steered, and uses that a traced graph shows the future;
      ``"online"`` makes one pass of the heuristic, as in the paper.
    - ``plan_seconds``: the effort of a search, in seconds of a usual machine; what is counted is the work, so
      that the same options give the same plan everywhere.  By default 0.7 up to 1,500 operators, 1 for 2,300,
      6 for 19,000.
    - ``executor``: who runs the two graphs of a step: ``"eager"``, operator by operator, bit for bit as
      unrewritten, or ``"inductor"``, which compiles them.  None: on a GPU that Triton compiles for, Inductor
      where sizes are fixed and its kernels fit; else eager.
    - ``slices``: operators may run slice by slice where the budget is tight: ``"exact"`` if results stay the
      same, bit for bit (with Inductor: if no sum is taken in another order), ``"summed"`` also if sums are
      added up in another order, ``"off"`` not at all.
    - ``offload``: where values may be moved to instead of computed again: ``"host"`` memory beside a GPU,
      ``"disk"`` (the folder of temporary files) or a folder, bytes of host memory (``"16GiB"``), or a place
      with its limit (``"disk:16GiB"``).
    - ``count``: what a budget is of: the bytes that are ``"allocated"``, or those that PyTorch's CUDA caching
      allocator would have ``"reserved"`` for them, by its rules.
    - ``policy``: what is kept or recomputed, or has a budget of its own, by path of a module or region; see
      ``passes.hints``.
    - ``watch``: a value, named as in ``dtr-fx diff``; ``Report.choices`` has each time that it was weighed.
    - ``report``: a file, ``.html`` or ``.json``, for the reports of all graphs planned in this process,
      written anew with each.  The environment variable ``DTR_REPORT`` names a folder for both.
    - ``cache``: a folder for plans that the next process finds again, or False for none; by default what the
      environment variable ``DTR_CACHE`` says, else ``~/.cache/dtr_fx``.
    - ``plans_kept``: for how many tuples of sizes each graph keeps its compiled step, the last ones used.
    - ``strict``: what is only warned of otherwise is an error: a part of the model that Dynamo leaves
      uncompiled (UncompiledError), and a graph without a backward pass whose share no plan reaches.
    - ``ledger``: a name: all graphs compiled under it share one budget.  Without one those do that are
      compiled with equal options, in parts of one model, say.
    - ``on_report``: called with the ``Report`` of every graph that was planned.
    """

    budget: _Option[Budget] = _Option(parse_budget, None)
    max_overhead: _Option[float | None] = _Option(_parse_overhead, None)
    heuristic: str | Any = "next-use"
    costs: Any = "auto"
    planner: Literal["search", "online"] = "search"
    plan_seconds: float | None = None
    executor: Literal["eager", "inductor"] | None = None
    slices: Literal["exact", "summed", "off"] = "exact"
    offload: _Option[Tier | None] = _Option(_parse_offload, None)
    count: Literal["allocated", "reserved"] = "allocated"
    policy: _Option[tuple[Hint, ...]] = _Option(_parse_policy, None)
    watch: str | None = None
    report: _Option[Path | None] = _Option(_parse_report, None)
    cache: _Option[str | bool | None] = _Option(_parse_cache, None)
    plans_kept: int = 64
    strict: bool = False
    ledger: str | None = None
    on_report: Callable[[Report], None] | None = None

    def __post_init__(self) -> None:
        if self.max_overhead is not None and self.budget not in (_AS_IT_IS, _NONE):
            raise OptionError("give a budget, or max_overhead, which finds the smallest budget itself")
        chosen = self.heuristic
        if isinstance(chosen, str) and chosen not in HEURISTICS:
            raise OptionError(f"unknown heuristic {chosen!r}{did_you_mean(chosen, HEURISTICS)}")
        try:
            resolve(chosen)
        except TypeError as error:
            raise OptionError(f"heuristic={chosen!r}: {error}") from None
        for name, known in _NAMES.items():
            given = getattr(self, name)
            if given not in known:
                raise OptionError(f"unknown {name} {given!r}{did_you_mean(given, filter(None, known))}")
        if self.count == "reserved" and self.max_overhead is not None:
            raise OptionError("count='reserved' is of a budget: give one in place of max_overhead")
        if self.count == "reserved" and self.executor == "inductor":
            raise OptionError("count='reserved': what Inductor's kernels reserve is not known; leave one out")
        if self.offload is not None and self.executor == "inductor":
            raise OptionError("offload: kernels of Inductor move nothing; leave executor out, or offload")
        if self.plan_seconds is not None and not _is_positive(self.plan_seconds, (int, float)):
            raise OptionError(f"plan_seconds={self.plan_seconds!r}: give seconds above 0, or None")
        if not _is_positive(self.plans_kept, int):
            raise OptionError(f"plans_kept={self.plans_kept!r}: give an int of at least 1")
        if self.ledger is not None and not (isinstance(self.ledger, str) and self.ledger):
            raise OptionError(f"ledger={self.ledger!r}: give the name under which graphs share the budget")
        if self.on_report is not None and not callable(self.on_report):
            raise OptionError(f"on_report={self.on_report!r} cannot be called: give a function of a Report")

    @property
    def limits(self) -> bool:
        """True if a graph may have to take less memory than it does as it is."""
        return self.max_overhead is not None or self.budget not in (_AS_IT_IS, _NONE)

    @property
    def is_default(self) -> bool:
        """True if there is neither a budget nor another limit."""
        return self.max_overhead is None and self.budget == _NONE

    @property
    def asked(self) -> str:
        """The limit as the user wrote it."""
        if self.max_overhead is not None:
            return f"overhead of at most {format_percent(self.max_overhead)}"
        budget = self.budget
        if budget.kind == "bytes" or not budget.others.are_known:
            return budget.asked
        of_step = f"{budget.asked} of the step"
        if not budget.others.held:
            return of_step
        return f"{of_step} less {format_bytes(budget.others.held)} that other graphs hold"

    @property
    def others(self) -> str:
        """What else shapes the plan and is not the default: ``heuristic=lru planner=online``."""
        usual = Options()
        given = ((name, getattr(self, name)) for name in _SHAPING)
        told = (
            f"{name}={value if isinstance(value, (str, float, int)) else getattr(value, '__name__', 'given')}"
            for name, value in given
            if value != getattr(usual, name) and value != "eager"
        )
        return " ".join(told)

    @classmethod
    def from_mapping(cls, options: Mapping[str, Any] | None) -> Options:
        """Options from the dictionary that a compiler backend is given; OptionError for an unknown key."""
        given = dict(options or {})
        known = [field.name for field in fields(cls)]
        for key in given:
            if key not in known:
                raise OptionError(f"unknown option {key!r}{did_you_mean(key, known)}")
        return cls(**given)

    @classmethod
    def of_backend(cls, options: Mapping[str, Any] | None) -> Options:
        """``from_mapping``, where what is not given is what the program or the environment says."""
        given = dict(options or {})
        for name, value, origin in defaults(given):
            try:
                told = cls(**{name: value})
            except OptionError as error:
                raise OptionError(f"{origin}: {error}") from None
            given[name] = getattr(told, name)
            if name == "budget":
                given[name] = replace(told.budget, asked=f"{told.budget.asked} ({origin})")
        return cls.from_mapping(given)
