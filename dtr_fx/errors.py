"""All errors, each with a message that says what to do next."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from dtr_fx.units import format_bytes, format_percent, format_source


class DTRError(Exception):
    """Any error that dtr_fx reports about what it was given; one of several fields is a dataclass."""

    def __post_init__(self) -> None:
        # As positional arguments of the exception the fields survive copying and pickling.
        super().__init__(*vars(self).values())


class OptionError(DTRError, ValueError):
    """An option that is unknown, or whose value cannot be understood."""


class GraphError(DTRError, ValueError):
    """A graph that cannot be planned."""


class CommandError(DTRError, ValueError):
    """A command line that cannot be carried out."""


@dataclass(eq=False)
class InfeasibleBudgetError(DTRError, ValueError):
    """No plan fits the graph into the budget that was ``asked``.

    ``smallest`` is the smallest budget for which a plan was found, ``lower_bound`` what no plan does without,
    ``baseline_peak`` the peak of the graph as it is, all in bytes.  The node named ``operator``, of the line
    ``source`` of the user's (or ``""``), needs more than was asked; ``pinned`` are the bytes that may not be
    dropped when it runs, by kind (``"parameter"``, ``"input"``, ...), ``kept`` the patterns of hints to keep.
    Where the smallest budget takes more than five forward passes again, ``sane`` is one that does not.
    With the option ``offload`` limited, ``offloaded`` are the bytes that a plan for what was asked moves out.
    ``sliced`` are budgets below the smallest that work under other values of the option ``slices``.
    With the option ``count`` at ``"reserved"``, ``counted``, all but the lower bound are of reserved bytes.
    """

    asked: int
    smallest: int
    lower_bound: int
    baseline_peak: int
    operator: str
    source: str
    pinned: Mapping[str, int]
    kept: tuple[str, ...] = ()
    sane: int | None = None
    sliced: Mapping[str, int] = field(default_factory=dict)
    offloaded: int | None = None
    counted: str = "allocated"

    def __str__(self) -> str:
        kinds = sorted(((size, kind) for kind, size in self.pinned.items() if size), reverse=True)
        pinned = ", ".join(f"{kind} {format_bytes(size)}" for size, kind in kinds) or "nothing"
        kept = ", ".join(self.kept)
        beside = " beside the other graphs of its step" if "other graphs" in self.pinned else ""
        whose = "the step's" if beside else "its"
        is_reserved = self.counted == "reserved"
        allocated = ", allocated" if is_reserved else ""
        reserved = " (reserved bytes, by the allocator's rules)" if is_reserved else ""
        return (
            f"no plan fits this graph{beside} into {self._size(self.asked)}{reserved}\n"
            f"  {whose} peak as it is: {self.baseline_peak} bytes = {format_bytes(self.baseline_peak)}\n"
            f"  smallest budget that works: {self._size(self.smallest)}\n"
            + (f"  and with at most 5 forward passes again: {self._size(self.sane)}\n" if self.sane else "")
            + f"  lower bound for any plan: {self._size(self.lower_bound)}{allocated}\n"
            + "".join(f"  but with slices={how!r}: {self._size(size)}\n" for how, size in self.sliced.items())
            + (
                f"  but with offload of at least: {self.offloaded} bytes = {format_bytes(self.offloaded)}\n"
                if self.offloaded
                else ""
            )
            + f"  operator that needs it: {self.operator}{format_source(self.source)}\n"
            f"  pinned then: {pinned}\n"
            + (f"  kept by hints ('prefer keep' gives way): {kept}\n" if kept else "")
            + f"  try: {self._advice()}"
        )

    def _size(self, nbytes: int) -> str:
        whose = "the step's" if "other graphs" in self.pinned else "its"
        in_bytes = f"{nbytes} bytes = {format_bytes(nbytes)}"
        if not self.baseline_peak:
            return in_bytes
        return f"{in_bytes} = {format_percent(nbytes / self.baseline_peak)} of {whose} peak"

    def _advice(self) -> str:
        works = f"budget={self.smallest}"
        if self.smallest <= self.baseline_peak:
            # Rounded up: a percent that is rounded down would fail again.
            tenths = -(-1000 * Fraction(self.smallest, self.baseline_peak or 1) // 1)
            works += f' (or "{tenths / 10:.1f}%")'
        if 2 * sum(self.pinned.values()) > self.smallest:
            return f"{works}; most of that is pinned, so a narrower dtype or a smaller model saves the most"
        return f"{works}, or a smaller batch or sequence: most of that is activations"


@dataclass(eq=False)
class InfeasiblePartError(DTRError, ValueError):
    """No plan keeps the part of a model that ``pattern`` names within the bytes that were ``asked`` for it.

    ``smallest`` is the smallest budget of the part, in bytes, for which a plan was found.
    """

    pattern: str
    asked: int
    smallest: int

    def __str__(self) -> str:
        return (
            f"policy[{self.pattern!r}]: no plan keeps what these operators make within {self.asked} bytes = "
            f"{format_bytes(self.asked)}\n  smallest budget of the part that works: {self.smallest} bytes = "
            f"{format_bytes(self.smallest)}"
        )


@dataclass(eq=False)
class OverBudgetError(DTRError):
    """Inductor's kernels for every plan that was tried are above the budget.

    By its estimate of the last plan's peak, ``excess`` bytes above the ``budget``, in bytes, too.
    """

    budget: int
    excess: int

    @property
    def smallest(self) -> int:
        """A budget in bytes that is likely to work."""
        return self.budget + self.excess

    def __str__(self) -> str:
        return (
            f"Inductor's kernels need {format_bytes(self.excess)} more than the budget of "
            f"{format_bytes(self.budget)}, however tightly they are planned; try "
            f"budget={self.smallest}, or executor='eager'"
        )


@dataclass(eq=False)
class UncompiledError(DTRError):
    """Dynamo leaves a ``place`` uncompiled for a ``reason``, so that no budget is in force there.

    Raised under the option ``strict``; else it is the text of a warning.
    """

    budget: str
    place: str
    reason: str

    def __str__(self) -> str:
        return (
            f"the budget ({self.budget}) is not in force in {self.place}: Dynamo leaves it uncompiled "
            f"({self.reason}), and what it saves for the backward pass is neither planned nor counted; "
            "TORCH_LOGS=graph_breaks shows every such place"
        )


@dataclass(eq=False)
class WrittenTensorError(DTRError):
    """A tensor was written between the passes, and the backward pass was to recompute from it.

    Parameters
    ----------
    kind, name:
        ``"input"``, ``"parameter"`` or ``"output"`` of a compiled graph, and the user's name for it or that
        of its node.
    source:
        The user's line that the tensor comes from, or nothing.
    safe_budget:
        The smallest budget in bytes at which no plan recomputes from it; None where under the option
        ``strict`` the first plans for several graphs save as little as they can, at any budget.
    """

    kind: str
    name: str
    source: str
    safe_budget: int | None

    def __str__(self) -> str:
        instead = "it after the backward pass" if self.kind == "parameter" else "a clone"
        safe = self.safe_budget
        larger = (
            "leave out strict=True, under which the first step saves as little as it can"
            if safe is None
            else f"give budget={safe} ({format_bytes(safe)}) or more"
        )
        return (
            f"the {self.kind} {self.name}{format_source(self.source)} was written between the forward "
            f"and the backward pass, which recomputes from it under this budget: write {instead}, or {larger}"
        )


class OffloadError(DTRError, RuntimeError):
    """A tensor could not be moved out, or not be brought back: a disk is full, say."""


def ask(option: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """What a user's function returns, which was given as an option; OptionError if it raises."""
    try:
        return function(*arguments)
    except DTRError:
        raise
    except Exception as error:
        why = f"{type(error).__name__}: {error}"
        raise OptionError(f"{option}: {function!r} raised {why}") from error


def did_you_mean(given: object, known: Iterable[str]) -> str:
    """The end of an error about an unknown name: the nearest known one, or all of them."""
    known = list(known)
    near = difflib.get_close_matches(str(given), known, n=1)
    return f"; did you mean {near[0]!r}?" if near else f"; choose one of {', '.join(map(repr, known))}"
