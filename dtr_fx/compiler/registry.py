"""The plans that are alive in this process."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from dtr_fx.errors import DTRError
from dtr_fx.inspect.views import Report


@dataclass(frozen=True)
class LivePlan:
    """A compiled graph with the sizes that it was planned for.

    Parameters
    ----------
    compile_id:
        Dynamo's number of the compilation, ``"1/0"``: of the frame, and how often that was compiled before.
    reason:
        Why it was traced: the guard that failed or the sizes that are new; nothing the first time.
    sizes:
        What the plan was made for and may vary: ``{"L['x'].size()[0]": 48}``.
    reports:
        Of its plans: none where there was nothing to plan or no plan fits.
    error:
        What the sizes raise, if no plan fits.
    seconds:
        For tracing, planning and compiling.
    """

    compile_id: str
    reason: str
    sizes: Mapping[str, int | tuple[int, ...]]
    reports: tuple[Report, ...]
    error: DTRError | None
    seconds: float

    @property
    def planning_seconds(self) -> float:
        """Of ``seconds``, those that planning took."""
        return sum(sum(report.seconds.values()) for report in self.reports)

    @property
    def verdict(self) -> str:
        """In one line, whether the plans fit and what they cost."""
        if self.error is not None:
            return str(self.error).partition("\n")[0]
        return "; ".join(report.summary() for report in self.reports) or "nothing to plan"

    def __str__(self) -> str:
        sizes = ", ".join(f"{name} = {value}" for name, value in self.sizes.items())
        because = f" ({self.reason})" if self.reason else ""
        return f"[{self.compile_id}] {sizes or 'all sizes fixed'}{because}: {self.verdict}"


class HasPlans(Protocol):
    """Something that keeps plans."""

    def plans(self) -> list[LivePlan]: ...


def plans() -> tuple[LivePlan, ...]:
    """The plans that are alive: of every graph that Dynamo holds, for the sizes that it keeps.

    Dynamo holds a graph by the globals of the module whose code it is, also when the model is gone, until
    ``torch._dynamo.reset()``.
    """
    return tuple(plan for keeper in list(_KEEPERS) for plan in keeper.plans())


def keep_in_sight(keeper: HasPlans) -> None:
    """Let ``plans`` list the plans of an object, as long as it lives."""
    _KEEPERS.add(keeper)


_KEEPERS: weakref.WeakSet[HasPlans] = weakref.WeakSet()
