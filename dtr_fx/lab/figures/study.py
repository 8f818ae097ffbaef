"""The replays behind Figures 2 and 7 to 12, each run once for all figures that show it."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from dtr_fx.lab.replay import Replay
from dtr_fx.lab.sweep import RATIOS, Case, run_cases
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


def _named(*names: str) -> tuple[Series, ...]:
    return tuple(Series(name, _RANDOM if name == "rand" else (HEURISTICS[name],)) for name in names)


def _ablation(cost: Cost) -> tuple[Series, ...]:
    kinds = itertools.product((True, False), (True, False), [cost])
    members = {kind: parameterized(staleness=kind[0], size=kind[1], cost=cost) for kind in kinds}
    return tuple(Series(member.name, _NAMED.get(kind, (member,))) for kind, member in members.items())


SERIES: dict[int, tuple[Series, ...]] = {
    2: _named("dtr", "dtr-eq", "dtr-local", "lru", "size", "msps", "rand"),
    7: _ablation("exact"),
    8: (*_ablation("eq"), *_named("coop", "mge")),
    9: _ablation("local"),
    10: _ablation("no"),
    11: tuple(Series("dtr", (HEURISTICS["dtr"],), policy) for policy in ("ignore", "eager", "banish")),
    12: _named("dtr", "dtr-eq", "dtr-local"),
}


class Study:
    """The replays of some of the figures, over programs and memory ratios, ``len(study)`` of them."""

    def __init__(self, programs: Sequence[Program], figures: Collection[int]) -> None:
        self.programs = tuple(programs)
        series = [one for figure in figures for one in SERIES.get(figure, ())]
        kinds = dict.fromkeys((heuristic, one.deallocation) for one in series for heuristic in one.heuristics)
        self._cases: list[Case] = [
            (program, *kind, ratio) for program in programs for kind in kinds for ratio in RATIOS
        ]
        self._replays: dict[tuple[str, str | Heuristic, Deallocation, float], Replay] = {}

    def __len__(self) -> int:
        return len(self._cases)

    def run(
        self, *, processes: int | None = None, advance: Callable[[int], None] = lambda done: None
    ) -> None:
        """Run them; ``processes`` and ``advance`` are as for ``Sweep.run``."""
        results = run_cases(self._cases, MAX_SLOWDOWN, processes, advance)
        self._replays = {(case[0].name, *case[1:]): result for case, result in zip(self._cases, results)}

    def replays(self, figure: int) -> list[Replay]:
        """The replays that a figure shows, each heuristic under the figure's name for it."""
        return [
            replace(self._replays[program.name, heuristic, one.deallocation, ratio], heuristic=one.name)
            for program in self.programs
            for one in SERIES[figure]
            for heuristic in one.heuristics
            for ratio in RATIOS
        ]
