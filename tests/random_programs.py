"""Random programs for the runtime: operators with views and several outputs, accesses, releases, pins."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from hypothesis import strategies as st

from dtr_fx.runtime import Operator, OutOfBudget, Runtime, Tensor, Thrash

MAX_COST = 400.0


@dataclass(frozen=True)
class Op:
    """``reads`` and ``views`` are indices, taken modulo what there is to choose from."""

    reads: tuple[int, ...]
    sizes: tuple[int, ...]
    views: tuple[int, ...]
    cost: float
    workspace: int = 0
    recomputable: bool = True


@dataclass(frozen=True)
class Act:
    """An access, release, retain or pin of one of the live tensors."""

    verb: str
    which: int


@dataclass
class Driver:
    """Runs a program; ``live`` holds one entry for each external reference."""

    runtime: Runtime
    live: list[Tensor] = field(default_factory=list)
    operators: list[Operator] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.live = [self.runtime.constant(1), self.runtime.constant(0)]

    def run(self, program: list[Op | Act], observe: Callable[[], None] = lambda: None) -> bool:
        """Whether the program ran to its end."""
        for step in program:
            try:
                self._take(step)
            except (OutOfBudget, Thrash):
                return False
            observe()
        return True

    def _take(self, step: Op | Act) -> None:
        if isinstance(step, Op):
            self._operate(step)
            return
        index = step.which % len(self.live)
        tensor = self.live[index]
        if step.verb == "access":
            self.runtime.access(tensor)
        elif step.verb == "retain":
            self.runtime.retain(tensor)
            self.live.append(tensor)
        elif step.verb == "release" and len(self.live) > 1:
            del self.live[index]
            self.runtime.release(tensor)
        elif step.verb == "pin":
            self.runtime.access(tensor)
            self.runtime.pin(tensor)

    def _operate(self, step: Op) -> None:
        inputs = [self.live[index % len(self.live)] for index in step.reads]
        views = [inputs[index % len(inputs)] for index in step.views]
        outputs = self.runtime.perform_op(
            inputs,
            [*step.sizes, *views],
            step.cost,
            workspace=step.workspace,
            recomputable=step.recomputable,
            movable=True,
        )
        assert outputs[0].op is not None
        self.operators.append(outputs[0].op)
        self.live.extend(outputs)


# Quarters: sums of costs are exact, whatever the order.
_costs = st.integers(1, 12).map(lambda quarters: quarters / 4)
_indices = st.integers(0, 40)


def _ops(*, reading_views: bool) -> st.SearchStrategy[Op]:
    several = st.lists(_indices, min_size=1, max_size=3).map(tuple)
    one = st.lists(_indices, min_size=1, max_size=1).map(tuple)
    computes = st.builds(
        Op,
        several,
        st.lists(st.integers(0, 2), min_size=1, max_size=3).map(tuple),
        st.just(()) | one if reading_views else st.just(()),
        _costs,
        st.sampled_from([0, 0, 0, 1]),
        st.integers(0, 9).map(lambda n: n > 0),
    )
    views = st.builds(
        Op,
        several if reading_views else one,
        st.just(()),
        st.lists(_indices, min_size=1, max_size=2).map(tuple),
        st.just(0.0) | _costs,
    )
    return st.one_of(computes, computes, views)


def programs(*, reading_views: bool = True) -> st.SearchStrategy[list[Op | Act]]:
    """Lists of 15 to 40 steps, half of them operators; ``reading_views`` read other storages, too."""
    ops = _ops(reading_views=reading_views)
    verbs = st.sampled_from(["access"] * 8 + ["release"] * 8 + ["retain"] * 2 + ["pin"])
    acts = st.builds(Act, verbs, _indices)
    return st.lists(st.one_of(ops, ops, ops, acts, acts, acts), min_size=15, max_size=40)
