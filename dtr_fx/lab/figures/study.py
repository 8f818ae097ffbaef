"""The replays behind Figures 2 and 7 to 12, each run once for all figures that show it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from dtr_fx.lab.replay import Replay
from dtr_fx.lab.sweep import RATIOS, Sweep
from dtr_fx.runtime import HEURISTICS, Deallocation, Heuristic, parameterized, random
from dtr_fx.runtime.program import Program

SEEDS = 5
MAX_SLOWDOWN = 2.0

Cost = Literal["exact", "eq", "local", "no"]


@dataclass(frozen=True)
class Series:
    """A curve under the name that its figure gives it; a random heuristic runs with several seeds."""

    name: str
    heuristics: tuple[Heuristic, ...]
    deallocation: Deallocation = "eager"


_RANDOM = tuple(random(seed) for seed in range(SEEDS))

# Members of the ablation's family that have names of their own.
_NAMED: dict[tuple[bool, bool, Cost], tuple[Heuristic, ...]] = {
    (True, True, "exact"): (HEURISTICS["dtr"],),
    (True, True, "eq"): (HEURISTICS["dtr-eq"],),
    (True, True, "local"): (HEURISTICS["dtr-local"],),
    (True, False, "no"): (HEURISTICS["lru"],),
    (False, True, "no"): (HEURISTICS["size"],),
    (False, False, "no"): _RANDOM,
}


def _named(name: str) -> Series:
    return Series(name, _RANDOM if name == "rand" else (HEURISTICS[name],))


def _ablation(cost: Cost) -> tuple[Series, ...]:
    series = []
    for staleness, size in ((True, True), (True, False), (False, True), (False, False)):
        member = parameterized(staleness=staleness, size=size, cost=cost)
        series.append(Series(member.name, _NAMED.get((staleness, size, cost), (member,))))
    return tuple(series)


SERIES: dict[int, tuple[Series, ...]] = {
    2: tuple(map(_named, ("dtr", "dtr-eq", "dtr-local", "lru", "size", "msps", "rand"))),
    7: _ablation("exact"),
    8: _ablation("eq"),
    9: _ablation("local"),
    10: _ablation("no"),
    11: tuple(Series("dtr", (HEURISTICS["dtr"],), policy) for policy in ("ignore", "eager", "banish")),
    12: tuple(map(_named, ("dtr", "dtr-eq", "dtr-local"))),
}


class Study:
    """The replays of some of the figures, over programs and memory ratios.

    ``len(study)`` of them are to be run.
    """

    def __init__(
        self, programs: Sequence[Program], figures: Collection[int], ratios: Sequence[float] = RATIOS
    ) -> None:
        self.programs = tuple(programs)
        series = [one for figure in figures for one in SERIES.get(figure, ())]
        self._sweeps = []
        for policy in dict.fromkeys(one.deallocation for one in series):
            own = [one for one in series if one.deallocation == policy]
            heuristics = list(dict.fromkeys(heuristic for one in own for heuristic in one.heuristics))
            self._sweeps.append(
                Sweep(self.programs, heuristics, ratios, (policy,), max_slowdown=MAX_SLOWDOWN)
            )
        self._replays: dict[tuple[str, Heuristic, Deallocation], list[Replay]] = {}

    def __len__(self) -> int:
        return sum(map(len, self._sweeps))

    def run(
        self, *, processes: int | None = None, advance: Callable[[int], None] = lambda done: None
    ) -> None:
        """Run them; ``processes`` and ``advance`` are as for ``Sweep.run``."""
        before = 0
        for sweep in self._sweeps:
            self._collect(sweep, sweep.run(processes=processes, advance=_after(before, advance)))
            before += len(sweep)

    def _collect(self, sweep: Sweep, results: Sequence[Replay]) -> None:
        following = iter(results)
        for program in sweep.programs:
            for heuristic in sweep.heuristics:
                assert isinstance(heuristic, Heuristic)
                key = program.name, heuristic, sweep.deallocations[0]
                self._replays[key] = [next(following) for _ in sweep.budgets]

    def replays(self, figure: int) -> list[Replay]:
        """The replays that a figure shows, each heuristic under the figure's name for it."""
        return [
            replace(replay, heuristic=one.name)
            for program in self.programs
            for one in SERIES[figure]
            for heuristic in one.heuristics
            for replay in self._replays[program.name, heuristic, one.deallocation]
        ]


def _after(before: int, advance: Callable[[int], None]) -> Callable[[int], None]:
    return lambda done: advance(before + done)
